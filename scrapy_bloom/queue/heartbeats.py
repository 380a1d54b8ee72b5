"""The heartbeat thread: renew the registration and requeue dead workers' leases."""

import logging
from collections import deque

from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.members import FailureDetector, Registration
from scrapy_bloom.queue.operations import Heartbeat, Requeue, Status
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.transport.failures import describe

logger = logging.getLogger(__name__)

_LAST_BEAT_SECONDS = 2.0


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
        workers = {name: value for name, value in (reply.workers or {}).items() if name != self._name}
        for name, seconds in self._failure_detector.silent_workers(workers, self._monotonic()).items():
            # An unregistered worker may only take over the closing of the queue.
            if reply.status is Status.OK or Registration.parse(workers[name]).is_closing:
                self._requeue(name, workers[name], seconds)

    def _requeue(self, name: str, value: str, seconds: float) -> None:
        operation = Requeue(self._name, name, value, f"{self._lease:g}", 0, self._max_deliveries)
        requeued = self._queue.execute(operation)
        if requeued.status is Status.REQUEUED:
            self.dead_letters += requeued.entries
            self.requeued += requeued.waiting
            logger.warning(
                "Worker %s has been silent for %.0f s: requeued %d requests of its leases in the queue %r",
                name,
                seconds,
                requeued.waiting,
                self._queue.keys.queue,
            )

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.beat()
            except Exception as error:  # the next heartbeat may succeed
                # The reactor's own attempts log the outage once, with the state of the crawl.
                logger.debug("The heartbeat failed: %s", describe(error))
            self._stopped.wait(self._failure_detector.pause)
