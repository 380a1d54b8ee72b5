"""Keep a worker's registration alive from a thread: a busy reactor is not a dead worker."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from scrapy_bloom.queue.request_queue import RequestQueue, send_each
from scrapy_bloom.queue.values import Call
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.transport.failures import describe

logger = logging.getLogger(__name__)

BEATS_PER_LEASE = 4
_LAST_BEAT_SECONDS = 2.0


class Heartbeat:
    """The heartbeats of one worker. A beat requeues the leases of dead workers, too.

    Args:
        queues: the queue of each partition, with a client of its own.
        worker: the worker's name.
        lease: its lease in seconds.
        max_deliveries: deaths of workers that make a request a dead letter; 0 is no bound.
        runtime: threads.
    """

    def __init__(
        self, queues: Sequence[RequestQueue], worker: str, lease: float, max_deliveries: int, runtime: Runtime = RUNTIME
    ) -> None:
        self._send = send_each(queues, runtime)
        self._worker = worker
        self._pause = lease / BEATS_PER_LEASE
        call = Call("heartbeat", (max_deliveries,))
        self._calls = [(index, call) for index in range(len(queues))]
        self._others: deque[tuple[int, list[Any]]] = deque()
        self._stopped = runtime.event()
        self._thread = runtime.thread("scrapy-bloom heartbeat", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for a beat that is under way."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_BEAT_SECONDS)

    def take_others(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the findings of each beat since the last call about the other workers, with the partition's index."""
        while self._others:
            yield self._others.popleft()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            for index, reply in enumerate(self._send(self._worker, self._calls)):
                if isinstance(reply, Exception):  # the next beat may succeed
                    # The reactor's own attempts log the outage once.
                    logger.debug("The heartbeat failed: %s", describe(reply))
                elif reply[0] == b"OK":  # EXPIRED is only a hint: the worker's own next call decides
                    self._others.append((index, reply[2]))
