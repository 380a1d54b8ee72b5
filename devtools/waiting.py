"""Waiting for what must happen, without guessing how long it takes."""

import threading
import time
from collections.abc import Callable

LIMIT = 180.0
"""Seconds that are waited at most; only a machine that hangs comes near it."""
_POLL_SECONDS = 0.01


def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait for a condition; raises TimeoutError when it does not come true within so many seconds."""
    end = time.monotonic() + limit
    never = threading.Event()
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"not true within {limit:g} s: {condition}")
        never.wait(_POLL_SECONDS)
