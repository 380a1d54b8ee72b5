"""A master is lost in the middle of a crawl, and a Sentinel promotes its replica."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.sentinels import MASTER, knows_a_replica, watching
from devtools.waiting import until
from tests.support.pages import tree
from tests.support.scenario import (
    MIDDLE,
    OURS,
    PAGES,
    STOCK,
    Kind,
    Scene,
    assert_ended_well,
    complaints_in,
    scene,
    tell,
)
from tests.support.servers import Server, free_port, running

pytestmark = pytest.mark.crawl


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Server, int]]:
    """A master with a replica, and the port of the Sentinel that watches both."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(running("valkey"))
        replica = stack.enter_context(running("valkey", "--replicaof", "127.0.0.1", str(master.port)))
        clients = [stack.enter_context(server.client()) for server in (master, replica)]
        until(lambda: clients[1].info("replication")["master_link_status"] == "up")
        yield master, stack.enter_context(watching(master, tmp_path, knows_a_replica)).port


def crawl_with_failover(kind: Kind, watched: tuple[Server, int], key: str, directory: Path) -> tuple[Any, Scene]:
    """A crawl in the middle of which the master is killed for good."""
    master, port = watched
    # The first of the Sentinels is gone.
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{port}"
    url, params = f"redis+sentinel://{hosts}/{MASTER}", "{}"
    if kind is STOCK:
        url, params = f"redis://{hosts}", json.dumps({"redis_cls": "scrapy_bloom.FromSentinel", "service_name": MASTER})
    with scene(tree(PAGES), directory, url, key) as played:
        played.moments.when(MIDDLE, lambda _: master.kill())
        return played.crawl(kind, REDIS_PARAMS=params), played


def test_failover(watched: tuple[Server, int], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The crawl pauses until there is another master, continues there, and fetches every page."""
    ended, played = crawl_with_failover(OURS, watched, key, tmp_path)
    tell(capsys, f"Sentinel failover: BloomScheduler missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed == set()
    assert_ended_well(ended)
    assert played.twice == 0
    assert [line for line in complaints_in(ended.log) if "the crawl resumes" in line]


@pytest.mark.long
def test_failover_under_scrapy_redis(
    watched: tuple[Server, int], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: scrapy-redis misses pages."""
    ended, played = crawl_with_failover(STOCK, watched, key, tmp_path)
    reason = ended.stats["finish_reason"]
    tell(capsys, f"Sentinel failover: scrapy-redis missed {len(played.missed)} of {PAGES}, {reason!r}")
    assert played.missed
