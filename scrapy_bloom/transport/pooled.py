"""The transport for a `redis.Redis`: all commands in one round trip, over a connection from its pool.

It packs commands and reads replies itself. Of a check by redis-py's `execute_command` or pipeline, most of the time in
the process is redis-py's (`python -m benchmarks micro`). Everything that is not a check may as well use redis-py.
"""

from collections.abc import Callable, Sequence
from typing import Any

from redis import Redis, ResponseError

from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.failures import is_from_replica
from scrapy_bloom.transport.reconnecting import drop_idle_connections

_MULTI, _EXEC = Command("MULTI"), Command("EXEC")


class PooledTransport:
    """Sends commands together over one pooled connection, and reads all replies."""

    def __init__(self, client: Redis) -> None:
        self._pool: Any = client.connection_pool

    def execute(self, commands: Sequence[Command], *, transaction: bool = False) -> list[Any]:
        """Send commands and return their replies; raise the first error among them."""
        if not transaction:
            return self._round_trip(commands, _errors_among)
        replies: list[Any] = self._round_trip([_MULTI, *commands, _EXEC], _errors_in_transaction)[-1]
        return replies

    def _round_trip(
        self, commands: Sequence[Command], errors_in: Callable[[list[Any]], list[ResponseError]]
    ) -> list[Any]:
        connection = self._pool.get_connection()
        try:
            connection.send_packed_command([b"".join([command.pack() for command in commands])])
            replies = [_read(connection) for _ in commands]
            errors = errors_in(replies)
            if any(is_from_replica(error) for error in errors):
                drop_idle_connections(self._pool)
                connection.disconnect()
        except BaseException:
            # Replies left unread would be taken for those of the next commands.
            connection.disconnect()
            raise
        finally:
            self._pool.release(connection)
        if errors:
            raise errors[0]
        return replies


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _errors_among(replies: list[Any]) -> list[ResponseError]:
    return [reply for reply in replies if isinstance(reply, ResponseError)]


def _errors_in_transaction(replies: list[Any]) -> list[ResponseError]:
    """Return the errors of what was sent, or else of what was carried out: the reply to EXEC has those."""
    return _errors_among(replies) or _errors_among(replies[-1])
