"""Track a client's connections: data behind a new one may be older than earlier replies.

A server restarted from a snapshot and a promoted replica lack the last writes. Neither reports the loss, but no
connection survives either event. Each further connection of a pool counts as new once.

After a failover, a load balancer, a DNS name or a Sentinel sends new connections to the new master. Open connections
stay with the old master.
"""

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from weakref import WeakSet

from redis import BlockingConnectionPool, ResponseError
from redis.exceptions import BusyLoadingError, RedisError

from scrapy_bloom.transport.commands import Command, Failure
from scrapy_bloom.transport.failures import FAULTS, was_not_executed

# How long a thread waits for a connection in use by another thread, and how often it tries.
_MAX_TURN_SECONDS = 1.0
_PAUSE_SECONDS = 0.001
# redis-py's error text if every connection of a pool is in use; nothing was sent.
_ALL_IN_USE = "Too many connections"

T = TypeVar("T")


class KnownConnections:
    """Counts connections by their sockets: a socket leads to the same server process all its life.

    Attributes:
        number: connections so far.
        last: the socket of the connection that was noted last.
    """

    def __init__(self) -> None:
        self.number = 0
        self.last: Any = None
        self._sockets: WeakSet[Any] = WeakSet()

    def note(self, connection: Any) -> None:
        """Count a connection of redis-py unless it is known."""
        # A caching connection wraps another one.
        sock = getattr(getattr(connection, "_conn", connection), "_sock", None)
        self.last = sock
        if sock is not None and sock not in self._sockets:
            self._sockets.add(sock)
            self.number += 1


def is_ready(connection: Any) -> bool:
    """Return whether a connection is open and has no unread bytes, such as a late reply."""
    try:
        return getattr(connection, "_sock", None) is not None and not connection.can_read()
    except (RedisError, OSError):
        return False


def read_reply(connection: Any, command: Command) -> Any:
    """Return the reply to a command, or a `Failure` with the server's error. Any other error leaves replies unread."""
    try:
        # redis-py takes LOADING for a fault of the connection, and would close it in front of the other replies.
        return connection.read_response(disable_decoding=command.is_binary, disconnect_on_error=False)
    except (ResponseError, BusyLoadingError) as error:
        return Failure(error, is_in_doubt=not was_not_executed(error))


def in_turn(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Return the result of a call that takes a pooled connection; wait while other threads use them all.

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


def connections_of(client: Any) -> Iterator[Any]:
    """Yield a client's current connections, including those to a cluster's nodes, as far as it exposes them."""
    connection, pool = getattr(client, "connection", None), getattr(client, "connection_pool", None)
    if hasattr(client, "get_nodes"):
        for node in client.get_nodes():
            yield from connections_of(node.redis_connection)
    elif connection is not None:
        yield connection
    elif pool is not None:
        # The attributes of redis-py 6 to 8; a blocking pool has a single list. Copied: other threads use the pool.
        for name in ("_connections", "_available_connections", "_in_use_connections"):
            yield from list(getattr(pool, name, ()))


def drop_connections(client: Any) -> None:
    """Close a client's idle connections, so that it reconnects. A cluster client does so by itself."""
    connection, pool = getattr(client, "connection", None), getattr(client, "connection_pool", None)
    if connection is not None:
        with client.single_connection_lock:
            connection.disconnect()
    elif pool is not None:
        drop_idle_connections(pool)


def drop_idle_connections(pool: Any) -> None:
    """Close a pool's idle connections. They stay in the pool and reconnect when taken."""
    if not isinstance(pool, BlockingConnectionPool):
        pool.disconnect(inuse_connections=False)
        return
    # Its own `disconnect` also closes connections in use (redis-py 6), or about to be used by a thread (redis-py 8).
    taken: list[Any] = []
    with contextlib.suppress(queue.Empty):
        while True:
            taken.append(pool.pool.get_nowait())
    for connection in reversed(taken):
        if connection is not None:
            connection.disconnect()
        pool.pool.put_nowait(connection)
