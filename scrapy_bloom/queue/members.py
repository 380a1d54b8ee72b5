"""The registered workers of a queue, and a failure detector over their heartbeats."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Self
from urllib.parse import quote, unquote

# Unix time in milliseconds, of September 2001: no worker has had as many heartbeats.
_FIRST_TIME = 10**12


class Registration(NamedTuple):
    """A worker as its value in the hash of workers tells of it.

    `lease` is in seconds, and `number` that of its last exchange with the queue. `last_heard` is the Unix time in
    seconds of its last heartbeat, by the server's clock. None: an earlier release wrote it, which only counts them.
    `spider` is the name of the worker's spider, or "" if it does not crawl.

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
        """Return what a value says."""
        lease, number, beats, *marks = value.split()
        last_heard = int(beats) / 1000 if int(beats) >= _FIRST_TIME else None
        spider = next((unquote(mark[1:]) for mark in marks if mark.startswith("@")), "")
        return cls(float(lease), int(number.removesuffix("v")), "closing" in marks, last_heard, spider)


def spider_mark(spider: str) -> str:
    """Return how the value of a worker has the name of its spider, behind all else; "" has none."""
    return f" @{quote(spider, safe='')}" if spider else ""


# Looks at the workers in the shortest of their leases, and the seconds between two looks at least.
_LOOKS_PER_LEASE = 4
_MIN_PAUSE_SECONDS = 0.02
# Looks of which the shortest tells how long a look takes: one in a row that takes longer is no slow link.
_LOOKS_REMEMBERED = 3


class FailureDetector:
    """Finds out which workers are dead, by the own clock and their own leases: no clock is compared with another.

    `lease` is that of the worker that looks, in seconds. It should look again after `pause` seconds.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self.pause = _pause_for(lease)
        self._last_look: float | None = None
        self._delays: deque[float] = deque(maxlen=_LOOKS_REMEMBERED)
        self._seen: dict[str, tuple[str, float]] = {}

    def look(self, workers: Mapping[str, str], now: float) -> dict[str, float]:
        """Return those whose values have not changed for their leases, and for how many seconds.

        Where this worker could not look for a while, Redis was away or the process was stopped. The others may have had
        the same, and have their whole lease again. On a link on which each look takes long, that is no such while.
        """
        usual_delay = min(self._delays, default=0.0)
        if self._last_look is not None:
            if now - self._last_look > 2 * (self.pause + usual_delay):
                self._seen.clear()
            self._delays.append(max(now - self._last_look - self.pause, 0.0))
        self._last_look = now
        self.pause = _pause_for(min([self._lease, *map(_lease_of, workers.values())]))
        self._seen = {
            name: self._seen[name] if name in self._seen and self._seen[name][0] == value else (value, now)
            for name, value in workers.items()
        }
        silent = {name: now - since for name, (_, since) in self._seen.items()}
        # Between two looks nothing can be seen.
        return {
            name: seconds
            for name, seconds in silent.items()
            if seconds > max(_lease_of(workers[name]), 2 * (self.pause + usual_delay))
        }


def _lease_of(value: str) -> float:
    return Registration.parse(value).lease


def _pause_for(lease: float) -> float:
    return max(lease / _LOOKS_PER_LEASE, _MIN_PAUSE_SECONDS)
