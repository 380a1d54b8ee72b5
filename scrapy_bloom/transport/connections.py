"""Track a client's connections: behind a new one, the server's data may be older than earlier replies.

A server that is started from a snapshot, and a replica that is promoted, lack the last writes of before. Neither says
so, but no connection survives either. A second connection of a pool is new once as well, and then known.

A load balancer, a name or a Sentinel sends whoever connects anew to the new master. A connection that was open before
stays with the old one.
"""

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from weakref import WeakSet

from redis import BlockingConnectionPool

from scrapy_bloom.transport.failures import FAULTS

# Seconds for which a thread waits for a connection that another one uses, and after which it tries again.
_MAX_TURN_SECONDS = 1.0
_PAUSE_SECONDS = 0.001
# redis-py's words where every connection of a pool is in use; nothing was sent then.
_ALL_IN_USE = "Too many connections"

T = TypeVar("T")


class KnownConnections:
    """Counts connections by their sockets, each of which leads to one process for as long as it lives."""

    def __init__(self) -> None:
        self.number = 0
        self._last: Any = None
        self._sockets: WeakSet[Any] = WeakSet()

    def note(self, connection: Any) -> None:
        """Count a connection of redis-py, unless it is known."""
        # A connection that caches replies wraps another.
        sock = getattr(getattr(connection, "_conn", connection), "_sock", None)
        # Nearly always it is that of the last command.
        if sock is self._last:
            return
        self._last = sock
        if sock is not None and sock not in self._sockets:
            self._sockets.add(sock)
            self.number += 1


def in_turn(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Return the result of a call that takes a connection of a pool, and wait where another thread has the last one.

    A crawl's heartbeats and its reactor share a pool. With `max_connections=1` they take turns.
    """
    end = 0.0
    while True:
        try:
            return call(*arguments, **options)
        except FAULTS as error:
            now = time.monotonic()
            end = end or now + _MAX_TURN_SECONDS
            if _ALL_IN_USE not in str(error) or now > end:
                raise
        time.sleep(_PAUSE_SECONDS)


def disconnect(client: Any) -> None:
    """Close the connections of a client, and of a cluster's nodes; a class of a user's may have no way to."""
    close = getattr(client, "close", None)
    if close is not None:
        close()


def connections_of(client: Any) -> Iterator[Any]:
    """Yield the connections that a client has now, those of a cluster's nodes too; none of a client that shows none."""
    connection, pool = getattr(client, "connection", None), getattr(client, "connection_pool", None)
    if hasattr(client, "get_nodes"):
        for node in client.get_nodes():
            yield from connections_of(node.redis_connection)
    elif connection is not None:
        yield connection
    elif pool is not None:
        # The names that redis-py 6 to 8 have for them: a blocking pool has one list of all. A copy of each is made,
        # since another thread may use the pool.
        for name in ("_connections", "_available_connections", "_in_use_connections"):
            yield from list(getattr(pool, name, ()))


def drop_connections(client: Any) -> None:
    """Disconnect what a client holds and does not use, so that it connects anew; no client of a cluster has such."""
    connection, pool = getattr(client, "connection", None), getattr(client, "connection_pool", None)
    if connection is not None:
        with client.single_connection_lock:
            connection.disconnect()
    elif pool is not None:
        drop_idle_connections(pool)


def drop_idle_connections(pool: Any) -> None:
    """Disconnect the connections of a pool that nobody uses now; they stay in it, and connect when they are taken."""
    if not isinstance(pool, BlockingConnectionPool):
        pool.disconnect(inuse_connections=False)
        return
    # Its `disconnect` takes those in use as well (redis-py 6), or may take one that a thread is about to use (8).
    places: list[Any] = []
    with contextlib.suppress(queue.Empty):
        while True:
            places.append(pool.pool.get_nowait())
    for connection in reversed(places):
        if connection is not None:
            connection.disconnect()
        pool.pool.put_nowait(connection)
