"""A server returns to an older state: a worker asks again for cached items of the lost time.

A snapshot is older than later additions, and a replica may lack the last second of its master. The filter's id is the
same in both: the caller's number shows the rollback.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from devtools.sentinels import MASTER, knows_master, watching
from scrapy_bloom import BloomFilter
from scrapy_bloom.transport.client import disconnect
from scrapy_bloom.transport.urls import FromUrl
from tests.support.clusters import cluster_client, running_cluster
from tests.support.dupefilters import build, page
from tests.support.servers import Server, running

LOST = [f"lost {number}" for number in range(50)]

Making = Callable[[Server, Path], AbstractContextManager[Any]]


@contextlib.contextmanager
def by_sentinel(server: Server, directory: Path) -> Iterator[Any]:
    """A client of the master that a Sentinel names."""
    with watching(server, directory, knows_master) as watch:
        client = FromUrl.from_url(f"redis+sentinel://127.0.0.1:{watch.port}/{MASTER}")
        yield client
        disconnect(client)


CLIENTS: dict[str, Making] = {
    "pool": lambda server, _: server.client(),
    "sentinel": by_sentinel,
    "cluster": lambda server, _: cluster_client(server),
}


@contextlib.contextmanager
def clients(kind: str, directory: Path) -> Iterator[tuple[Server, Any]]:
    """A server of this test's own, and a client of this kind."""
    with contextlib.ExitStack() as stack:
        (server,) = (
            stack.enter_context(running_cluster(1)) if kind == "cluster" else [stack.enter_context(running("valkey"))]
        )
        yield server, stack.enter_context(CLIENTS[kind](server, directory))


def save(server: Server) -> None:
    """Make a server write the snapshot that it starts from."""
    with server.client() as client:
        client.save()


def roll_back(server: Server) -> None:
    """Kill a server and start it from its last snapshot."""
    server.kill()
    server.start()


@pytest.mark.parametrize("kind", CLIENTS)
def test_what_the_server_lost_is_new(kind: str, key: str, tmp_path: Path) -> None:
    """The batch that meets the rollback also asks for the items that it had found in the cache; each is new once."""
    with clients(kind, tmp_path) as (server, client):
        bloom = BloomFilter(client, key, capacity=20_000)
        assert bloom.add("kept")
        save(server)
        assert all(bloom.add_many(LOST))
        roll_back(server)
        assert bloom.add_many(["asked", "kept", *LOST, LOST[0]]) == [True, False, *[True] * len(LOST), False]
        assert not any(bloom.add_many(["kept", "asked", *LOST]))
        assert bloom.counters.losses == 1


def test_under_scrapy_redis(key: str) -> None:
    """Under scrapy-redis's scheduler the links to lost pages are taken again."""
    with running("valkey") as server:
        dupefilter = build(server, key)
        dupefilter.request_seen(page(0))
        save(server)
        assert not any(dupefilter.request_seen(page(number)) for number in range(1, 50))
        roll_back(server)
        assert not dupefilter.request_seen(page(50))
        assert not any(dupefilter.request_seen(page(number)) for number in range(1, 50))
        assert dupefilter.request_seen(page(0))
        assert all(dupefilter.request_seen(page(number)) for number in range(51))
