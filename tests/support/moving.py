"""Small filters to export and restore, and a process that is killed."""

import os
import signal
from collections.abc import Callable
from typing import Any

import redis

from scrapy_bloom.text import as_text

# Small layers, so that a filter grows at once.
SMALL: dict[str, Any] = {"capacity": 100, "error_rate": 1e-3, "cache_size": 0}


def items(number: int, name: str = "item") -> list[str]:
    """Return so many different items."""
    return [f"{name} {each}" for each in range(number)]


def killed_at(number: int, work: Callable[[Callable[[], None]], object]) -> None:
    """Run some work in its own process, and kill that at the given call of the function that the work gets."""
    process = os.fork()
    if not process:
        calls = iter(range(1, number))

        def count() -> None:
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            work(count)
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), "the process ended before it was killed"


def keys_at(client: redis.Redis, key: str) -> set[str]:
    """Return all keys of a filter."""
    found = set(map(as_text, client.scan_iter(f"*{key}*", count=10_000)))
    return {name for name in found if name in (key, f"{{{key}}}") or name.startswith((f"{key}:", f"{{{key}}}:"))}
