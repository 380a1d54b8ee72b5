"""The store in this process: hashes, strings and their expiry.

It serves `MemoryBloomFilter`, the search of the filter's steps and the simulation. The queue has no
such store here: only its tests need one.
"""

import time
from collections.abc import Callable

from scrapy_bloom.storage.operation import Memory, Operations, Results


def keep_until(memory: Memory, key: str, expiry: int | None) -> None:
    """Extend the expiry of a key, in Unix milliseconds.

    An earlier expiry, or None, changes nothing.
    """
    if expiry is not None and (key not in memory.expiries or expiry > memory.expiries[key]):
        if expiry <= _milliseconds(memory):
            delete(memory, key)
        else:
            memory.expiries[key] = expiry


def delete(memory: Memory, key: str) -> bool:
    """Delete a key with its expiry, and return whether the key existed."""
    memory.expiries.pop(key, None)
    fields, string = memory.hashes.pop(key, None), memory.strings.pop(key, None)
    return bool(fields) or string is not None


def delete_expired(memory: Memory) -> None:
    """Delete expired keys."""
    now = _milliseconds(memory)
    for key in [key for key, expiry in memory.expiries.items() if now > expiry]:
        delete(memory, key)


def _milliseconds(memory: Memory) -> int:
    return int(memory.now() * 1000)


class MemoryStore:
    """Executes operations on this process's memory; `now` is any clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.hashes: dict[str, dict[str, str]] = {}
        self.strings: dict[str, bytearray] = {}
        self.expiries: dict[str, int] = {}
        self._now = now

    def now(self) -> float:
        """Return the clock's time in seconds."""
        return self._now()

    def execute(self, operations: Operations) -> Results:
        """Execute operations in order, as one atomic step."""
        delete_expired(self)
        return Results(operation.apply(self) for operation in operations)
