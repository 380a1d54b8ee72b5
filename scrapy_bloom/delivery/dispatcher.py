"""Deliver requests within the time that the reactor can spare, and only while Redis answers."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom._scrapy.engine import EngineWakeup
from scrapy_bloom.delivery.executor import Executor
from scrapy_bloom.errors import BloomError
from scrapy_bloom.monitoring.notifier import ENQUEUED, RequestNotifier
from scrapy_bloom.queue.entries import OutboxEntry, QueueEntry
from scrapy_bloom.queue.operations import Ending, Join, QueueOperation, Sync
from scrapy_bloom.queue.sync import AskFilter, FilterOperation, members_of
from scrapy_bloom.queue.tuning import TUNING, Tuning
from scrapy_bloom.queue.worker import Phase
from scrapy_bloom.spool.buffer import DiskBuffer
from scrapy_bloom.spool.directory import SpoolDirectory
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.retry import CircuitBreaker, RedisAwayError, require_not_stopped, retry_until

logger = logging.getLogger(__name__)

# Seconds after which an idle worker asks again: the first time, and at most.
MIN_PAUSE, MAX_PAUSE = 0.1, 0.6


class IdleBackoff:
    """Tells how long an idle worker waits before it asks again, and logs once why it does not end."""

    def __init__(self, lease: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lease = lease
        self._since: float | None = None
        self._pause = MIN_PAUSE
        self._has_told = False

    def end(self) -> None:
        """Note that there is work again."""
        self._since, self._pause = None, MIN_PAUSE

    def next_pause(self) -> float:
        """Return the seconds to wait now: each time twice as long, up to a limit."""
        now = self._monotonic()
        if self._since is None:
            self._since = now
        if now - self._since > 2 * MAX_PAUSE and not self._has_told:
            self._has_told = True
            logger.info(
                "This worker is idle and waits for others: they have requests that may lead to more, or are silent and "
                "put back within BLOOMFILTER_LEASE = %g s",
                self._lease,
            )
        pause, self._pause = self._pause, min(2 * self._pause, MAX_PAUSE)
        return pause


T = TypeVar("T")


class Dispatcher:
    """Has the worker of `executor` join, deliver, take requests and leave; nothing in between waits for Redis.

    What is too much for memory waits in a file of `spool`. A Redis that refuses what it is asked ends the crawl:
    `end_crawl` is called with its error, and nothing is asked any more.
    """

    def __init__(
        self,
        executor: Executor,
        spool: SpoolDirectory,
        notifier: RequestNotifier,
        wakeup: EngineWakeup,
        end_crawl: Callable[[Exception], object],
        *,
        tuning: Tuning = TUNING,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self.breaker = CircuitBreaker(runtime)
        self.disk_buffer = DiskBuffer(spool, tuning)
        self._tuning = tuning
        self._runtime = runtime
        self.has_ended = False
        self._has_logged_closing = False
        self._worker = executor.worker
        self._executor = executor
        self._spool = spool
        self._notifier = notifier
        self._wakeup = wakeup
        self._end_crawl = end_crawl

    def __len__(self) -> int:
        """Return how many requests wait in this process, or were taken ahead."""
        waiting = {*members_of(self._worker.undelivered()), *members_of(self._worker.ready)}
        return len(waiting) + len(self.disk_buffer)

    @property
    def is_idle(self) -> bool:
        """True if nothing waits here, and nothing is under way."""
        return self._worker.is_idle and self.disk_buffer.is_empty

    # At the start, where it blocks.

    def join(self, timeout: float) -> None:
        """Join the workers of the queue; one that closes it is waited for. Redis may be away for `timeout` seconds."""
        while self._worker.phase is not Phase.WORKING:
            self._deliver_within(timeout)
            if self._worker.phase is Phase.JOINING:
                self._log_closing()
                self._runtime.sleep(MIN_PAUSE)
                require_not_stopped(timeout, f"Another worker closes the queue {self._executor.queue!r}")

    def restore_spooled(self, timeout: float) -> None:
        """Queue the undelivered requests of an earlier crawl."""
        for path, entries in self._spool.load(self._tuning.spool_batch):
            for entry in entries:
                self._worker.offer(entry)
            while self._worker.has_news:
                # Others may have taken it for dead meanwhile.
                self.join(timeout)
                require_not_stopped(timeout, f"{path} is being queued")
                self._deliver_within(timeout)
            logger.info("%d requests that could not be delivered before are queued, from %s", len(entries), path)

    def _deliver_within(self, timeout: float) -> None:
        retry_until(self._executor.execute_next, timeout, runtime=self._runtime)

    # During the crawl.

    def reactor_deadline(self) -> float:
        """Return the time by which the reactor is to have its thread back, on the monotonic clock."""
        return self._runtime.monotonic() + self._tuning.reactor_seconds

    def put(self, entry: OutboxEntry, batch_size: int) -> None:
        """Keep a request for the next batch, and deliver that when it is full, unless Redis is away."""
        if not self.disk_buffer.put(entry, len(self._worker.outbox)):
            self._worker.offer(entry)
        if len(self._worker.outbox) >= batch_size:
            with contextlib.suppress(RedisAwayError):
                self.deliver(self.reactor_deadline())

    def deliver(self, deadline: float) -> bool:
        """Deliver what waits here, as far as there is time.

        Returns:
            True if time was too short for all of it.

        Raises:
            RedisAwayError: Redis is away, or refused what it was asked and the crawl ends.
        """
        while self._has_news() and self._step(0) is not None:
            if self._runtime.monotonic() > deadline:
                self._wakeup.set(0)
                return True
        return False

    def take(self, deadline: float) -> QueueEntry | None:
        """Return what goes first, or None: there is nothing, or no more time.

        Before that, deliver what goes before those that were taken ahead.

        Raises:
            RedisAwayError: as `deliver`.
        """
        while True:
            if self._worker.is_urgent:
                self.deliver(deadline)
            entry = self._worker.take()
            if entry is not None or not self._fill(deadline):
                return entry

    def when_delivered(self, call: Callable[[], object]) -> None:
        """Have something called when all that was put until now is leased or queued."""
        if self.disk_buffer.is_empty:
            self._worker.ask_for_receipt(call)
        else:
            self.disk_buffer.afterwards.append(call)

    def call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, unless Redis is known to be away.

        Raises:
            RedisAwayError: Redis is away, or refused what it was asked and the crawl ends.
        """
        if self.has_ended:
            raise RedisAwayError
        try:
            return self.breaker.call(work)
        except RedisAwayError:
            self._wakeup.set(MAX_PAUSE)
            raise
        except (BloomError, *FAULTS) as error:
            self.has_ended = True
            self._end_crawl(error)
            raise RedisAwayError from None

    # At the end.

    def leave(self, ending: Ending, note_finished: Callable[[], object], conclude: Callable[[], object]) -> None:
        """Give back and deliver everything, and leave; go on with that where an attempt before has failed.

        When everything is delivered, `conclude` is called: from then on the filter may be deleted by others.
        """
        if not self._worker.is_leaving:
            self._worker.stop()
            note_finished()
            while not self.has_ended and self._worker.phase is not Phase.JOINING and self._has_news():
                self._report_delivery(*self._executor.execute_next())
                note_finished()
            conclude()
            self._worker.leave(ending)
        while self._worker.phase is not Phase.GONE:
            self._executor.execute_next()

    def keep_undelivered(self) -> None:
        """Write undelivered requests to a file, for a later start. Warnings that were left out are logged before."""
        self._executor.warnings.flush()
        undelivered = self._worker.undelivered()
        number = len(undelivered) + len(self.disk_buffer)
        try:
            path = self.disk_buffer.close(undelivered)
        except OSError as error:
            logger.error("%s", error)
        else:
            if path is not None:
                logger.error(
                    "%d requests that could not be delivered are in %s: a crawl that is started in the same directory "
                    "takes them up",
                    number,
                    path,
                )

    # One step.

    def _fill(self, deadline: float) -> bool:
        """Take some requests from the queue, after all that waits here is delivered; return whether there are any."""
        while not self._worker.can_take:
            if self._runtime.monotonic() > deadline:
                self._wakeup.set(0)
                return False
            operation = self._step(self._tuning.prefetch)
            is_told = isinstance(operation, Sync) and not self._worker.has_news
            if operation is None or (is_told and not self._worker.needs_start):
                return self._worker.can_take
        return True

    def _has_news(self) -> bool:
        """Return whether something waits here, after what waited on the disk has come back as far as there is room."""
        if not self._worker.has_news and not self.disk_buffer.is_empty:
            for entry in self.disk_buffer.next_batch():
                self._worker.offer(entry)
            for call in self.disk_buffer.take_receipts_due():
                self._worker.ask_for_receipt(call)
        return self._worker.has_news

    def _step(self, want: int) -> QueueOperation | FilterOperation | None:
        """Carry out what the worker does next, and return it."""
        if self.breaker.is_open or self.has_ended:
            raise RedisAwayError
        operation, repeats = self.call(lambda: self._executor.execute_next(want))
        if self._worker.phase is Phase.JOINING and operation is not None:
            if isinstance(operation, Join):
                self._log_closing()
            self._wakeup.set(MIN_PAUSE)
            raise RedisAwayError
        self._has_logged_closing = False
        self._report_delivery(operation, repeats)
        return operation

    def _log_closing(self) -> None:
        """Tell once why this worker waits before it joins."""
        if not self._has_logged_closing:
            self._has_logged_closing = True
            logger.info(
                "The last worker of an earlier crawl closes the queue %r, or another worker begins anew: this one "
                "waits until that is done, or until that worker has been silent for its BLOOMFILTER_LEASE and "
                "counts as dead",
                self._executor.queue,
            )

    def _report_delivery(
        self, operation: QueueOperation | FilterOperation | None, repeats: Sequence[OutboxEntry]
    ) -> None:
        """Tell what became of requests by an operation: they are new, repeats, or safe."""
        if isinstance(operation, AskFilter):
            self._notifier.count(ENQUEUED, len(operation.entries) - len(repeats))
        for entry in repeats:
            self._notifier.notify_dropped(entry)
        self._notifier.confirm(self._worker.take_receipts())
