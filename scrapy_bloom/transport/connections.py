"""The connections that a client has had: behind a new one the server's data may be older than what replies said before.

A server that is started from a snapshot, and a replica that is promoted, lack the last writes of before. Neither says
so, but no connection survives either. A second connection of a pool is new once as well, and then known.
"""

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet


class KnownConnections:
    """Counts connections by their sockets, each of which leads to one process for as long as it lives."""

    def __init__(self) -> None:
        self.number = 0
        self._last: Any = None
        self._sockets: WeakSet[Any] = WeakSet()

    def note(self, connection: Any) -> None:
        """Count a connection of redis-py, unless it is known."""
        # A connection that caches replies wraps another.
        sock = getattr(connection, "_conn", connection)._sock
        # Nearly always it is that of the last command.
        if sock is self._last:
            return
        self._last = sock
        if sock is not None and sock not in self._sockets:
            self._sockets.add(sock)
            self.number += 1


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
