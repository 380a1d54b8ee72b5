"""The registered workers of a queue, and a failure detector over their heartbeats."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Self
from urllib.parse import quote, unquote

# Unix time in milliseconds, of September 2001; smaller values are counts of heartbeats.
_FIRST_TIME = 10**12


class Registration(NamedTuple):
    """A worker's value in the hash of workers.

    Attributes:
        lease: the lease in seconds.
        number: the number of the worker's last sync.
        is_closing: the worker closes the queue.
        last_heard: Unix time of the last heartbeat in seconds, by the server's clock. None if an
            earlier release wrote the value, which only counts heartbeats.
        spider: the name of the worker's spider, or "" if it does not crawl.

    Example:
        >>> Registration.parse("30 7 1700000000250 @news")
        Registration(lease=30.0, number=7, is_closing=False, last_heard=1700000000.25, spider='news')
    """

    lease: float
    number: int
    is_closing: bool
    last_heard: float | None
    spider: str = ""

    @classmethod
    def parse(cls, value: str) -> Self:
        """Return the registration in a stored value."""
        lease, number, beats, *marks = value.split()
        last_heard = int(beats) / 1000 if int(beats) >= _FIRST_TIME else None
        spider = next((unquote(mark[1:]) for mark in marks if mark.startswith("@")), "")
        return cls(float(lease), int(number.removesuffix("v")), "closing" in marks, last_heard, spider)


def spider_mark(spider: str) -> str:
    """Return the suffix of a stored value that names the spider; "" has none."""
    return f" @{quote(spider, safe='')}" if spider else ""


# Heartbeats in the shortest lease of all workers, and the shortest pause between two of them.
_HEARTBEATS_PER_LEASE = 4
_MIN_PAUSE_SECONDS = 0.02
# The fastest of the last heartbeats has the delay of the link: a single slow one proves no slow link.
_DELAYS_REMEMBERED = 3


class FailureDetector:
    """Detects dead workers by their leases and this process's own clock.

    Clocks are never compared: a worker is alive while its registration changes.

    Args:
        lease: this worker's lease in seconds.

    Attributes:
        pause: seconds until the next heartbeat is due.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self.pause = _pause_for(lease)
        self._last_check: float | None = None
        self._delays: deque[float] = deque(maxlen=_DELAYS_REMEMBERED)
        self._seen: dict[str, tuple[str, float]] = {}

    def silent_workers(self, workers: Mapping[str, str], now: float) -> dict[str, float]:
        """Return the workers that were silent for their leases, with the seconds.

        If this worker's own check comes late, Redis was unreachable or the process was stopped. That may
        have stopped the others, too: their leases begin again. A slow link delays every check, and
        is no such gap.

        Args:
            workers: the registrations of the other workers.
            now: the time of this process's monotonic clock in seconds.
        """
        usual_delay = min(self._delays, default=0.0)
        if self._last_check is not None:
            if now - self._last_check > 2 * (self.pause + usual_delay):
                self._seen.clear()
            self._delays.append(max(now - self._last_check - self.pause, 0.0))
        self._last_check = now
        self.pause = _pause_for(min([self._lease, *map(_lease_of, workers.values())]))
        self._seen = {
            name: self._seen[name] if name in self._seen and self._seen[name][0] == value else (value, now)
            for name, value in workers.items()
        }
        silent = {name: now - since for name, (_, since) in self._seen.items()}
        # A heartbeat right after a check shows only at the next one: a silence of less than two
        # pauses proves nothing.
        return {
            name: seconds
            for name, seconds in silent.items()
            if seconds > max(_lease_of(workers[name]), 2 * (self.pause + usual_delay))
        }


def _lease_of(value: str) -> float:
    return Registration.parse(value).lease


def _pause_for(lease: float) -> float:
    return max(lease / _HEARTBEATS_PER_LEASE, _MIN_PAUSE_SECONDS)
