"""Dropping the connections that lead to a server which is no master any more.

A load balancer, a name or a Sentinel sends whoever connects anew to the new master. A connection that was open before
stays with the old one.
"""

import contextlib
import queue
from typing import Any

from redis import BlockingConnectionPool


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
