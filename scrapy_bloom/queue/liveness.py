"""The workers of a queue as one of them sees them: alive while their values change."""

from collections import deque
from collections.abc import Mapping

from scrapy_bloom.queue.registration import Registration

# Looks at the workers in the shortest of their leases, and the seconds between two looks at least.
_LOOKS_PER_LEASE = 4
_SHORTEST_PAUSE = 0.02
# Looks of which the shortest tells how long a look takes: one in a row that takes longer is no slow link.
_LOOKS_REMEMBERED = 3


class Liveness:
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
    return max(lease / _LOOKS_PER_LEASE, _SHORTEST_PAUSE)
