"""The transport for clients of other classes: one command per round trip."""

from collections.abc import Sequence
from typing import Any, Protocol

from redis.client import NEVER_DECODE

from scrapy_bloom.transport.commands import Command, Failure
from scrapy_bloom.transport.connections import KnownConnections, connections_of, drop_connections, in_turn
from scrapy_bloom.transport.failures import FAULTS, is_from_replica
from scrapy_bloom.transport.scripts import KnownScripts
from scrapy_bloom.transport.transport import Transport, failed_round_trip


class _Executes(Protocol):
    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class SequentialTransport(Transport):
    """Sends each command with the client's own `execute_command` and waits for its reply."""

    def __init__(self, client: _Executes) -> None:
        self.connections = 0
        self._client = client
        self._known = KnownConnections()
        self._scripts = KnownScripts()

    def attempt(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands one by one, and none after the first fault."""
        outcomes: list[Any] = []
        for command in commands:
            try:
                outcomes.append(self._call(command))
            except FAULTS as error:
                outcomes += failed_round_trip(error, 1)
                outcomes += [Failure(error, is_in_doubt=False)] * (len(commands) - len(outcomes))
                break
        for connection in connections_of(self._client):
            self._known.note(connection)
        self.connections = self._known.number
        return outcomes

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
