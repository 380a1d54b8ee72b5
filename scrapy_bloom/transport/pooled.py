"""The transport for a `redis.Redis`: all commands in one round trip over a pooled connection.

redis-py's `get_connection` and `release` took a quarter of the CPU time of a check, mostly for metrics and an event.
`Borrower` moves an idle connection between the pool's own two lists instead, under the pool's lock. The connection
always belongs to the pool, so that `max_connections`, `disconnect` and other threads work as usual. redis-py opens and
reopens connections, and manages pools of other classes.

The transport also packs commands and reads replies itself: redis-py's `execute_command` and pipeline take most of the
time of a check in this process (`python -m benchmarks micro`).
"""

import os
from collections.abc import Sequence
from typing import Any

from redis import ConnectionPool, Redis

from scrapy_bloom.transport.commands import Command, Failure
from scrapy_bloom.transport.connections import KnownConnections, drop_idle_connections, in_turn, is_ready, read_reply
from scrapy_bloom.transport.failures import FAULTS, is_from_replica
from scrapy_bloom.transport.scripts import KnownScripts
from scrapy_bloom.transport.transport import Transport, failed_round_trip


class Borrower:
    """Takes connections from a pool and returns them."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self._is_plain = _is_plain(pool)

    def take(self) -> Any:
        """Return a connection that is ready for a command, for exclusive use until `release`."""
        pool, connection, can_be_used = self.pool, None, False
        # A forked process inherits its parent's lists; redis-py empties them.
        if self._is_plain and pool.pid == os.getpid():
            try:
                with pool._lock:
                    if pool._available_connections:
                        # Added to one list before it leaves the other: Ctrl-C in between loses no connection.
                        pool._in_use_connections.add(pool._available_connections[-1])
                        connection = pool._available_connections.pop()
                can_be_used = connection is not None and is_ready(connection)
            finally:
                if connection is not None and not can_be_used:
                    # With RESP3, redis-py 8 would use it, and take the unread bytes for push messages of the server.
                    connection.disconnect()
                    pool.release(connection)
        return connection if can_be_used else in_turn(pool.get_connection)

    def release(self, connection: Any) -> None:
        """Return a connection to the pool after all replies were read, or after it was disconnected."""
        pool = self.pool
        # redis-py 7 and newer reopen a connection if the server has announced that it will move.
        if self._is_plain and pool.pid == os.getpid() and not getattr(connection, "_should_reconnect", False):
            with pool._lock:
                if connection in pool._in_use_connections:
                    pool._available_connections.append(connection)
                    pool._in_use_connections.remove(connection)
        else:
            pool.release(connection)


def _is_plain(pool: Any) -> bool:
    """Return whether a pool has the two lists of redis-py 6 to 8, and does nothing but keep connections in them."""
    return (
        type(pool) is ConnectionPool
        and getattr(pool, "cache", None) is None
        # `release` renews the token of such a connection.
        and pool.connection_kwargs.get("credential_provider") is None
        and isinstance(getattr(pool, "_available_connections", None), list)
        and isinstance(getattr(pool, "_in_use_connections", None), set)
        and hasattr(pool, "_lock")
    )


class PooledTransport(Transport):
    """Sends commands together over one pooled connection and reads all replies.

    Attributes:
        connections: the number of connections that have carried replies.
    """

    def __init__(self, client: Redis) -> None:
        self.connections = 0
        self._borrower = Borrower(client.connection_pool)
        self._known = KnownConnections()
        self._scripts = KnownScripts()

    def attempt(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip; if the connection fails meanwhile, all of them are in doubt."""
        # Not called for a BITFIELD, which is sent most, and is of a class of its own.
        hashed = self._scripts.by_hash(commands[-1]) if commands and type(commands[-1]) is Command else None
        if hashed is None:
            return self._round_trip(commands)
        outcomes = self._round_trip([*commands[:-1], hashed])
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if failures == [outcomes[-1]] and self._scripts.was_refused(failures[0].error):
            outcomes[-1:] = self._round_trip(commands[-1:])
        return outcomes

    def _round_trip(self, commands: Sequence[Command]) -> list[Any]:
        try:
            connection = self._borrower.take()
        except FAULTS as error:
            return [Failure(error, is_in_doubt=False)] * len(commands)
        try:
            connection.send_packed_command([b"".join([command.pack() for command in commands])])
            outcomes = [read_reply(connection, command) for command in commands]
            sock = getattr(connection, "_sock", None)
            # Nearly always the socket of the last command. A caching connection has none of its own.
            if sock is None or sock is not self._known.last:
                self._known.note(connection)
                self.connections = self._known.number
            if any(isinstance(outcome, Failure) and is_from_replica(outcome.error) for outcome in outcomes):
                drop_idle_connections(self._borrower.pool)
                connection.disconnect()
        except FAULTS as error:
            connection.disconnect()
            outcomes = failed_round_trip(error, len(commands))
        except BaseException:
            # Unread replies would be taken for the replies to the next commands.
            connection.disconnect()
            self._borrower.release(connection)
            raise
        self._borrower.release(connection)
        return outcomes
