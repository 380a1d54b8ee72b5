"""The store in this process."""

import time
from collections.abc import Callable, Sequence

from scrapy_bloom.storage.base import Operation, Results
from scrapy_bloom.storage.expiry import delete_expired


class MemoryStore:
    """Carries out operations on this process's own memory; `now` is any clock that gives seconds."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.hashes: dict[str, dict[str, str]] = {}
        self.strings: dict[str, bytearray] = {}
        self.expiries: dict[str, int] = {}
        self._now = now

    def now(self) -> float:
        """Return the clock's time in seconds."""
        return self._now()

    def execute(self, operations: Sequence[Operation]) -> Results:
        """Carry out operations one after another; nothing comes between those of one call."""
        delete_expired(self)
        return Results(operation.apply(self) for operation in operations)
