"""Where operations are carried out: a Redis server, or this process; a store knows nothing of what they mean."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis import RedisCluster

from scrapy_bloom.ops import Op


class Said(list[Any]):
    """What the operations of one round trip say.

    `repeated`: an earlier attempt whose reply was lost may have carried some of them out already.
    """

    repeated = False


class Client(Protocol):
    """What is needed of a Redis client: `redis.Redis`, `redis.RedisCluster` and what behaves like them."""

    def execute_command(self, *args: Any) -> Any:
        """Send one command and return its reply."""

    def pipeline(self, transaction: bool) -> Any:
        """Collect commands that are sent together."""


class Store(Protocol):
    """Carries out operations."""

    def execute(self, ops: Sequence[Op]) -> Said:
        """Carry out operations in their order, in one round trip, and return what each says."""


class RedisStore:
    """Operations as commands to a Redis-compatible server or cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_cluster = isinstance(client, RedisCluster)

    def execute(self, ops: Sequence[Op]) -> Said:
        """One operation is one command, and several are one pipeline.

        In a cluster they are sent one by one: redis-py's pipeline there sends commands again when a reply was lost, in
        silence, and that cannot be turned off.
        """
        if len(ops) == 1 or self._is_cluster:
            return Said(op.reply(self._client.execute_command(*op.wire())) for op in ops)
        pipeline = self._client.pipeline(transaction=False)
        for op in ops:
            pipeline.execute_command(*op.wire())
        return Said(op.reply(raw) for op, raw in zip(ops, pipeline.execute(), strict=True))


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
