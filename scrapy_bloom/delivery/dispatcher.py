"""Deliver requests to Redis and take them from it, within the time that the reactor can spare."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_bloom._format import plural
from scrapy_bloom._runtime import RUNTIME, TUNING, Runtime, Tuning
from scrapy_bloom._scrapy import engine
from scrapy_bloom.delivery.codec import RequestCodec
from scrapy_bloom.delivery.executor import Executor
from scrapy_bloom.errors import BloomError
from scrapy_bloom.monitoring.stats import ENQUEUED, RequestNotifier
from scrapy_bloom.queue.entries import OutboxEntry, members_of
from scrapy_bloom.queue.operations import AskFilter, Ending, FilterOperation, Join, QueueOperation, Sync
from scrapy_bloom.queue.worker_state import Phase
from scrapy_bloom.spool.buffer import DiskBuffer
from scrapy_bloom.spool.directory import SpoolDirectory
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.retry import CircuitBreaker, RedisUnreachableError, require_not_stopped, retry_until

logger = logging.getLogger(__name__)

# Seconds until an idle worker asks Redis again.
MIN_PAUSE, MAX_PAUSE = 0.1, 0.6

T = TypeVar("T")


class IdleBackoff:
    """The pauses of an idle worker, each twice as long as the last; logs once why the worker waits."""

    def __init__(self, lease: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lease = lease
        self._since: float | None = None
        self._pause = MIN_PAUSE
        self._has_logged = False

    def reset(self) -> None:
        """Start again with the shortest pause: the worker has work."""
        self._since, self._pause = None, MIN_PAUSE

    def next_pause(self) -> float:
        """Return the seconds until the next attempt."""
        now = self._monotonic()
        if self._since is None:
            self._since = now
        if now - self._since > 2 * MAX_PAUSE and not self._has_logged:
            self._has_logged = True
            logger.info(
                "This worker is idle and waits for others: they hold requests that may lead to more, or are silent "
                "and lose their leases after BLOOMFILTER_LEASE = %g s",
                self._lease,
            )
        pause, self._pause = self._pause, min(2 * self._pause, MAX_PAUSE)
        return pause


class Dispatcher:
    """Runs a queue worker for a crawl: it joins, delivers, takes requests and leaves.

    During the crawl no call is retried: it raises RedisUnreachableError, after one socket timeout at most, and at once
    while the circuit breaker is open. Requests beyond the memory limit are buffered on disk. If Redis refuses a
    command, the dispatcher calls `end_crawl` with the error and sends nothing more.
    """

    def __init__(
        self,
        executor: Executor,
        codec: RequestCodec,
        notifier: RequestNotifier,
        *,
        directory: SpoolDirectory,
        crawler: Crawler,
        end_crawl: Callable[[Exception], object],
        has_separate_filter: bool = False,
        tuning: Tuning = TUNING,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self.breaker = CircuitBreaker(runtime)
        # A reply of one server does not show that the other one is back.
        self._filter_breaker = CircuitBreaker(runtime, "The filter's server") if has_separate_filter else self.breaker
        self.disk_buffer = DiskBuffer(directory, tuning)
        self.wakeup = engine.EngineWakeup(crawler, runtime)
        self.has_ended = False
        self._tuning = tuning
        self._runtime = runtime
        self._worker = executor.worker
        self._executor = executor
        self._codec = codec
        self._directory = directory
        self._notifier = notifier
        self._crawler = crawler
        self._end_crawl = end_crawl
        self._leased: dict[Request, bytes] = {}
        self._has_logged_closing = False

    def __len__(self) -> int:
        """Return the number of requests in this process: undelivered, or leased and not running."""
        waiting = {*members_of(self._worker.undelivered()), *members_of(self._worker.state.ready)}
        return len(waiting) + len(self.disk_buffer)

    @property
    def is_idle(self) -> bool:
        """True if the worker holds no request and has nothing to send."""
        return self._worker.is_idle and self.disk_buffer.is_empty

    # At the start, which may block.

    def join(self, timeout: float) -> None:
        """Join the queue, after another worker has closed it; Redis may be unreachable for `timeout` seconds."""
        while self._worker.phase is not Phase.WORKING:
            retry_until(self._executor.execute_next, timeout, runtime=self._runtime)
            if self._worker.phase is Phase.JOINING:
                self._log_closing()
                self._runtime.sleep(MIN_PAUSE)
                require_not_stopped(timeout, f"Another worker closes the queue {self._executor.queue!r}")

    def restore_spooled(self, timeout: float) -> None:
        """Queue the undelivered requests of an earlier crawl."""
        for path, entries in self._directory.load(self._tuning.spool_batch):
            for entry in entries:
                self._worker.offer(entry)
            while self._worker.has_news:
                # Other workers may have presumed this one dead, and it has to join again.
                self.join(timeout)
                require_not_stopped(timeout, f"The requests in {path} are being queued")
                retry_until(self._executor.execute_next, timeout, runtime=self._runtime)
            logger.info("Queued %s of an earlier crawl, from %s", plural(len(entries), "undelivered request"), path)

    # During the crawl.

    def reactor_deadline(self) -> float:
        """Return the monotonic time at which the reactor needs its thread back."""
        return self._runtime.monotonic() + self._tuning.reactor_seconds

    def put(self, entry: OutboxEntry, batch_size: int) -> None:
        """Add a request to the outbox or to the disk buffer, and deliver a full batch unless Redis is unreachable."""
        if not self.disk_buffer.put(entry, len(self._worker.state.outbox)):
            self._worker.offer(entry)
        if len(self._worker.state.outbox) >= batch_size:
            with contextlib.suppress(RedisUnreachableError):
                self.deliver_until(self.reactor_deadline())

    def deliver_until(self, deadline: float) -> bool:
        """Deliver the outbox and the disk buffer, and return whether the deadline left some undelivered.

        Args:
            deadline: a monotonic time; one round trip may exceed it.

        Raises:
            RedisUnreachableError: Redis is unreachable, or has refused a command and the crawl ends.
        """
        while self._has_news() and self._step(0) is not None:
            if self._runtime.monotonic() > deadline:
                self.wakeup.set(0)
                return True
        return False

    def next_request(self) -> Request | None:
        """Return the queue's first request, or None: the queue is empty, or time is up.

        Undelivered requests whose priority exceeds that of the ready ones are delivered first.

        Raises:
            RedisUnreachableError: as `deliver_until`.
        """
        self.note_finished()
        deadline = self.reactor_deadline()
        while True:
            if self._worker.is_urgent:
                self.deliver_until(deadline)
            entry = self._worker.take()
            if entry is None:
                if not self._fill(deadline):
                    return None
            elif (request := self._codec.decode(entry)) is not None:
                self._leased[request] = entry.member
                return request
            else:
                self._codec.note_dead_letter(entry)
                self._worker.dead_letter(entry.member)

    def note_finished(self) -> None:
        """Mark the requests that the engine has finished, after the requests that they led to."""
        if not self.disk_buffer.is_empty:
            return
        running = engine.in_progress(self._crawler)
        for request in [request for request in self._leased if request not in running]:
            self._worker.finish(self._leased.pop(request))

    def when_delivered(self, call: Callable[[], object]) -> None:
        """Call `call` once all requests put so far are leased or queued."""
        if self.disk_buffer.is_empty:
            self._worker.ask_for_receipt(call)
        else:
            self.disk_buffer.afterwards.append(call)

    def call(self, work: Callable[[], T], breaker: CircuitBreaker | None = None) -> T:
        """Return the result of `work`, which sends commands to Redis.

        Args:
            work: the function.
            breaker: the breaker of the server in question, by default the queue's.

        Raises:
            RedisUnreachableError: Redis is unreachable, or has refused a command and the crawl ends.
        """
        if self.has_ended:
            raise RedisUnreachableError
        try:
            return (breaker or self.breaker).call(work)
        except RedisUnreachableError:
            self.wakeup.set(MAX_PAUSE)
            raise
        except (BloomError, *FAULTS) as error:
            self.has_ended = True
            self._end_crawl(error)
            raise RedisUnreachableError from None

    # At the end.

    def leave(self, ending: Ending, conclude: Callable[[], object]) -> None:
        """Deliver everything and leave the queue; a second call resumes after a failed attempt.

        `conclude` is called after the delivery: from then on another worker may delete the filter.
        """
        if not self._worker.is_leaving:
            self._worker.stop()
            self.note_finished()
            while not self.has_ended and self._worker.phase is not Phase.JOINING and self._has_news():
                self._report_delivery(*self._executor.execute_next())
                self.note_finished()
            conclude()
            self._worker.leave(ending)
        while self._worker.phase is not Phase.GONE:
            self._executor.execute_next()

    def keep_undelivered(self) -> None:
        """Save undelivered requests for a later start, and log the warnings held back so far."""
        self._executor.warnings.flush()
        try:
            for number, path in self.disk_buffer.close(self._worker.undelivered()):
                logger.error(
                    "Saved %s in %s; the next crawl that starts in this directory queues the file",
                    plural(number, "undelivered request"),
                    path,
                )
        except OSError as error:
            logger.error("%s", error)

    # One step.

    def _fill(self, deadline: float) -> bool:
        """Deliver the outbox and lease further requests; return whether the worker has any."""
        if self._executor.filter.is_stale:
            with contextlib.suppress(RedisUnreachableError):
                self.call(self._executor.filter.refresh_cache, self._filter_breaker)
        while not self._worker.can_take:
            if self._runtime.monotonic() > deadline:
                self.wakeup.set(0)
                return False
            operation = self._step(self._tuning.prefetch)
            # A sync that brought nothing, and whose reply leads to no other operation, is the last one.
            is_synced = isinstance(operation, Sync) and not self._worker.has_news
            if operation is None or (is_synced and not self._worker.needs_start):
                return self._worker.can_take
        return True

    def _has_news(self) -> bool:
        """Return whether the worker has something to send, after a refill of its outbox from disk."""
        if not self._worker.has_news and not self.disk_buffer.is_empty:
            for entry in self.disk_buffer.next_batch():
                self._worker.offer(entry)
            for call in self.disk_buffer.take_receipts_due():
                self._worker.ask_for_receipt(call)
        return self._worker.has_news

    def _step(self, want: int) -> QueueOperation | FilterOperation | None:
        """Execute the worker's next operation and return it."""
        if self.breaker.is_open or self.has_ended:
            raise RedisUnreachableError
        operation = self._worker.next_operation(want)
        breaker = self._filter_breaker if isinstance(operation, FilterOperation) else self.breaker
        repeats = self.call(partial(self._executor.execute, operation), breaker)
        if self._worker.phase is Phase.JOINING and operation is not None:
            if isinstance(operation, Join):
                self._log_closing()
            self.wakeup.set(MIN_PAUSE)
            raise RedisUnreachableError
        self._has_logged_closing = False
        self._report_delivery(operation, repeats)
        return operation

    def _log_closing(self) -> None:
        """Log once why this worker cannot join."""
        if not self._has_logged_closing:
            self._has_logged_closing = True
            logger.info(
                "Another worker closes the queue %r, to end an earlier crawl or to start over; this worker joins "
                "afterwards. If the other one is silent for its BLOOMFILTER_LEASE, it counts as dead, and this worker "
                "closes the queue",
                self._executor.queue,
            )

    def _report_delivery(
        self, operation: QueueOperation | FilterOperation | None, repeats: Sequence[OutboxEntry]
    ) -> None:
        """Report new requests, repeats and delivered batches after an operation."""
        if isinstance(operation, AskFilter):
            self._notifier.count(ENQUEUED, len(operation.entries) - len(repeats))
        for entry in repeats:
            self._notifier.notify_dropped(entry)
        if self._worker.state.receipts:
            self._notifier.confirm(self._worker.take_receipts())
