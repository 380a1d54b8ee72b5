"""The scheduler with at-least-once delivery: scrapy-redis's, with batches, outages and dead workers taken care of.

`queue.worker` decides what is done next, and this module does it. Nothing here waits for Redis during a crawl: while it
is away requests are kept, and the engine asks again.
"""

import contextlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.settings import BaseSettings
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object
from scrapy_redis import defaults
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import _engine
from scrapy_bloom._delivery import Delivery
from scrapy_bloom._last_line import told_at_exit
from scrapy_bloom.connection import connect, hiding_credentials, with_socket_timeouts
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, UnavailableError
from scrapy_bloom.monitoring.stats import DEAD_LETTERS, RECOVERED, UNSERIALIZABLE
from scrapy_bloom.queue.entries import OutboxEntry, QueueEntry
from scrapy_bloom.queue.heartbeats import Heartbeats
from scrapy_bloom.queue.keys import QueueKeys, queue_name
from scrapy_bloom.queue.operations import Ending, Exchange, Flush, Operation
from scrapy_bloom.queue.overflow import Overflow
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.queue.spool import Spool
from scrapy_bloom.queue.worker import AskFilter, FilterOperation, Phase, QueueWorker
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import CircuitBreaker, RedisAwayError, disable_client_retries, retry_until

logger = logging.getLogger(__name__)

# Requests that one exchange carries at most: more of them would keep others waiting.
_LARGEST_BATCH = 1000
# Requests that are taken at once, where so many wait.
_PREFETCH = 8
# Seconds for which delivery is tried at the end of a crawl; what remains goes to a file.
_LAST_TRY_SECONDS = 3.0
# Seconds for which the reactor is kept from other work.
_MOST_SECONDS = 0.03
# Seconds after which what is finished is acknowledged at the latest, and what waits here is queued.
_TICK_SECONDS = 0.25
# Seconds after which an idle worker asks again: the first time, and at most.
_IDLE_SECONDS = (0.1, 0.6)
# Unreadable requests whose errors are logged in full.
_TRACEBACKS = 3
# A server stores scores as floats.
_LARGEST_SCORE = sys.float_info.max
# scrapy-redis's own stats.
_ENQUEUED, _DEQUEUED = "scheduler/enqueued/redis", "scheduler/dequeued/redis"

T = TypeVar("T")


class BloomScheduler(Scheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's Scheduler with at-least-once delivery: no request is lost with a reply, a Redis or a worker.

    The queue and the requests in it are scrapy-redis's own, so that a crawl may change between both schedulers. It
    needs `BloomRFPDupeFilter` as DUPEFILTER_CLASS and scrapy-redis's `PriorityQueue`.

    Raises:
        ConfigError: a setting is not allowed, or another part does not work with this scheduler.
        UnavailableError: Redis was away at the start for BLOOMFILTER_RETRY_TIMEOUT seconds.

    Example:
        In a project's `settings.py`:

        >>> SCHEDULER = "scrapy_bloom.BloomScheduler"
        >>> DUPEFILTER_CLASS = "scrapy_bloom.BloomRFPDupeFilter"
        >>> REDIS_URL = "redis://localhost:6379"
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._config = BloomSettings()
        self._batch_size = self._config.batch_size
        self._breaker = CircuitBreaker()
        self._leased: dict[Request, bytes] = {}
        self._unreadable: set[bytes] = set()
        self._has_joined = False
        self._has_ended = False
        self._idle_since: float | None = None
        self._idle_pause = _IDLE_SECONDS[0]
        self._has_told = False

    @classmethod
    @told_at_exit()
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Connect, and make sure that the other parts work with this one.

        Args:
            settings: those of a crawl.

        Returns:
            A scheduler that is connected and not open yet.

        Raises:
            ConfigError: a setting is not allowed, or another part does not work with this scheduler.
            UnavailableError: Redis was away for BLOOMFILTER_RETRY_TIMEOUT seconds.
        """
        cls.check_settings(settings)
        config = BloomSettings.from_settings(settings)
        parent = super().from_settings
        # What cannot work is told of before it is used.
        retry_until(lambda: connect(settings), config.retry_timeout).close()
        with hiding_credentials():
            self: Self = retry_until(lambda: parent(with_socket_timeouts(settings)), config.retry_timeout)
        disable_client_retries(self.server)
        self._config = config
        self._batch_size = min(config.batch_size, _LARGEST_BATCH)
        return self

    @classmethod
    def check_settings(cls, settings: BaseSettings) -> None:
        """Make sure that the other parts of a crawl work with this one, before there is a connection.

        Args:
            settings: those of a crawl.

        Raises:
            ConfigError: one does not.
        """
        _refuse_unfit(settings)

    def __len__(self) -> int:
        """Return how many requests wait: in the queue, in this process, and taken ahead.

        While Redis is away, or before this scheduler is open, only those of this process are counted.
        """
        if not self._has_joined:
            return 0
        queued = 0
        with contextlib.suppress(RedisAwayError):
            queued = self._call(self._requests.count)
        return queued + len(self._worker.undelivered()) + len(self._worker.ready) + len(self._overflow)

    @told_at_exit()
    def open(self, spider: Spider) -> None:
        """Open queue and filter, join the workers, and queue what an earlier crawl could not deliver.

        Args:
            spider: the spider of this crawl.

        Raises:
            BloomError: the queue or the filter cannot be used; see `BloomFilter`.
        """
        self._requests = RequestQueue(self.server, queue_name(self.queue_key, spider.name))
        self._worker = QueueWorker(
            f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
            f"{self._config.lease:g}",
            self._batch_size,
            self._can_read,
        )
        self._heartbeats = Heartbeats(self._requests, self._worker.name, self._config.lease)
        self._wakeup = _engine.EngineWakeup(spider.crawler)
        self._ticker = _engine.Ticker(_TICK_SECONDS, self._tick)
        self._spool = Spool(self._requests.keys.queue, job_dir(spider.settings))
        self._overflow = Overflow(self._spool)
        retry_until(lambda: super(BloomScheduler, self).open(spider), self._config.retry_timeout)
        self._delivery = Delivery(self._worker, self._requests, self.df)
        # Also where joining fails: the worker may be registered by then, and `close` takes it out.
        self._has_joined = True
        self._heartbeats.start()
        self._join()
        logger.info("This worker is %s in the queue %r", self._worker.name, self._requests.keys.queue)
        self._restore_spooled()
        # From here on nothing may block the reactor for long.
        self.df.filter.retry_timeout = 0.0
        spider.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        _engine.apply_backpressure(
            spider.crawler, lambda: len(self._worker.outbox) < self._batch_size, _IDLE_SECONDS[-1]
        )
        self._ticker.start()

    def enqueue_request(self, request: Request) -> bool:
        """Keep a request for the next batch.

        Args:
            request: what the spider yielded.

        Returns:
            False if this process knows that it is a repeat, or if it cannot be serialised, else True. A repeat that
            only Redis knows is dropped later, with the signal `request_dropped`.
        """
        fingerprint = None
        if not request.dont_filter:
            fingerprint = self.df.fingerprint_of(request)
            if self.df.filter.is_cached(fingerprint) or self._is_waiting(fingerprint):
                self._log_repeat(request)
                return False
        try:
            member = self._requests.encode(self.queue._encode_request(request))
        except Exception as error:  # whatever the serialiser makes of it
            logger.error(
                "%s cannot be serialised and is not crawled: %s: %s. Its callback must be a method of the spider, and "
                "all in it what SCHEDULER_SERIALIZER can serialise",
                request,
                type(error).__name__,
                error,
            )
            self._count(UNSERIALIZABLE)
            return False
        if fingerprint is None:
            self._count(_ENQUEUED)
        entry = OutboxEntry(member, _score(request), fingerprint, request=request)
        if not self._overflow.put(entry, len(self._worker.outbox)):
            self._worker.offer(entry)
        if len(self._worker.outbox) >= self._batch_size:
            with contextlib.suppress(RedisAwayError):
                self._work(time.monotonic() + _MOST_SECONDS)
        return True

    def next_request(self) -> Request | None:
        """Take a request; before that, deliver what goes before those that were taken ahead.

        Returns:
            The request that goes first, or None: there is none, or Redis is away.
        """
        try:
            return self._next_request(time.monotonic() + _MOST_SECONDS)
        except RedisAwayError:
            return None

    def has_pending_requests(self) -> bool:
        """Deliver what waits, and look whether there is work.

        Returns:
            True if there is. While Redis is away nobody knows, and the crawl goes on.
        """
        try:
            self._note_finished()
            self._work(time.monotonic() + _MOST_SECONDS)
            is_idle = self._worker.is_idle and self._overflow.is_empty
            has_work = not is_idle or self._call(self._requests.count) > 0
        except RedisAwayError:
            return not self._has_ended
        if has_work:
            self._wakeup.set(_IDLE_SECONDS[0])
        return has_work

    def close(self, reason: str) -> None:
        """Deliver what waits, and leave; the last worker clears queue and filter unless SCHEDULER_PERSIST is set.

        Args:
            reason: why the spider was closed. Unless it is "finished", requests that wait are deleted, too.
        """
        if not self._has_joined:
            return
        self._ticker.stop()
        self._heartbeats.stop()
        self._show_recovered()
        self.df.filter.retry_timeout = _LAST_TRY_SECONDS
        may_clear = not (self.persist or self._has_ended or self._worker.phase is Phase.JOINING)
        clears = Ending.FINISHED if reason == "finished" else Ending.STOPPED
        try:
            retry_until(lambda: self._shut_down(clears if may_clear else Ending.KEEP), _LAST_TRY_SECONDS)
        except (BloomError, *FAULTS) as error:
            cause = error.cause if isinstance(error, UnavailableError) else describe(error)
            logger.error("Redis could not be told of the end of this worker: %s", cause)
        for receipt in self._worker.take_receipts():
            self._tell(receipt.call)
        self._keep_undelivered()

    def flush(self) -> None:
        """Delete the queue, what workers hold of it, and the filter.

        A worker that is at work has what it holds queued and marked again. With the other order it could queue a
        request in between: the queue would be deleted with it, and the new filter have it.
        """
        self._requests.execute(Flush(self._worker.name))
        self.df.clear()

    def when_queued(self, call: Callable[[], object]) -> None:
        """Have something called when all requests that were enqueued until now are leased or queued.

        Args:
            call: what is called, once; what it raises is logged. If this process dies before, it is not called.
        """
        if self._overflow.is_empty:
            self._worker.ask_for_receipt(call)
        else:
            self._overflow.afterwards.append(call)

    @property
    def worker_name(self) -> str:
        """The name by which this worker is registered in the queue's hash of workers, once this scheduler is open."""
        return self._worker.name

    @property
    def queue_keys(self) -> QueueKeys:
        """The keys of the queue, once this scheduler is open."""
        return self._requests.keys

    def ask_redis(self, work: Callable[[], T]) -> T:
        """Call what asks Redis by `server`; while Redis is away, nothing is called, but for a probe now and then.

        Args:
            work: what is called. A Redis that refuses what it asks ends the crawl.

        Returns:
            The result of `work`.

        Raises:
            RedisAwayError: Redis is away, or refused what it was asked and the crawl ends.
        """
        return self._call(work)

    def deliver(self) -> None:
        """Send all batches that wait.

        Raises:
            RedisAwayError: Redis is away, or refused what it was asked and the crawl ends.
        """
        self._work(float("inf"))

    def _join(self) -> None:
        """Join, at the start; a worker that closes the queue is waited for."""
        has_told = False
        while self._worker.phase is not Phase.WORKING:
            retry_until(self._delivery.carry_out_next, self._config.retry_timeout)
            if self._worker.phase is Phase.JOINING:
                if not has_told:
                    has_told = True
                    logger.info(
                        "The last worker of an earlier crawl closes the queue %r: this one starts when that is done, "
                        "or when that worker has been silent for its BLOOMFILTER_LEASE and counts as dead",
                        self._requests.keys.queue,
                    )
                time.sleep(_IDLE_SECONDS[0])

    def _next_request(self, deadline: float) -> Request | None:
        self._note_finished()
        while True:
            if self._worker.is_urgent:
                self._work(deadline)
            entry = self._worker.take()
            if entry is None:
                if not self._fill(deadline):
                    return None
                continue
            request = self._decode(entry)
            if request is not None:
                self._leased[request] = entry.member
                self._idle_since, self._idle_pause = None, _IDLE_SECONDS[0]
                self._count(_DEQUEUED)
                return request
            self._worker.set_aside(entry.member)

    def _fill(self, deadline: float) -> bool:
        """Take some requests from the queue, after all that waits here is delivered; return whether there are any."""
        while not self._worker.ready:
            if time.monotonic() > deadline:
                self._wakeup.set(0)
                return False
            operation = self._step(_PREFETCH)
            if operation is None or (isinstance(operation, Exchange) and not self._worker.has_news):
                return bool(self._worker.ready)
        return True

    def _work(self, deadline: float) -> None:
        """Deliver what waits here, as far as there is time."""
        while self._has_news() and self._step(0) is not None:
            if time.monotonic() > deadline:
                self._wakeup.set(0)
                return

    def _has_news(self) -> bool:
        """Return whether something waits here, after what waited on the disk has come back as far as there is room."""
        if not self._worker.has_news and not self._overflow.is_empty:
            for entry in self._overflow.next_portion(are_unsure=self._worker.expirations > 0):
                self._worker.offer(entry)
            for call in self._overflow.take_afterwards():
                self._worker.ask_for_receipt(call)
        return self._worker.has_news

    def _step(self, want: int) -> Operation | FilterOperation | None:
        """Carry out what the worker does next, and return it."""
        if self._breaker.is_open or self._has_ended:
            raise RedisAwayError
        operation, repeats = self._call(lambda: self._delivery.carry_out_next(want))
        if self._worker.phase is Phase.JOINING and operation is not None:
            # Another worker closes the queue.
            self._wakeup.set(_IDLE_SECONDS[0])
            raise RedisAwayError
        self._tell_of_delivery(operation, repeats)
        return operation

    def _tell_of_delivery(self, operation: Operation | FilterOperation | None, repeats: Sequence[OutboxEntry]) -> None:
        """Tell what became of requests by an operation: they are new, repeats, or safe."""
        if isinstance(operation, AskFilter):
            self._count(_ENQUEUED, len(operation.entries) - len(repeats))
        for entry in repeats:
            self._drop_duplicate(entry)
        for receipt in self._worker.take_receipts():
            self._tell(receipt.call)

    def _shut_down(self, ending: Ending) -> None:
        """Give back and deliver everything, and leave; go on with that where an attempt before has failed."""
        if not self._worker.is_leaving:
            self._worker.stop()
            self._note_finished()
            while not self._has_ended and self._worker.phase is not Phase.JOINING and self._has_news():
                self._tell_of_delivery(*self._delivery.carry_out_next())
                self._note_finished()
            self._worker.leave(ending)
        while self._worker.phase is not Phase.GONE:
            self._delivery.carry_out_next()

    def _keep_undelivered(self) -> None:
        undelivered = self._worker.undelivered()
        number = len(undelivered) + len(self._overflow)
        try:
            path = self._overflow.close(undelivered)
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

    def _restore_spooled(self) -> None:
        """Queue what an earlier crawl could not deliver. The filter may know it: the reply was lost."""
        for path, entries in self._spool.load():
            for entry in entries:
                self._worker.offer(replace(entry, is_unsure=True))
            while self._worker.has_news:
                # Others may have taken it for dead meanwhile.
                self._join()
                retry_until(self._delivery.carry_out_next, self._config.retry_timeout)
            logger.info("%d requests that could not be delivered before are queued, from %s", len(entries), path)

    def _is_waiting(self, fingerprint: bytes) -> bool:
        """Return whether an equal request waits to be checked; it counts as a repeat that the process knew."""
        is_waiting = self._worker.has_offered(fingerprint)
        self.df.filter.counters.cache_hits += is_waiting
        return is_waiting

    def _drop_duplicate(self, duplicate: OutboxEntry) -> None:
        """Tell of a repeat as the engine would have, had it been known at once; handlers may enqueue other requests."""
        request = duplicate.request
        if request is None:
            return
        self._log_repeat(request)
        self.spider.crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=self.spider)

    def _decode(self, entry: QueueEntry) -> Request | None:
        """Return the request that was serialised, or None: this worker cannot read it."""
        try:
            request: Request = self.queue._decode_request(self._requests.decode(entry.member))
        except Exception as error:  # whatever the serialiser or the spider makes of it
            self._unreadable.add(entry.member)
            self._count(DEAD_LETTERS)
            logger.error(
                "A request of the queue %r cannot be read; it is left for another worker: %s",
                self._requests.keys.queue,
                type(error).__name__,
                exc_info=len(self._unreadable) <= _TRACEBACKS,
            )
            return None
        return request

    def _can_read(self, entry: QueueEntry) -> bool:
        """Return whether this worker can read a request that another one could not."""
        if entry.member in self._unreadable:
            return False
        return self._decode(entry) is not None

    def _call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, unless Redis is known to be away.

        Raises:
            RedisAwayError: Redis is away, or refused what it was asked and the crawl ends.
        """
        if self._has_ended:
            raise RedisAwayError
        try:
            return self._breaker.call(work)
        except RedisAwayError:
            self._wakeup.set(_IDLE_SECONDS[-1])
            raise
        except (BloomError, *FAULTS) as error:
            self._has_ended = True
            self.df.end_crawl(error)
            raise RedisAwayError from None

    def _note_finished(self) -> None:
        """Note the requests that the engine is done with; what they led to was offered by then."""
        if not self._overflow.is_empty:
            return
        running = _engine.in_progress(self.spider.crawler)
        for request in [request for request in self._leased if request not in running]:
            self._worker.finish(self._leased.pop(request))

    def _tick(self) -> None:
        """Acknowledge what is finished, and queue what waits here, also while the engine asks for nothing."""
        if _engine.is_closing(self.spider.crawler):
            self._worker.stop()
        self._note_finished()
        self._show_recovered()
        self._tell(self.df.update_stats)
        with contextlib.suppress(RedisAwayError):
            self._work(time.monotonic() + _MOST_SECONDS)

    def _spider_idle(self) -> None:
        """Keep an idle worker while others hold requests that may lead to more, or may be dead."""
        if self._has_ended or self._worker.may_finish:
            return
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since > 2 * _IDLE_SECONDS[-1] and not self._has_told:
            self._has_told = True
            logger.info(
                "This worker is idle and waits for others: they have requests that may lead to more, or are silent and "
                "put back within BLOOMFILTER_LEASE = %g s",
                self._config.lease,
            )
        self._wakeup.set(self._idle_pause)
        self._idle_pause = min(2 * self._idle_pause, _IDLE_SECONDS[-1])
        raise DontCloseSpider

    def _show_recovered(self) -> None:
        stats, requeued = self.stats, self._heartbeats.requeued
        if stats is not None and requeued:
            self._tell(lambda: stats.set_value(RECOVERED, requeued))

    def _count(self, stat: str, number: int = 1) -> None:
        stats = self.stats
        if stats is not None:
            self._tell(lambda: stats.inc_value(stat, number))

    def _log_repeat(self, request: Request) -> None:
        # `_tell` would take as long as a repeat does.
        try:
            self.df.log(request, self.spider)
        except Exception:  # a collector of the user's may keep its stats anywhere
            logger.debug("A stats collector failed", exc_info=True)

    def _tell(self, tell: Callable[[], object]) -> None:
        """Tell the stats or the log of something. No request is lost if they fail."""
        try:
            tell()
        except Exception:  # a collector of the user's may keep its stats anywhere
            logger.debug("A stats collector failed", exc_info=True)


def _score(request: Request) -> float:
    """Return the score of a request in the queue: the lowest goes first, and none is beyond what a server can store."""
    return max(min(-request.priority, _LARGEST_SCORE), -_LARGEST_SCORE)


def _refuse_unfit(settings: BaseSettings) -> None:
    dupefilter = settings.get("DUPEFILTER_CLASS")
    kind = load_object(dupefilter)
    if not issubclass(kind, BloomRFPDupeFilter):
        raise ConfigError(
            f"DUPEFILTER_CLASS = {dupefilter!r}: BloomScheduler checks requests in batches, which only "
            "'scrapy_bloom.BloomRFPDupeFilter' and its subclasses can do; set that, or scrapy-redis's SCHEDULER"
        )
    if kind.request_seen is not BloomRFPDupeFilter.request_seen:
        raise ConfigError(
            f"DUPEFILTER_CLASS = {dupefilter!r}: it overrides request_seen, which BloomScheduler never calls, since it "
            "checks requests in batches; override request_fingerprint, or set scrapy-redis's SCHEDULER"
        )
    queue = settings.get("SCHEDULER_QUEUE_CLASS") or defaults.SCHEDULER_QUEUE_CLASS
    if not issubclass(load_object(queue), PriorityQueue):
        raise ConfigError(
            f"SCHEDULER_QUEUE_CLASS = {queue!r}: BloomScheduler holds what it takes from a sorted set, and a list has "
            "no command that gives the same guarantee; set 'scrapy_redis.queue.PriorityQueue', or scrapy-redis's "
            "SCHEDULER"
        )
