"""A master is lost in the middle of a crawl, and a Sentinel promotes its replica."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.sentinels import MASTER, knows_a_replica, watching
from devtools.waiting import until
from tests.support.pages import tree
from tests.support.scenario import MIDDLE, OURS, PAGES, STOCK, Kind, assert_ended_well, complaints_in, scene, tell
from tests.support.servers import Server, free_port, running


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Server, int]]:
    """A master with a replica, and the port of the Sentinel that watches both."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(running("valkey"))
        replica = stack.enter_context(running("valkey", "--replicaof", "127.0.0.1", str(master.port)))
        clients = [stack.enter_context(server.client()) for server in (master, replica)]
        until(lambda: clients[1].info("replication")["master_link_status"] == "up")
        yield master, stack.enter_context(watching(master, tmp_path, knows_a_replica)).port


@pytest.mark.parametrize("kind", [OURS, pytest.param(STOCK, marks=pytest.mark.long)], ids=["ours", "scrapy-redis"])
def test_failover(
    kind: Kind, watched: tuple[Server, int], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The master is killed for good: the crawl pauses until there is another, and fetches every page there.

    The control: scrapy-redis misses pages.
    """
    master, port = watched
    # The first of the Sentinels is gone.
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{port}"
    url, params = f"redis+sentinel://{hosts}/{MASTER}", "{}"
    if kind is STOCK:
        url, params = f"redis://{hosts}", json.dumps({"redis_cls": "scrapy_bloom.FromSentinel", "service_name": MASTER})
    with scene(tree(PAGES), tmp_path, url, key) as played:
        played.moments.when(MIDDLE, lambda _: master.kill())
        ended = played.crawl(kind, REDIS_PARAMS=params)
    tell(capsys, f"Sentinel failover: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert bool(played.missed) == (kind is STOCK)
    if kind is OURS:
        assert_ended_well(ended)
        assert played.twice == 0
        assert [line for line in complaints_in(ended.log) if "the crawl resumes" in line]
