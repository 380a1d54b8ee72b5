"""A server returns without its latest writes, as a promoted replica may: no page is missed.

A server with filter and queue loses the same time span of both: requests that the filter forgets are fetched again.
"""

from pathlib import Path

import pytest

from tests.support.pages import tree
from tests.support.scenario import LEASE, MIDDLE, OURS, PAGES, Kind, assert_ended_well, scene, tell
from tests.support.servers import running

pytestmark = pytest.mark.crawl

# When the server's data are saved; it returns with them in the middle.
SAVED = 15
COMMON: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4, "BLOOMFILTER_ERROR_RATE": 1e-12}


def test_server(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server writes all keys in one stream: if its tail is lost, no page is.

    In a cluster queue and filter are on one node, see `tests/scrapy/test_keys`.
    """
    with (
        running("valkey") as server,
        server.client() as client,
        scene(tree(PAGES), tmp_path, server.url, key, delay=0.05) as played,
    ):

        def roll_back(_: str) -> None:
            server.kill()
            server.start()

        played.moments.when(SAVED, lambda _: client.save())
        played.moments.when(MIDDLE, roll_back)
        assert_ended_well(played.crawl(COMMON))
    tell(capsys, f"rollback of a server: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed == set()
    assert played.twice > 0
