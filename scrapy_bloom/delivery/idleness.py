"""The time in which a worker has nothing to do, and waits for others."""

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

# Seconds after which an idle worker asks again: the first time, and at most.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 0.6


class Idleness:
    """Tells how long an idle worker waits before it asks again, and logs once why it does not end."""

    def __init__(self, lease: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lease = lease
        self._since: float | None = None
        self._pause = SHORTEST_PAUSE
        self._has_told = False

    def end(self) -> None:
        """Note that there is work again."""
        self._since, self._pause = None, SHORTEST_PAUSE

    def next_pause(self) -> float:
        """Return the seconds to wait now: each time twice as long, up to a limit."""
        now = self._monotonic()
        if self._since is None:
            self._since = now
        if now - self._since > 2 * LONGEST_PAUSE and not self._has_told:
            self._has_told = True
            logger.info(
                "This worker is idle and waits for others: they have requests that may lead to more, or are silent and "
                "put back within BLOOMFILTER_LEASE = %g s",
                self._lease,
            )
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause
