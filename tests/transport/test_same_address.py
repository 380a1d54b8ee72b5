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

from devtools.proxy.faults import FaultProxy, proxying
from devtools.waiting import until
from scrapy_bloom import BloomFilter
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Command
from tests.support.retries import assert_waited_once, filter_at
from tests.support.servers import KINDS, Server, running

SCRIPT = "return redis.call('SET', KEYS[1], ARGV[1])"


@dataclass
class Address:
    """An address of one server, and later of another."""

    proxy: FaultProxy
    old: Server
    new: Server

    @property
    def port(self) -> int:
        return self.proxy.port

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


@pytest.fixture(scope="module", params=KINDS)
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


class Wrapped(redis.Redis):
    """A client whose commands pass through user code."""

    def execute_command(self, *args: object, **kwargs: object) -> object:
        return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]


def over(pool_class: Any, client_class: type[redis.Redis]) -> Callable[[int], Any]:
    """Make clients over a pool of this class."""
    return lambda port: client_class.from_pool(pool_class(host="127.0.0.1", port=port, max_connections=3))


CLIENTS: dict[str, Callable[[int], Any]] = {
    "pool": over(redis.ConnectionPool, redis.Redis),
    "blocking pool": over(redis.BlockingConnectionPool, redis.Redis),
    "wrapped": over(redis.ConnectionPool, Wrapped),
    "wrapped, blocking pool": over(redis.BlockingConnectionPool, Wrapped),
    "a single connection": lambda port: redis.Redis("127.0.0.1", port, single_connection_client=True),
}
WRITES: dict[str, Callable[[str], list[Command]]] = {
    "command": lambda key: [Command("SET", key, "new")],
    "commands": lambda key: [Command("GET", key), Command("SET", key, "new"), Command("GET", key)],
    "script": lambda key: [Command("EVAL", SCRIPT, 1, key, "new")],
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", CLIENTS)
def test_the_next_attempt_connects_anew(address: Address, key: str, kind: str, write: str) -> None:
    """A connection with a replica's reply is not used again."""
    commands = WRITES[write](key)
    with contextlib.closing(CLIENTS[kind](address.port)) as client:
        ours = transport_for(client)
        ours.execute([Command("SET", key, "old")])
        address.fail_over()
        with pytest.raises(redis.RedisError):
            ours.execute(commands)
        ours.execute(commands)
    with address.new.client() as new:
        assert new.get(key) == b"new"


@pytest.mark.parametrize("kind", [kind for kind in CLIENTS if kind != "a single connection"])
def test_idle_connections_are_dropped_too(address: Address, key: str, kind: str) -> None:
    """A single reply of a replica drops the pool's idle connections, too."""
    with contextlib.closing(CLIENTS[kind](address.port)) as client:
        pool = client.connection_pool
        for connection in [pool.get_connection() for _ in range(3)]:
            pool.release(connection)
        address.fail_over()
        with pytest.raises(redis.RedisError):
            transport_for(client).execute([Command("SET", key, "new")])
        taken = [pool.get_connection() for _ in range(3)]
        for connection in taken:
            connection.send_command("SET", key, "new")
            assert connection.read_response() == b"OK"
            pool.release(connection)


def test_connections_in_use_are_kept(address: Address, key: str) -> None:
    """Only idle connections are dropped: another thread keeps its borrowed connection."""
    with contextlib.closing(CLIENTS["blocking pool"](address.port)) as client:
        pool = client.connection_pool
        used, idle = pool.get_connection(), pool.get_connection()
        pool.release(idle)
        address.fail_over()
        with pytest.raises(redis.RedisError):
            transport_for(client).execute([Command("SET", key, "new")])
        used.send_command("PING")
        assert used.read_response() == b"PONG"
        pool.release(used)
        # The pool has lost no connection: it has as many as before.
        for connection in [pool.get_connection() for _ in range(3)]:
            pool.release(connection)


@pytest.mark.parametrize("use", [lambda bloom: bloom.add("b"), lambda bloom: bloom.add_many(["b", "c"])[0]])
def test_a_filter_goes_on(
    address: Address, key: str, use: Callable[[BloomFilter], bool], caplog: pytest.LogCaptureFixture
) -> None:
    """A filter at this address waits for a moment, and still knows its items."""
    with filter_at(address.port, key) as bloom:
        assert bloom.add("a")
        address.replicate()
        address.fail_over()
        assert use(bloom)
        assert_waited_once(caplog, "ReadOnlyError")
        assert bloom.add_many(["a", "b"]) == [False, False]
