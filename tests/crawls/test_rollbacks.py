"""A server returns without its latest writes, as a promoted replica may: no page is missed.

A server with filter and queue loses the same time span of both: requests that the filter forgets are fetched again.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.clusters import running_cluster
from tests.support.pages import tree
from tests.support.scenario import LEASE, MIDDLE, OURS, PAGES, Kind, assert_ended_well, scene, tell
from tests.support.servers import running

# When the server's data are saved; it returns with them in the middle.
SAVED = 15
CLUSTER: Kind = {"REDIS_PARAMS": '{"redis_cls": "redis.RedisCluster"}'}
COMMON: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4, "BLOOMFILTER_ERROR_RATE": 1e-12}


@pytest.mark.parametrize("kind", ["server", pytest.param("cluster", marks=pytest.mark.long)])
def test_rollback(kind: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server writes all keys in one stream: if its tail is lost, no page is.

    In a cluster queue and filter are in one slot, and so on one node.
    """
    in_one_slot = f"{{{key}}}"
    with ExitStack() as stack:
        if kind == "cluster":
            cluster = stack.enter_context(running_cluster(2))
            server, settings = cluster.owner_of(in_one_slot), CLUSTER
        else:
            server, settings = stack.enter_context(running("valkey")), {}
        client = stack.enter_context(server.client())
        played = stack.enter_context(scene(tree(PAGES), tmp_path, server.url, in_one_slot, delay=0.05))

        def roll_back(_: str) -> None:
            server.kill()
            server.start()

        played.moments.when(SAVED, lambda _: client.save())
        played.moments.when(MIDDLE, roll_back)
        assert_ended_well(played.crawl({**COMMON, **settings}))
    tell(capsys, f"rollback of a {kind}: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed == set()
    assert played.twice > 0
