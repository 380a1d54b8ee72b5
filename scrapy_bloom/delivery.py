"""Run a crawl's worker: send its calls within the time that the reactor can spare, and report the replies.

During the crawl no call waits for a silent Redis but an attempt now and then. The engine gets nothing new meanwhile, so
the process holds no more than the links of the pages in the engine.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from scrapy import Request, Spider, signals

from scrapy_bloom import engine
from scrapy_bloom.codec import RequestCodec
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter.info import FilterInfo, describe_reply, sum_of
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.partitioned import PartitionedWorker
from scrapy_bloom.queue.request_queue import RequestQueue, send_each
from scrapy_bloom.queue.values import Entry, IndexedCall, Offer, Phase, RefusedError
from scrapy_bloom.queue.worker import Worker
from scrapy_bloom.report import ENQUEUED, UNSERIALIZABLE, CrawlReporter, QueueReport, call_safely, report_dead_workers
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.transport.retry import CircuitBreaker, RedisUnreachableError, retry_until

logger = logging.getLogger(__name__)

# Seconds until an idle worker asks Redis again.
MIN_PAUSE, MAX_PAUSE = 0.1, 0.6
# Requests to take ahead. A worker takes no more than its share of the queue, so that this starves no other.
PREFETCH = 16
# For so long one call of Scrapy's may block the reactor; a round trip may exceed it.
_REACTOR_SECONDS = 0.03

T = TypeVar("T")


class Delivery:
    """The calls of one worker of a crawl.

    Args:
        worker: the worker.
        queues: the queue of each partition, with the reactor's client.
        codec: reads requests.
        report: counts in the stats, and this worker's part in the filter.
        spider: the crawl's spider.
        note_repeat: logs and counts a repeat.
        refuse: returns the error for a refused join.
        end_crawl: ends the crawl for an error.
        runtime: the clock.

    Attributes:
        reports: reports the worker's findings about each queue.
        wakeup: makes the engine ask again.
        has_ended: Redis has refused a command, and the crawl ends.
        is_silent: the last call got no reply.
    """

    def __init__(
        self,
        worker: Worker | PartitionedWorker,
        queues: list[RequestQueue],
        codec: RequestCodec,
        report: CrawlReporter,
        spider: Spider,
        *,
        note_repeat: Callable[[Request], object],
        refuse: Callable[..., BloomError],
        end_crawl: Callable[[Exception], object],
        runtime: Runtime = RUNTIME,
    ) -> None:
        self.reports = [
            QueueReport(part, queue.keys, report, codec.read) for part, queue in zip(worker.parts, queues, strict=True)
        ]
        self.wakeup = engine.EngineWakeup(spider.crawler, runtime)
        self.has_ended = self.is_silent = False
        self._worker = worker
        self._send = send_each(queues, runtime)
        self._queues = queues
        self._codec = codec
        self._report = report
        self._note_repeat = note_repeat
        self._spider = spider
        self._refuse = refuse
        self._end_crawl = end_crawl
        self._runtime = runtime
        self._breaker = CircuitBreaker(runtime)
        self._called = [runtime.monotonic()] * len(queues)  # the times of the partitions' last calls
        self._next_poll, self._pause = 0.0, MIN_PAUSE

    # At the start and the end, where calls may block.

    def work_off(self, timeout: float) -> None:
        """Execute calls until there is no news; each is retried for `timeout` seconds."""
        while self.retry(self._execute_next, timeout):
            self.report()

    def leave(self, mode: str) -> None:
        """Deliver everything and leave the queue; a second call resumes after a failed attempt."""
        while not self.has_ended and self._execute_next():
            self.report()
        if self._worker.phase is not Phase.LEFT:
            self._worker.leave("keep" if mode == "shared" else mode)
        while self._worker.phase is not Phase.LEFT:
            self._execute_next()
        self.report()
        for report, queue in zip(self.reports, self._queues, strict=True):
            report.end(mode, queue.count_dead_letters())

    def report(self) -> None:
        """Report the worker's findings since the last call."""
        report_dead_workers(self._worker.parts, self._queues[0].keys.queue, self._report)
        for report in self.reports:
            report.update()

    def retry(self, work: Callable[[], T], timeout: float) -> T:
        """Return the result of `work`; block and retry for `timeout` seconds."""
        return retry_until(work, timeout, runtime=self._runtime)

    def read_filter(self, parameters: FilterParameters) -> FilterInfo | None:
        """Return the fill of all partitions' filters, or None if one does not exist any more."""
        infos = []
        for part, queue in zip(self._worker.parts, self._queues, strict=True):
            if (reply := queue.describe_filter(part.filter_id)) is None:
                return None
            infos.append(describe_reply(parameters, reply))
        return sum_of(infos)

    # During the crawl.

    def put(self, offer: Offer, *, is_start: bool) -> None:
        """Offer a request, which `is_start` if no page led to it; deliver a full batch."""
        self._worker.offer(offer, is_start=is_start)
        if self._worker.is_full:
            with contextlib.suppress(RedisUnreachableError):
                self.deliver(rest=math.inf)

    def next_entry(self, deadline: float) -> Entry | None:
        """Return the next request for the engine, or None: there is none, or the deadline has passed.

        Raises:
            RedisUnreachableError: Redis is silent.
        """
        worker = self._worker
        if self.is_silent:
            self._step(PREFETCH)
        while (now := self._runtime.monotonic()) < deadline:
            # A new link may go before requests that were taken ahead.
            if worker.urgency < worker.next_score < math.inf:
                self._step(1)
            elif (entry := worker.take()) is not None:
                return entry
            elif not self._step(PREFETCH if worker.prospects or now >= self._next_poll else 0):
                return None
        self.wakeup.set(0)
        return None

    def deliver(self, *, rest: float = 0.0) -> bool:
        """Send full batches and other news, as long as the reactor can spare the time; return whether some are left.

        Args:
            rest: seconds after the last call of a partition in which its other news wait.

        Raises:
            RedisUnreachableError: Redis is silent.
        """
        deadline = self.deadline()
        while self._step(0, self._rested(rest)):
            if self._runtime.monotonic() > deadline:
                self.wakeup.set(0)
                return True
        return False

    def confirm(self) -> None:
        """Call the callbacks whose requests are queued."""
        for call in self._worker.take_receipts():
            call_safely(call)

    def ask(self, work: Callable[[], T]) -> T:
        """Call a function that sends commands; while Redis is silent, call it only as a probe.

        Raises:
            RedisUnreachableError: Redis is silent, or has refused a command and the crawl ends.
        """
        if self.has_ended:
            raise RedisUnreachableError
        try:
            return self._breaker.call(work)
        except RedisUnreachableError:
            self.wakeup.set(MAX_PAUSE)
            raise
        except Exception as error:  # a refusal, or a fault of our own, which must not leave a worker that never ends
            self.has_ended = True
            self._end_crawl(error)
            raise RedisUnreachableError from None

    def deadline(self) -> float:
        """Return the time until which one call of Scrapy's may block the reactor."""
        return self._runtime.monotonic() + _REACTOR_SECONDS

    def _rested(self, seconds: float) -> list[int]:
        """Return the partitions that had no call for so long."""
        since = self._runtime.monotonic() - seconds
        return [index for index, called in enumerate(self._called) if called <= since]

    def _step(self, want: int, flush: Sequence[int] = ()) -> list[IndexedCall]:
        """Execute the next calls, and report their replies; raise RedisUnreachableError while Redis is silent."""
        if self._breaker.is_open or self.has_ended:
            raise RedisUnreachableError
        calls = self._worker.next_calls(want, flush)
        if not calls:
            return calls
        self.is_silent = True
        self.ask(partial(self._execute, calls))
        self.is_silent = False
        for index, _ in calls:
            self._called[index] = self._runtime.monotonic()
        if want and calls[0][1].script == "exchange" and self._worker.phase is Phase.WORK:
            self._note_poll()
        self.report()
        self.confirm()
        return calls

    def _note_poll(self) -> None:
        """Ask an empty queue again after a pause, each twice as long as the last."""
        if self._worker.next_score < math.inf:
            self._pause = MIN_PAUSE
        if self._worker.prospects:
            return
        self._next_poll = self._runtime.monotonic() + self._pause
        self.wakeup.set(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE)

    def _execute_next(self) -> list[IndexedCall]:
        calls = self._worker.next_calls(0)
        self._execute(calls)
        return calls

    def _execute(self, calls: list[IndexedCall]) -> None:
        worker, left = self._worker, [index for index, _ in calls]
        try:
            replies = self._send(worker.name, calls)
            for (index, _), reply in zip(calls, replies, strict=True):
                if not isinstance(reply, Exception):
                    left.remove(index)
                    self._report.counters.round_trips += 1
                    self._note_offers(worker.receive(reply, index))
            for reply in replies:
                if isinstance(reply, Exception):
                    if len(self._queues) > 1:
                        numbers = ", ".join(map(str, sorted(left)))
                        reply.add_note(f"{'partition' if len(left) == 1 else 'partitions'} {numbers}")
                    raise reply
        except RefusedError as refused:
            raise self._refuse(*refused.args) from None
        finally:
            for index in left:
                worker.lose(index)

    def _note_offers(self, ended: list[tuple[Offer, bool]]) -> None:
        """Count new requests, and drop repeats."""
        new = [offer for offer, is_new in ended if is_new]
        local = sum(offer.request is not None for offer in new)
        for stat, number in ((ENQUEUED, len(new) - local), (UNSERIALIZABLE, local)):
            if number:
                self._report.count(stat, number)
        self._report.counters.added += sum(offer.fingerprint is not None for offer in new)
        for offer, is_new in ended:
            request = None if is_new else offer.request or self._codec.decode(offer.member)
            if request is not None:
                self._note_repeat(request)
                self._spider.crawler.signals.send_catch_log(
                    signals.request_dropped, request=request, spider=self._spider
                )
