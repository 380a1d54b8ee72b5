"""Connections borrowed from redis-py's pool: replies match, the pool stays intact."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

from devtools.proxy.faults import Place, proxying
from devtools.waiting import LIMIT, until
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.retry import disable_client_retries
from scrapy_bloom.transport.transport import Transport
from tests.support.servers import Server


def echo(transport: Transport, text: str) -> None:
    """Assert that the reply to ECHO is its argument."""
    assert transport.execute([Command("ECHO", text)]) == [text.encode()]


def counts(pool: Any) -> tuple[int, int]:
    """Return how many connections of a pool are idle, and how many are in use."""
    return len(pool._available_connections), len(pool._in_use_connections)


class CountingPool(redis.ConnectionPool):
    """A user's own pool class, which records each connection taken and released."""

    taken = released = 0

    def get_connection(self, *args: Any, **options: Any) -> Any:
        self.taken += 1
        return super().get_connection(*args, **options)

    def release(self, connection: Any) -> None:
        self.released += 1
        super().release(connection)


@contextmanager
def counted(server: Server) -> Iterator[tuple[redis.Redis, Callable[[], int]]]:
    """A client, and a function that counts the connections ever opened to its server."""
    with server.client() as client, server.client() as other:
        yield client, lambda: int(other.info("stats")["total_connections_received"])


def test_one_connection_for_all(server: Server) -> None:
    """Several transports send all their commands over one connection, which is idle in between."""
    with counted(server) as (client, opened):
        transports = [transport_for(client) for _ in range(3)]
        before = opened()
        for number in range(10):
            for transport in transports:
                echo(transport, f"{number}")
                assert counts(client.connection_pool) == (1, 0)
        assert opened() == before + 1
        assert [transport.connections for transport in transports] == [1, 1, 1]


def test_a_client_with_one_connection(server: Server) -> None:
    """Two transports and the client itself share the only connection allowed."""
    with server.client(max_connections=1) as client:
        transports = [transport_for(client) for _ in range(2)]
        for number in range(5):
            for transport in transports:
                echo(transport, f"{number}")
            assert client.echo(f"{number}") == f"{number}".encode()


@pytest.mark.parametrize("most", [2, 8])
def test_threads(server: Server, most: int) -> None:
    """Threads that share a client, by transports and by its own methods, get their own replies."""
    with server.client(max_connections=most) as client:
        transport = transport_for(client)

        def ask(number: int) -> None:
            echo(transport, f"a{number}")
            echo(transport_for(client), f"b{number}")
            if most == 8:
                assert client.echo(f"c{number}") == f"c{number}".encode()

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(ask, range(300))) == [None] * 300
        idle, used = counts(client.connection_pool)
        assert idle <= most
        assert used == 0


def test_a_reply_that_somebody_left(client: redis.Redis) -> None:
    """A connection with an unread reply is reopened."""
    transport, pool = transport_for(client), client.connection_pool
    echo(transport, "before")
    connection: Any = pool.get_connection()
    connection.send_command("ECHO", "left")
    until(connection.can_read)
    pool.release(connection)
    echo(transport, "next")
    assert transport.connections == 2


def patiently(transport: Transport, command: Command) -> list[Any]:
    """Execute a command, again if a busy machine exceeds the socket timeout."""
    for _ in range(1000):
        with suppress(redis.TimeoutError):
            return transport.execute([command])
    raise AssertionError("it never came")


def test_a_reply_that_comes_too_late(valkey: Server, key: str) -> None:
    """A reply that comes too late is not read as that of the next command."""
    with (
        proxying(valkey.port, "ECHO") as proxy,
        redis.Redis("127.0.0.1", proxy.port, socket_timeout=0.02) as client,
    ):
        disable_client_retries(client)
        transport = transport_for(client)
        proxy.late_seconds = LIMIT
        for place in (Place.LATE, Place.STALL, Place.REPLY, Place.LATE):
            proxy.late.clear()
            patiently(transport, Command("SET", key, place))
            proxy.fail(place)
            with pytest.raises((redis.TimeoutError, redis.ConnectionError)):
                echo(transport, place)
            proxy.late.set()
            assert patiently(transport, Command("GET", key)) == [place.encode()]
            assert counts(client.connection_pool) == (1, 0)


def test_a_client_that_is_closed(server: Server) -> None:
    """`close` closes a transport's connection, too; the next command reopens it."""
    with counted(server) as (client, opened), server.client() as other:
        transport = transport_for(client)
        echo(transport, "before")
        (connection,) = client.connection_pool._available_connections
        ours = connection._sock.getsockname()[1]
        client.close()
        until(lambda: all(not each["addr"].endswith(f":{ours}") for each in other.client_list()))
        before = opened()
        echo(transport, "after")
        assert opened() == before + 1
        assert transport.connections == 2


def test_a_forked_process(server: Server) -> None:
    """A forked child opens its own connection: over its parent's it could read the other's replies."""
    with server.client() as client:
        transport = transport_for(client)
        ours = transport.execute([Command("CLIENT", "ID")])[0]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, f"{transport.execute([Command('CLIENT', 'ID')])[0]}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert int(os.read(reading, 100)) > ours
        assert transport.execute([Command("CLIENT", "ID")]) == [ours]


def test_a_pool_of_another_class(server: Server) -> None:
    """A pool of a user's class provides and gets back every connection itself."""
    pool = CountingPool(host="127.0.0.1", port=server.port)
    with redis.Redis(connection_pool=pool) as client:
        transport = transport_for(client)
        for number in range(5):
            echo(transport, f"{number}")
        assert (pool.taken, pool.released) == (5, 5)
        pool.disconnect()


def test_credentials_that_change(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose password is renewed is released by redis-py, which then sends the new one."""
    released: list[Any] = []
    release = redis.ConnectionPool.release

    def noted(pool: Any, connection: Any) -> None:
        released.append(connection)
        release(pool, connection)

    monkeypatch.setattr(redis.ConnectionPool, "release", noted)
    provider = redis.UsernamePasswordCredentialProvider("default", "any")
    with server.client(credential_provider=provider) as client:
        transport = transport_for(client)
        for number in range(5):
            echo(transport, f"{number}")
    assert len(released) == 5


def test_a_connection_that_is_to_move(client: redis.Redis) -> None:
    """A connection that redis-py marks for reconnecting is released by redis-py."""
    transport = transport_for(client)
    echo(transport, "before")
    (connection,) = client.connection_pool._available_connections
    connection._should_reconnect = True
    echo(transport, "over the old one")
    if hasattr(connection, "should_reconnect"):
        assert connection._sock is None
    echo(transport, "over the new one")
