"""Keep a worker's registration alive from a thread: a busy reactor is not a dead worker, but one that stands is."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from scrapy_bloom.queue.messages import Call, Others
from scrapy_bloom.queue.request_queue import RequestQueue, send_each
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.text import get_logger
from scrapy_bloom.transport.failures import describe

logger = get_logger(__name__)

BEATS_PER_LEASE = 4
# Leases in which the reactor must have run: a callback may take minutes, and one that never returns holds requests.
STANDSTILL_LEASES = 15
_LAST_BEAT_SECONDS = 2.0


class Heartbeat:
    """The heartbeats of one worker. A beat requeues the leases of dead workers, too.

    Args:
        queues: the worker's queues, with a client of its own.
        worker: the worker's name.
        lease: its lease in seconds.
        max_deaths: deaths of workers that make a request a dead letter; 0 is no bound.
        runtime: threads.
    """

    def __init__(
        self, queues: Sequence[RequestQueue], worker: str, lease: float, max_deaths: int, runtime: Runtime = RUNTIME
    ) -> None:
        self._send = send_each(queues, runtime)
        self._worker = worker
        self._pause, self._standstill = lease / BEATS_PER_LEASE, lease * STANDSTILL_LEASES
        self._calls = [(index, Call("heartbeat", (max_deaths,))) for index in range(len(queues))]
        self._others: deque[tuple[int, Others]] = deque()
        self._runtime = runtime
        self._ticked = runtime.monotonic()
        self._stands = False
        self._stopped = runtime.event()
        self._thread = runtime.thread("scrapy-bloom heartbeat", self._run)

    def start(self) -> None:
        """Start the thread."""
        self.tick()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for a beat that is under way."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_BEAT_SECONDS)

    def tick(self) -> None:
        """Note that the reactor runs."""
        self._ticked = self._runtime.monotonic()

    def take_others(self) -> Iterator[tuple[int, Others]]:
        """Yield the findings of each beat since the last call about the other workers, with the index of the queue."""
        while self._others:
            yield self._others.popleft()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            if not threading.main_thread().is_alive():
                return
            if self._runs():
                self._beat()

    def _runs(self) -> bool:
        """Return whether the reactor has run lately; log if it stands."""
        stands = self._runtime.monotonic() - self._ticked > self._standstill
        if stands and not self._stands:
            logger.error(
                "The reactor has not run for %g s, %d times BLOOMFILTER_LEASE: a callback, a pipeline or other code "
                "blocks it. This worker sends no heartbeat any more, so that others fetch its requests",
                self._standstill,
                STANDSTILL_LEASES,
            )
        self._stands = stands
        return not stands

    def _beat(self) -> None:
        for index, reply in enumerate(self._send(self._worker, self._calls)):
            if isinstance(reply, Exception):  # the next beat may succeed
                # The reactor's own attempts log the outage once.
                logger.debug("The heartbeat failed: %s", describe(reply))
            elif (others := Others.of(reply)) is not None:
                self._others.append((index, others))
