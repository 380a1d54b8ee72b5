"""A master is lost in the middle of a crawl, and a Sentinel promotes its replica."""

import json
from pathlib import Path

import pytest

from tests.support.pages import tree
from tests.support.scenario import MIDDLE, OURS, PAGES, STOCK, Kind, assert_ended_well, complaints_in, scene, tell
from tests.support.sentinels import MASTER, watched_pair
from tests.support.servers import free_port


@pytest.mark.parametrize("kind", [OURS, pytest.param(STOCK, marks=pytest.mark.long)], ids=["ours", "scrapy-redis"])
def test_failover(kind: Kind, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The master is killed for good: the crawl pauses until there is another, and fetches every page there.

    The control: scrapy-redis misses pages.
    """
    with watched_pair("valkey", tmp_path) as pair:
        # The first of the Sentinels is gone.
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{pair.sentinel}"
        url, params = f"redis+sentinel://{hosts}/{MASTER}", {}
        if kind is STOCK:
            url, params = f"redis://{hosts}", {"redis_cls": "scrapy_bloom.FromSentinel", "service_name": MASTER}
        with scene(tree(PAGES), tmp_path, url, key) as played:
            played.moments.when(MIDDLE, lambda _: pair.master.kill())
            ended = played.crawl(kind, REDIS_PARAMS=json.dumps(params))
    tell(capsys, f"Sentinel failover: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert bool(played.missed) == (kind is STOCK)
    if kind is OURS:
        assert_ended_well(ended)
        assert played.twice == 0
        assert [line for line in complaints_in(ended.log) if "the crawl resumes" in line]
