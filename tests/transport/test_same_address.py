"""A master becomes a replica at the same address: the next attempt finds the new master.

Behind a load balancer or a name, old connections stay with the old server, which answers READONLY for ever.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from tests.support.faults import proxying
from tests.support.retries import assert_waited_once
from tests.support.servers import EACH_KIND, Server, running
from tests.support.waiting import until


@pytest.fixture(scope="module", params=EACH_KIND)
def two_servers(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """Two servers, each of which becomes the master repeatedly."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with running(request.param, *at_once) as old, running(request.param, *at_once) as new:
        yield old, new


def over(pool_class: Any) -> Callable[[int], Any]:
    """Make clients over a pool of this class."""
    return lambda port: redis.Redis.from_pool(pool_class(host="127.0.0.1", port=port, max_connections=3))


CLIENTS: dict[str, Callable[[int], Any]] = {
    "pool": over(redis.ConnectionPool),
    "blocking pool": over(redis.BlockingConnectionPool),
    "a single connection": lambda port: redis.Redis("127.0.0.1", port, single_connection_client=True),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_filter_goes_on(
    two_servers: tuple[Server, Server], key: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A filter at this address waits for a moment, and still knows its items."""
    old, new = two_servers
    with old.client() as master, new.client() as replica, proxying(old.port) as proxy:
        master.replicaof("NO", "ONE")
        with contextlib.closing(CLIENTS[kind](proxy.port)) as client:
            bloom = BloomFilter(client, key, capacity=1000)
            assert bloom.add("a")
            replica.replicaof("127.0.0.1", old.port)
            until(lambda: replica.info("replication")["master_link_status"] == "up")
            replica.replicaof("NO", "ONE")
            # Its master does not answer, so the old one keeps its data.
            with socket.create_server(("127.0.0.1", 0)) as silent:
                master.replicaof("127.0.0.1", silent.getsockname()[1])
            proxy.upstream = new.port
            assert bloom.add_many(["b", "c"]) == [True, True]
            assert_waited_once(caplog, "ReadOnlyError")
            assert bloom.add_many(["a", "b"]) == [False, False]
