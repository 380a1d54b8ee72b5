"""The transport for clusters and other classes of clients: one command per round trip."""

from collections.abc import Sequence
from typing import Any, Protocol

from redis.client import NEVER_DECODE

from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.connections import KnownConnections, connections_of, drop_connections, in_turn
from scrapy_bloom.transport.failures import FAULTS, is_from_replica
from scrapy_bloom.transport.scripts import KnownScripts


class _Executes(Protocol):
    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class SequentialTransport:
    """Sends each command with the client's own `execute_command` and waits for its reply.

    redis-py's cluster pipeline keeps no order between nodes. It also silently sends commands again if a reply was lost,
    and has no option to turn this off.
    """

    def __init__(self, client: _Executes) -> None:
        self._client = client
        self._known = KnownConnections()
        self._scripts = KnownScripts()

    @property
    def connections(self) -> int:
        """The number of connections that the client has had."""
        return self._known.number

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands one by one, and stop at the first error."""
        replies = [self._call(command) for command in commands]
        for connection in connections_of(self._client):
            self._known.note(connection)
        return replies

    def _call(self, command: Command) -> Any:
        hashed = self._scripts.by_hash(command)
        if hashed is not None:
            try:
                return self._send(hashed)
            except FAULTS as error:
                if not self._scripts.was_refused(error):
                    raise
        return self._send(command)

    def _send(self, command: Command) -> Any:
        options = {NEVER_DECODE: True} if command.is_binary else {}
        try:
            return in_turn(self._client.execute_command, *command.arguments, **options)
        except FAULTS as error:
            if is_from_replica(error):
                drop_connections(self._client)
            raise
