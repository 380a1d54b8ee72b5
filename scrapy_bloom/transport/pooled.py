"""The transport for a `redis.Redis`: all commands in one round trip, over a connection from its pool.

It packs commands and reads replies itself. Of a check by redis-py's `execute_command` or pipeline, most of the time in
the process is redis-py's (`python -m benchmarks micro`). Everything that is not a check may as well use redis-py.
"""

from collections.abc import Sequence
from typing import Any

from redis import Redis, ResponseError

from scrapy_bloom.transport.borrowing import Borrower
from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.connections import KnownConnections
from scrapy_bloom.transport.failures import is_from_replica
from scrapy_bloom.transport.reconnecting import drop_idle_connections


class PooledTransport:
    """Sends commands together over one pooled connection, and reads all replies."""

    def __init__(self, client: Redis) -> None:
        self._borrower = Borrower(client.connection_pool)
        self._known = KnownConnections()

    @property
    def connections(self) -> int:
        """The number of connections over which replies came."""
        return self._known.number

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and return their replies; raise the first error among them."""
        connection = self._borrower.take()
        try:
            connection.send_packed_command([b"".join([command.pack() for command in commands])])
            replies = [_read(connection, command.is_binary) for command in commands]
            self._known.note(connection)
            errors = [reply for reply in replies if isinstance(reply, ResponseError)]
            if errors and any(is_from_replica(error) for error in errors):
                drop_idle_connections(self._borrower.pool)
                connection.disconnect()
        except BaseException:
            # Replies left unread would be taken for those of the next commands.
            connection.disconnect()
            self._borrower.give_back(connection)
            raise
        self._borrower.give_back(connection)
        if errors:
            raise errors[0]
        return replies


def _read(connection: Any, is_binary: bool) -> Any:
    try:
        return connection.read_response(disable_decoding=is_binary)
    except ResponseError as error:
        return error
