"""Waiting for a condition, without a guess at its duration."""

import threading
import time
from collections.abc import Callable

LIMIT = 180.0
"""The maximum wait in seconds; only a hung machine comes near it."""
_POLL_SECONDS = 0.01


def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait for a condition; raise TimeoutError if it does not become true within so many seconds."""
    end = time.monotonic() + limit
    never = threading.Event()
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"not true within {limit:g} s: {condition}")
        never.wait(_POLL_SECONDS)
