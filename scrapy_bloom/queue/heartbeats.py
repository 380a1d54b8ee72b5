"""The thread that says that a worker is alive, and requeues what dead ones had: a busy reactor is not a dead worker."""

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
    """Heartbeats of the worker `name`, a few in each of its leases; nobody else calls `beat` while the thread runs.

    `requeued` is the number of requests that it has taken from dead workers. Those that `max_deliveries` workers died
    with are dead letters then, and in `buried` for the reactor's thread to take; 0 is no bound.
    """

    def __init__(
        self, queue: RequestQueue, name: str, lease: float, max_deliveries: int = 0, runtime: Runtime = RUNTIME
    ) -> None:
        self.requeued = 0
        self.buried: deque[QueueEntry] = deque()
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
        """Send no more heartbeats, and wait for one that is under way."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_BEAT_SECONDS)

    def beat(self) -> None:
        """Send a heartbeat, and requeue what dead workers had leased."""
        answer = self._queue.execute(Heartbeat(self._name))
        workers = {name: value for name, value in (answer.workers or {}).items() if name != self._name}
        for name, seconds in self._failure_detector.look(workers, self._monotonic()).items():
            # A worker that is not registered itself may only take over the closing of the queue.
            if answer.status is Status.OK or Registration.parse(workers[name]).is_closing:
                self._requeue(name, workers[name], seconds)

    def _requeue(self, name: str, value: str, seconds: float) -> None:
        operation = Requeue(self._name, name, value, f"{self._lease:g}", 0, self._max_deliveries)
        requeued = self._queue.execute(operation)
        if requeued.status is Status.REQUEUED:
            self.buried += requeued.entries
            self.requeued += requeued.waiting
            logger.warning(
                "Worker %s has been silent for %.0f s: %d requests that it held are back in the queue %r",
                name,
                seconds,
                requeued.waiting,
                self._queue.keys.queue,
            )

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.beat()
            except Exception as error:  # the next one may go well
                # The reactor's own attempts say so once, and in which state the crawl is.
                logger.debug("No heartbeat could be sent: %s", describe(error))
            self._stopped.wait(self._failure_detector.pause)
