"""The scheduler with at-least-once delivery: scrapy-redis's, with batches, outages and dead workers taken care of.

This module is what Scrapy sees; `queue.worker` decides what is done next, and `delivery` does it. Nothing waits for
Redis during a crawl: while it is away requests are kept, and the engine asks again.
"""

import contextlib
import logging
import math
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.settings import BaseSettings
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object
from scrapy_redis import defaults
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom._scrapy import engine
from scrapy_bloom._scrapy.components import load_setting, read_flag, read_seconds, require_serializer
from scrapy_bloom._scrapy.connection import connect, refusing_unfit, with_socket_timeouts
from scrapy_bloom._scrapy.exit_report import reports_at_exit
from scrapy_bloom.delivery.codec import RequestCodec
from scrapy_bloom.delivery.dispatcher import MAX_PAUSE, MIN_PAUSE, Dispatcher, IdleBackoff
from scrapy_bloom.delivery.executor import Executor, refuse_other_spiders
from scrapy_bloom.dupefilter import UNUSABLE, BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, UnavailableError
from scrapy_bloom.monitoring.notifier import DEQUEUED, ENQUEUED, RequestNotifier
from scrapy_bloom.monitoring.stats import DEAD_LETTERS, QUEUE_LOSSES, RECOVERED
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.heartbeats import Heartbeats
from scrapy_bloom.queue.operations import EndClosing, Ending, Flush, Heartbeat
from scrapy_bloom.queue.queue_keys import QueueKeys, queue_name
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.queue.tuning import TUNING, Tuning
from scrapy_bloom.queue.worker import Phase, QueueWorker
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.spool.directory import SpoolDirectory
from scrapy_bloom.start_urls.feed import warn_of_popped_start_urls
from scrapy_bloom.transport.connections import disconnect
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import RedisAwayError, disable_client_retries, retry_until

logger = logging.getLogger(__name__)

# The reason with which a crawl ends whose queue has lost requests.
QUEUE_LOST = "bloomfilter_queue_lost"
# Seconds for which delivery is tried at the end of a crawl; what remains goes to a file.
_LAST_TRY_SECONDS = 3.0
# Seconds after which what is finished is acknowledged at the latest, and what waits here is queued.
_TICK_SECONDS = 0.25
# A server stores scores as floats.
_MAX_SCORE = sys.float_info.max

T = TypeVar("T")


class BloomScheduler(Scheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's Scheduler with at-least-once delivery: no request is lost with a reply, a Redis or a worker.

    The queue and the requests in it are scrapy-redis's own, so that a crawl may change between both schedulers. It
    needs `BloomRFPDupeFilter` as DUPEFILTER_CLASS and scrapy-redis's `PriorityQueue`.

    Attributes:
        worker_name: the name by which this worker is registered in the queue's hash of workers, once this is open.

    Raises:
        ConfigError: a setting is not allowed, or another part does not work with this scheduler.
        UnavailableError: Redis was away at the start for BLOOMFILTER_RETRY_TIMEOUT seconds.

    Example:
        In a project's `settings.py`:

        >>> SCHEDULER = "scrapy_bloom.BloomScheduler"
        >>> DUPEFILTER_CLASS = "scrapy_bloom.BloomRFPDupeFilter"
        >>> REDIS_URL = "redis://localhost:6379"
    """

    _runtime: ClassVar[Runtime] = RUNTIME
    _tuning: ClassVar[Tuning] = TUNING
    df: Any
    queue: Any
    spider: Spider

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._config = BloomSettings()
        self._batch_size = self._config.batch_size
        self._leased: dict[Request, bytes] = {}
        self._has_joined = False
        self._has_made_server = False

    @classmethod
    @reports_at_exit()
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
        retry_until(lambda: connect(settings), config.retry_timeout, runtime=cls._runtime).close()
        with refusing_unfit(settings):
            self: Self = retry_until(
                lambda: parent(with_socket_timeouts(settings)), config.retry_timeout, runtime=cls._runtime
            )
        disable_client_retries(self.server)
        self._has_made_server = True
        self._config = config
        self._batch_size = config.batch_size
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
        for name in ("SCHEDULER_PERSIST", "SCHEDULER_FLUSH_ON_START", "DUPEFILTER_DEBUG"):
            read_flag(settings, name)
        read_seconds(settings, "SCHEDULER_IDLE_BEFORE_CLOSE")
        require_serializer(settings)

    def __len__(self) -> int:
        """Return how many requests wait: in the queue, in this process, and taken ahead.

        While Redis is away, or before this scheduler is open, only those of this process are counted.
        """
        if not self._has_joined:
            return 0
        queued = 0
        with contextlib.suppress(RedisAwayError):
            queued = self._dispatcher.call(self._requests.count)
        return queued + len(self._dispatcher)

    @reports_at_exit()
    def open(self, spider: Spider) -> None:
        """Open queue and filter, join the workers, and queue what an earlier crawl could not deliver.

        Args:
            spider: the spider of this crawl.

        Raises:
            BloomError: the queue or the filter cannot be used; see `BloomFilter`.
        """
        self.worker_name = f"{self._runtime.process_name()}-{self._runtime.token_hex(4)}"
        self._requests = self._queue_at(queue_name(self.queue_key, spider.name))
        # Before SCHEDULER_FLUSH_ON_START deletes anything. A heartbeat registers nobody.
        heard = self._retry(lambda: self._requests.execute(Heartbeat(self.worker_name)))
        refuse_other_spiders(self._requests.keys.queue, heard, spider.name)
        self._retry(lambda: self._open_queue_and_filter(spider))
        self._set_up_delivery(spider)
        # Also where joining fails: the worker may be registered by then, and `close` takes it out.
        self._has_joined = True
        self._heartbeats.start()
        self._dispatcher.join(self._config.retry_timeout)
        logger.info("This worker is %s in the queue %r", self.worker_name, self._requests.keys.queue)
        self._dispatcher.restore_spooled(self._config.retry_timeout)
        warn_of_popped_start_urls(spider)
        # From here on nothing may block the reactor for long.
        self.df.filter.retry_timeout = 0.0
        spider.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        if self._has_made_server:
            # A spider's start URLs go back over it later than `close`.
            spider.crawler.signals.connect(self._disconnect, signals.spider_closed)
        engine.apply_backpressure(spider.crawler, self._has_room, MAX_PAUSE, self._runtime)
        self._ticker.start()

    def _open_queue_and_filter(self, spider: Spider) -> None:
        """Do what scrapy-redis's `open` does, which logs a crawl that goes on by the deprecated Spider.log."""
        self.spider = spider
        queue_class, key = load_object(self.queue_cls), self.queue_key % {"spider": spider.name}
        self.queue = queue_class(server=self.server, spider=spider, key=key, serializer=self.serializer)
        if self.df is None:
            self.df = load_object(self.dupefilter_cls).from_spider(spider)
        if self.flush_on_start:
            self.flush()
        waiting = len(self.queue)
        if waiting:
            logger.info(
                "This crawl goes on with %s requests in the queue %r", f"{waiting:,}", self._requests.keys.queue
            )

    def _queue_at(self, key: str) -> RequestQueue:
        return RequestQueue(self.server, key)

    def _spool_in(self, directory: str | None) -> SpoolDirectory:
        return SpoolDirectory(self._requests.keys.queue, directory, self._runtime)

    def _set_up_delivery(self, spider: Spider) -> None:
        self._notifier = RequestNotifier(spider, self.stats, self.df)
        self._codec = RequestCodec(self.queue, self._requests, self._notifier)
        lease = self._config.lease
        self._worker = QueueWorker(
            self.worker_name,
            f"{lease:g}",
            self._batch_size,
            self._codec.can_read,
            spider=spider.name,
            tuning=self._tuning,
            max_deliveries=self._config.max_deliveries,
        )
        self._heartbeats = Heartbeats(
            self._requests, self.worker_name, lease, self._config.max_deliveries, self._runtime
        )
        self._idleness = IdleBackoff(lease, self._runtime.monotonic)
        self._wakeup = engine.EngineWakeup(spider.crawler, self._runtime)
        self._ticker = engine.Ticker(_TICK_SECONDS, self._tick, self._runtime)
        executor = Executor(self._worker, self._requests, self.df, self._runtime)
        self._watch = executor.watch
        self._dispatcher = Dispatcher(
            executor,
            self._spool_in(job_dir(spider.settings)),
            self._notifier,
            self._wakeup,
            self.df.end_crawl,
            tuning=self._tuning,
            runtime=self._runtime,
        )

    def enqueue_request(self, request: Request) -> bool:
        """Keep a request for the next batch.

        Args:
            request: what the spider yielded.

        Returns:
            False if this process knows that it is a repeat, or if it cannot be serialised, else True. A priority that
            is no whole number cannot be. A repeat that only Redis knows is dropped later, with the signal
            `request_dropped`.
        """
        fingerprint = None
        if not request.dont_filter:
            fingerprint = self.df.fingerprint_of(request)
            if self.df.filter.is_cached(fingerprint) or self._is_waiting(fingerprint):
                self._notifier.log_repeat(request)
                return False
        member = self._codec.encode(request)
        if member is None:
            return False
        if fingerprint is None:
            self._notifier.count(ENQUEUED)
        self._dispatcher.put(OutboxEntry(member, _score(request), fingerprint, request=request), self._batch_size)
        return True

    def next_request(self) -> Request | None:
        """Take a request; before that, deliver what goes before those that were taken ahead.

        Returns:
            The request that goes first, or None: there is none, or Redis is away.
        """
        with contextlib.suppress(RedisAwayError):
            self._note_finished()
            deadline = self._dispatcher.reactor_deadline()
            while (entry := self._dispatcher.take(deadline)) is not None:
                request = self._codec.decode(entry)
                if request is not None:
                    self._leased[request] = entry.member
                    self._idleness.end()
                    self._notifier.count(DEQUEUED)
                    return request
                self._worker.dead_letter(entry.member)
        return None

    def has_pending_requests(self) -> bool:
        """Deliver what waits, and look whether there is work.

        Returns:
            True if there is. While Redis is away nobody knows, and the crawl goes on.
        """
        try:
            self._note_finished()
            self._dispatcher.deliver(self._dispatcher.reactor_deadline())
            has_work = not self._dispatcher.is_idle or self._dispatcher.call(self._requests.count) > 0
        except RedisAwayError:
            return not self._dispatcher.has_ended
        if has_work:
            self._wakeup.set(MIN_PAUSE)
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
        self._show_troubles()
        self.df.filter.retry_timeout = _LAST_TRY_SECONDS
        may_clear = not (self.persist or self._dispatcher.has_ended or self._worker.phase is Phase.JOINING)
        clears = Ending.FINISHED if reason in ("finished", QUEUE_LOST) else Ending.STOPPED
        ending = clears if may_clear else Ending.KEEP
        try:
            self._retry(
                lambda: self._dispatcher.leave(ending, self._note_finished, self.df.conclude), _LAST_TRY_SECONDS
            )
        except (BloomError, *FAULTS) as error:
            cause = error.cause if isinstance(error, UnavailableError) else describe(error)
            logger.error("Redis could not be told of the end of this worker: %s", cause)
        finally:
            self._notifier.confirm(self._worker.take_receipts())
            self._dispatcher.keep_undelivered()

    def flush(self) -> None:
        """Delete the queue, what workers hold of it, and the filter.

        A worker that is at work has what it holds queued and marked again. With the other order it could queue a
        request in between: the queue would be deleted with it, and the new filter have it.

        This worker closes the queue meanwhile, so that nobody joins and asks the old filter. If it dies, the worker
        that takes over deletes the filter.
        """
        self._requests.execute(Flush(self.worker_name, lease=f"{self._config.lease:g}"))
        self.df.clear()
        self._requests.execute(EndClosing(self.worker_name, clears=False))

    def when_queued(self, call: Callable[[], object]) -> None:
        """Have something called when all requests that were enqueued until now are leased or queued.

        Args:
            call: what is called, once; what it raises is logged. If this process dies before, it is not called.
        """
        self._dispatcher.when_delivered(call)

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
        return self._dispatcher.call(work)

    def deliver(self) -> None:
        """Send all batches that wait.

        Raises:
            RedisAwayError: Redis is away, or refused what it was asked and the crawl ends.
        """
        self._dispatcher.deliver(math.inf)

    def _retry(self, work: Callable[[], T], timeout: float | None = None) -> T:
        """Return the result of `work`, which blocks for as long as a start may wait, or for `timeout` seconds."""
        seconds = self._config.retry_timeout if timeout is None else timeout
        return retry_until(work, seconds, runtime=self._runtime)

    def _has_room(self) -> bool:
        return len(self._worker.outbox) < self._batch_size

    def _is_waiting(self, fingerprint: bytes) -> bool:
        """Return whether an equal request waits to be checked; it counts as a repeat that the process knew."""
        is_waiting = self._worker.has_offered(fingerprint)
        self.df.filter.counters.cache_hits += is_waiting
        return is_waiting

    def _note_finished(self) -> None:
        """Note the requests that the engine is done with; what they led to was offered by then."""
        if not self._dispatcher.disk_buffer.is_empty:
            return
        running = engine.in_progress(self.spider.crawler)
        for request in [request for request in self._leased if request not in running]:
            self._worker.finish(self._leased.pop(request))

    def _tick(self) -> bool:
        """Acknowledge what is finished, and queue what waits here, also while the engine asks for nothing.

        Return whether there is more than there was time for.
        """
        if engine.is_closing(self.spider.crawler):
            self._worker.stop()
        self._note_finished()
        self._show_troubles()
        self._notifier.call_safely(self.df.update_stats)
        try:
            return self._dispatcher.deliver(self._dispatcher.reactor_deadline())
        except RedisAwayError:
            return False

    def _spider_idle(self) -> None:
        """Keep an idle worker while others hold requests that may lead to more, or may be dead."""
        if self._dispatcher.has_ended:
            # Scrapy 2.13 closes an idle spider before it gets to what `end_crawl` asked of it.
            raise CloseSpider(UNUSABLE)
        if self._worker.may_finish:
            if self._watch.lost:
                raise CloseSpider(QUEUE_LOST)
            return
        self._wakeup.set(self._idleness.next_pause())
        raise DontCloseSpider

    def _disconnect(self) -> None:
        """Close the connections, the heartbeats' too."""
        disconnect(self.server)

    def _show_troubles(self) -> None:
        """Show what dead workers left, and what the queue lost."""
        if self._heartbeats.requeued:
            self._notifier.show(RECOVERED, self._heartbeats.requeued)
        if self._watch.losses:
            self._notifier.show(QUEUE_LOSSES, self._watch.losses)
        while self._heartbeats.buried:
            self._notifier.count(DEAD_LETTERS)
            logger.error(
                "%s: %d workers that had begun it died, one after another (BLOOMFILTER_MAX_DELIVERIES). It is not "
                "crawled, and is kept at the key %r; `scrapy bloom requeue` queues it again",
                self._codec.name(self._heartbeats.buried.popleft()),
                self._config.max_deliveries,
                self._requests.keys.dead_letters,
            )


def _score(request: Request) -> float:
    """Return the score of a request in the queue: the lowest goes first, and none is beyond what a server can store."""
    return max(min(-request.priority, _MAX_SCORE), -_MAX_SCORE)


def _refuse_unfit(settings: BaseSettings) -> None:
    dupefilter = settings.get("DUPEFILTER_CLASS")
    kind = load_setting(settings, "DUPEFILTER_CLASS", "scrapy_bloom.BloomRFPDupeFilter")
    if not (isinstance(kind, type) and issubclass(kind, BloomRFPDupeFilter)):
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
    if not issubclass(load_setting(settings, "SCHEDULER_QUEUE_CLASS", defaults.SCHEDULER_QUEUE_CLASS), PriorityQueue):
        raise ConfigError(
            f"SCHEDULER_QUEUE_CLASS = {queue!r}: BloomScheduler holds what it takes from a sorted set, and a list has "
            "no command that gives the same guarantee; set 'scrapy_redis.queue.PriorityQueue', or scrapy-redis's "
            "SCHEDULER"
        )
