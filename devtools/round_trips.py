"""Counts round trips: each send of redis-py's connections, by any caller."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis.connection import AbstractConnection


@dataclass
class Sent:
    """The number of sends, and of their bytes."""

    trips: int = 0
    bytes: int = 0


@contextmanager
def counting() -> Iterator[Sent]:
    """Count all data sent to Redis by this process for as long as the block lasts."""
    sent = Sent()
    send = AbstractConnection.send_packed_command

    def counted(self: AbstractConnection, command: Any, *args: Any, **kwargs: Any) -> None:
        sent.trips += 1
        sent.bytes += sum(map(len, command)) if isinstance(command, list | tuple) else len(command)
        send(self, command, *args, **kwargs)  # type: ignore[no-untyped-call]

    AbstractConnection.send_packed_command = counted  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        AbstractConnection.send_packed_command = send  # type: ignore[method-assign]
