"""Renew a worker's registration in a thread, detect dead workers, and requeue their leases."""

import logging
from collections import deque
from collections.abc import Iterable, Mapping

from scrapy_bloom._format import plural
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.operations import Heartbeat, ReadDeadLetters, Registration, RequestQueue, Requeue, Status
from scrapy_bloom.transport.failures import describe

logger = logging.getLogger(__name__)

_LAST_BEAT_SECONDS = 2.0
# Dead letters read after a lost reply.
_MAX_DEAD_LETTERS = 100
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
        self.pause = heartbeat_pause(lease)
        self._last_check: float | None = None
        self._delays: deque[float] = deque(maxlen=_DELAYS_REMEMBERED)
        self._seen: dict[str, tuple[str, float]] = {}

    def silent_workers(self, workers: Mapping[str, str], now: float) -> dict[str, float]:
        """Return the workers that have been silent for their leases, with the seconds of silence.

        If this worker's own check comes late, Redis was unreachable or the process was stopped.
        That may have stopped the others, too: their leases start again. A slow link, which delays
        every check, does not count as such a gap.

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
        self.pause = heartbeat_pause(min([self._lease, *map(_lease_of, workers.values())]))
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


def heartbeat_pause(lease: float) -> float:
    """Return the seconds between two heartbeats of each worker; `lease` is the shortest lease of all workers."""
    return max(lease / _HEARTBEATS_PER_LEASE, _MIN_PAUSE_SECONDS)


class Heartbeats:
    """Heartbeats of one worker, in a thread: a busy reactor is not a dead worker.

    Only the thread calls `beat` while it runs.

    Attributes:
        requeued: requests of dead workers that were requeued.
        dead_letters: requests that `max_deliveries` workers have died with, for the reactor's
            thread to take; 0 is no bound.
    """

    def __init__(
        self, queue: RequestQueue, name: str, lease: float, max_deliveries: int = 0, runtime: Runtime = RUNTIME
    ) -> None:
        self.requeued = 0
        self.dead_letters: deque[QueueEntry] = deque()
        self._max_deliveries = max_deliveries
        # The reply to a Requeue was lost, and the dead letters in it with it.
        self._has_lost_reply = False
        self._reported: set[bytes] = set()
        self._queue = queue
        self._name = name
        self._lease = lease
        self._failure_detector = FailureDetector(lease)
        self._monotonic = runtime.monotonic
        self._stopped = runtime.event()
        self._thread = runtime.thread("scrapy-bloom heartbeat", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for a heartbeat that is under way."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_BEAT_SECONDS)

    def beat(self) -> None:
        """Send a heartbeat, and requeue the leases of dead workers."""
        reply = self._queue.execute(Heartbeat(self._name))
        if self._has_lost_reply:
            self._read_dead_letters()
        workers = {name: value for name, value in (reply.workers or {}).items() if name != self._name}
        for name, seconds in self._failure_detector.silent_workers(workers, self._monotonic()).items():
            # An unregistered worker may only take over the closing of the queue.
            if reply.status is Status.OK or Registration.parse(workers[name]).is_closing:
                self._requeue(name, workers[name], seconds)

    def _requeue(self, name: str, value: str, seconds: float) -> None:
        operation = Requeue(self._name, name, value, f"{self._lease:g}", 0, self._max_deliveries)
        self._has_lost_reply = self._max_deliveries > 0
        reply = self._queue.execute(operation)
        self._has_lost_reply = False
        if reply.status is Status.REQUEUED:
            self._report(reply.entries)
            self.requeued += reply.requeued
            logger.warning(
                "Worker %s has been silent for %.0f s: requeued %s of its leases in the queue %r",
                name,
                seconds,
                plural(reply.requeued, "request"),
                self._queue.keys.queue,
            )

    def _read_dead_letters(self) -> None:
        """Report the dead letters of a lost reply, and perhaps some that others have reported."""
        reply = self._queue.execute(ReadDeadLetters(self._name, 0, _MAX_DEAD_LETTERS))
        self._has_lost_reply = False
        unreported = (entry for entry in reply.entries if entry.member not in self._reported)
        self._report(entry for entry in unreported if reply.suspects.get(entry.member, 0) >= self._max_deliveries)

    def _report(self, entries: Iterable[QueueEntry]) -> None:
        """Pass dead letters on."""
        for entry in entries:
            self._reported.add(entry.member)
            self.dead_letters.append(entry)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.beat()
            except Exception as error:  # the next heartbeat may succeed
                # The reactor's own attempts log the outage once, with the state of the crawl.
                logger.debug("The heartbeat failed: %s", describe(error))
            self._stopped.wait(self._failure_detector.pause)
