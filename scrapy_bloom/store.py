"""Where operations are carried out: a Redis server, or this process; a store knows nothing of what they mean."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.line import Client, line
from scrapy_bloom.ops import Op


class Said(list[Any]):
    """What the operations of one round trip say.

    `repeated`: an earlier attempt whose reply was lost may have carried some of them out already.
    """

    repeated = False


class Store(Protocol):
    """Carries out operations."""

    def execute(self, ops: Sequence[Op]) -> Said:
        """Carry out operations in their order, in one round trip, and return what each says."""


class RedisStore:
    """Operations as commands to a Redis-compatible server or cluster."""

    def __init__(self, client: Client) -> None:
        self._line = line(client)

    def execute(self, ops: Sequence[Op]) -> Said:
        """Each operation is one command."""
        try:
            replies = self._line.send([op.wire() for op in ops])
        except UnicodeDecodeError:
            raise WrongTypeError(
                "a key of the filter holds bytes that are not UTF-8, which no filter stores: use another key"
            ) from None
        return Said(op.reply(raw) for op, raw in zip(ops, replies, strict=True))


class MemoryStore:
    """Operations on this process's own memory; `now` may be any clock that gives seconds."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.hashes: dict[str, dict[str, str]] = {}
        self.strings: dict[str, bytearray] = {}
        self._now = now

    def now(self) -> float:
        """The clock's time in seconds."""
        return self._now()

    def execute(self, ops: Sequence[Op]) -> Said:
        """Carry out operations one after another; nothing comes between those of one call."""
        return Said(op.apply(self) for op in ops)
