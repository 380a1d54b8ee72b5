"""A master becomes a replica at the same address: the next attempt finds the new master.

Behind a load balancer or a name, old connections stay with the old server, which answers READONLY for ever.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from tests.support.faults import FaultProxy, proxying
from tests.support.retries import assert_waited_once
from tests.support.servers import EACH_KIND, Server, running
from tests.support.waiting import until


@dataclass
class Address:
    """An address of one server, and later of another."""

    proxy: FaultProxy
    old: Server
    new: Server

    def replicate(self) -> None:
        """Make the new server a replica in sync with the old one."""
        with self.new.client() as replica:
            replica.replicaof("127.0.0.1", self.old.port)
            until(lambda: replica.info("replication")["master_link_status"] == "up")

    def fail_over(self) -> None:
        """Make the old server a replica, and route new connections to the new one."""
        with self.old.client() as old, self.new.client() as new:
            new.replicaof("NO", "ONE")
            # Its master does not answer, so the replica keeps its data.
            with socket.create_server(("127.0.0.1", 0)) as silent:
                old.replicaof("127.0.0.1", silent.getsockname()[1])
        self.proxy.upstream = self.new.port


@pytest.fixture(scope="module", params=EACH_KIND)
def two_servers(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """Two servers, each of which becomes the master repeatedly."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with running(request.param, *at_once) as old, running(request.param, *at_once) as new:
        yield old, new


@pytest.fixture
def address(two_servers: tuple[Server, Server]) -> Iterator[Address]:
    """An address whose server is a master again."""
    old, new = two_servers
    with old.client() as master:
        master.replicaof("NO", "ONE")
    with proxying(old.port) as proxy:
        yield Address(proxy, old, new)


def over(pool_class: Any) -> Callable[[int], Any]:
    """Make clients over a pool of this class."""
    return lambda port: redis.Redis.from_pool(pool_class(host="127.0.0.1", port=port, max_connections=3))


CLIENTS: dict[str, Callable[[int], Any]] = {
    "pool": over(redis.ConnectionPool),
    "blocking pool": over(redis.BlockingConnectionPool),
    "a single connection": lambda port: redis.Redis("127.0.0.1", port, single_connection_client=True),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_filter_goes_on(address: Address, key: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A filter at this address waits for a moment, and still knows its items."""
    with contextlib.closing(CLIENTS[kind](address.proxy.port)) as client:
        bloom = BloomFilter(client, key, capacity=1000)
        assert bloom.add("a")
        address.replicate()
        address.fail_over()
        assert bloom.add_many(["b", "c"]) == [True, True]
        assert_waited_once(caplog, "ReadOnlyError")
        assert bloom.add_many(["a", "b"]) == [False, False]


def test_idle_connections_are_dropped_too(address: Address, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A single reply of a replica drops the pool's idle connections, too."""
    with contextlib.closing(CLIENTS["pool"](address.proxy.port)) as client:
        pool = client.connection_pool
        for connection in [pool.get_connection() for _ in range(3)]:
            pool.release(connection)
        bloom = BloomFilter(client, key, capacity=1000)
        bloom.add("a")
        address.replicate()
        address.fail_over()
        bloom.add("b")
        assert_waited_once(caplog, "ReadOnlyError")
        taken = [pool.get_connection() for _ in range(3)]
        for connection in taken:
            connection.send_command("SET", key, "new")
            assert connection.read_response() == b"OK"
            pool.release(connection)
