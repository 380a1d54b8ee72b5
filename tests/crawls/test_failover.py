"""A master that is lost, and a replica that a Sentinel promotes in its place, in the middle of a crawl."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

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
from tests.support.servers import BINARIES, Server, free_port, running

pytestmark = pytest.mark.crawl

MASTER = "crawl"


class FromSentinel:
    """The `redis_cls` of REDIS_PARAMS: makes clients of whichever server the Sentinel at a URL says is the master."""

    @staticmethod
    def from_url(url: str, **kwargs: Any) -> Any:
        host, _, port = url.removeprefix("redis://").partition(":")
        sentinel: Any = Sentinel
        return sentinel([(host, int(port))]).master_for(MASTER, **kwargs)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Server, int]]:
    """A master with a replica, and the Sentinel that watches both."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(running("valkey"))
        replica = stack.enter_context(running("valkey", "--replicaof", "127.0.0.1", str(master.port)))
        clients = [stack.enter_context(server.client()) for server in (master, replica)]
        until(lambda: clients[1].info("replication")["master_link_status"] == "up")
        yield master, stack.enter_context(watching(master, tmp_path))


@contextlib.contextmanager
def watching(master: Server, directory: Path) -> Iterator[int]:
    """A Sentinel that knows a master and its replica, and decides alone; gives its port."""
    port = free_port()
    config = directory / "sentinel.conf"
    config.write_text(
        f"port {port}\n"
        "bind 127.0.0.1\n"
        f"dir {directory}\n"
        f"sentinel monitor {MASTER} 127.0.0.1 {master.port} 1\n"
        f"sentinel down-after-milliseconds {MASTER} 500\n"
        f"sentinel failover-timeout {MASTER} 3000\n"
    )
    command = [str(BINARIES["valkey"]), str(config), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            until(lambda: knows_a_replica(client))
        yield port
    finally:
        process.kill()
        process.wait()


def knows_a_replica(client: redis.Redis) -> bool:
    """Return whether a Sentinel answers, and could promote another server."""
    try:
        return bool(client.sentinel_slaves(MASTER))
    except redis.RedisError:
        return False


def crawl_with_failover(kind: Kind, watched: tuple[Server, int], key: str, directory: Path) -> tuple[Any, Scene]:
    """A crawl in the middle of which the master is killed for good."""
    master, port = watched
    params = f'{{"redis_cls": "{FromSentinel.__module__}.{FromSentinel.__qualname__}"}}'
    with scene(tree(PAGES), directory, f"redis://127.0.0.1:{port}", key) as played:
        played.moments.when(MIDDLE, lambda _: master.kill())
        return played.crawl(kind, REDIS_PARAMS=params), played


def test_failover(watched: tuple[Server, int], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The crawl pauses until there is another master, goes on there, and fetches every page."""
    ended, played = crawl_with_failover(OURS, watched, key, tmp_path)
    tell(capsys, f"Sentinel failover: BloomScheduler missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed == set()
    assert_ended_well(ended)
    assert played.twice == 0
    assert [line for line in complaints_in(ended.log) if "the crawl goes on" in line]


def test_failover_under_scrapy_redis(
    watched: tuple[Server, int], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: scrapy-redis misses pages."""
    ended, played = crawl_with_failover(STOCK, watched, key, tmp_path)
    reason = ended.stats["finish_reason"]
    tell(capsys, f"Sentinel failover: scrapy-redis missed {len(played.missed)} of {PAGES}, {reason!r}")
    assert played.missed
