"""scrapy-redis's scheduler with at-least-once delivery, in batches, through outages and deaths of workers.

This module is Scrapy's view: `queue.worker` decides the next operation, and `delivery` executes it. During a crawl no
call waits for an unreachable Redis: requests stay in the process, and the engine asks again.
"""

import contextlib
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.settings import BaseSettings
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom._format import plural
from scrapy_bloom._runtime import RUNTIME, TUNING, Runtime, Tuning
from scrapy_bloom._scrapy import engine
from scrapy_bloom._scrapy.components import require_scheduler_settings
from scrapy_bloom._scrapy.connection import connect, refusing_unfit
from scrapy_bloom._scrapy.exit_report import reports_at_exit
from scrapy_bloom._scrapy.redis_settings import RedisSettings
from scrapy_bloom.delivery.codec import RequestCodec, require_readable
from scrapy_bloom.delivery.dispatcher import MAX_PAUSE, MIN_PAUSE, Dispatcher, IdleBackoff
from scrapy_bloom.delivery.executor import Executor
from scrapy_bloom.dupefilter import UNUSABLE, BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, UnavailableError
from scrapy_bloom.monitoring.stats import DEQUEUED, ENQUEUED, QUEUE_LOSSES, RECOVERED, RequestNotifier
from scrapy_bloom.queue.heartbeats import Heartbeats
from scrapy_bloom.queue.operations import EndClosing, Ending, Flush, Heartbeat, RequestQueue, require_own_queue
from scrapy_bloom.queue.queue_keys import QueueKeys, queue_name
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.queue.worker_state import Phase
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.spool.directory import SpoolDirectory
from scrapy_bloom.start_urls.feed import warn_of_popped_start_urls
from scrapy_bloom.transport.client import disconnect
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import RedisUnreachableError, disable_client_retries, retry_until

logger = logging.getLogger(__name__)

# The close reason of a crawl whose queue has lost requests.
QUEUE_LOST = "bloomfilter_queue_lost"
# Delivery at the end of a crawl takes at most so long; undelivered requests then go to a file.
_LAST_TRY_SECONDS = 3.0

T = TypeVar("T")


class BloomScheduler(Scheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's Scheduler with at-least-once delivery: no lost reply, outage or dead worker loses a request.

    The queue and its requests are stored as scrapy-redis stores them, so a crawl can switch between both schedulers.
    BloomScheduler needs `BloomRFPDupeFilter` as DUPEFILTER_CLASS and scrapy-redis's `PriorityQueue`.

    Attributes:
        worker_name: the worker's name in the queue's hash of workers, set by `open`.

    Raises:
        ConfigError: a setting is invalid, or names a class that this scheduler cannot use.
        UnavailableError: Redis was unreachable at the start for BLOOMFILTER_RETRY_TIMEOUT seconds.

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
        # Read for every request: nearly every crawl has no pattern.
        self._has_always = bool(self._config.always)
        self._has_joined = False
        self._has_made_server = False

    @classmethod
    @reports_at_exit()
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Check the settings and connect.

        Args:
            settings: the crawl's settings.

        Returns:
            A connected scheduler, to be opened.

        Raises:
            ConfigError: a setting is invalid, or names a class that this scheduler cannot use.
            UnavailableError: Redis was unreachable for BLOOMFILTER_RETRY_TIMEOUT seconds.
        """
        cls.check_settings(settings)
        config = BloomSettings.from_settings(settings)
        parent = super().from_settings
        # An unusable client is refused before scrapy-redis makes its own.
        retry = partial(retry_until, timeout=config.retry_timeout, runtime=cls._runtime)
        disconnect(retry(lambda: connect(settings)))
        queue = RedisSettings(settings)
        with refusing_unfit(queue):
            self: Self = retry(lambda: parent(queue.for_scrapy_redis()))
        disable_client_retries(self.server)
        self._has_made_server = True
        self._config = config
        self._has_always = bool(config.always)
        return self

    @classmethod
    def check_settings(cls, settings: BaseSettings) -> None:
        """Check the settings that this scheduler depends on, without a connection.

        Args:
            settings: the crawl's settings.

        Raises:
            ConfigError: a setting is invalid, or names a class that this scheduler cannot use.
        """
        require_scheduler_settings(settings, BloomRFPDupeFilter)

    def __len__(self) -> int:
        """Return the number of requests in the queue and in this process.

        While Redis is unreachable, only the requests in this process are counted.
        """
        if not self._has_joined:
            return 0
        queued = 0
        with contextlib.suppress(RedisUnreachableError):
            queued = self._dispatcher.call(self._requests.count)
        return queued + len(self._dispatcher)

    @reports_at_exit()
    def open(self, spider: Spider) -> None:
        """Open the queue and the filter, join the workers, and queue undelivered requests of an earlier crawl.

        Args:
            spider: the crawl's spider.

        Raises:
            BloomError: the queue or the filter cannot be used; see `BloomFilter`.
        """
        self.worker_name = f"{self._runtime.process_name()}-{self._runtime.token_hex(4)}"
        self._requests = self._queue_at(queue_name(self.queue_key, spider.name))
        # A heartbeat lists the workers without joining them, before SCHEDULER_FLUSH_ON_START deletes anything.
        reply = self._retry(lambda: self._requests.execute(Heartbeat(self.worker_name)))
        require_own_queue(self._requests.keys.queue, reply, spider.name)
        self._retry(lambda: self._open_queue_and_filter(spider))
        self._set_up_delivery(spider)
        # Before joining: if that fails, the worker may be registered, and `close` has to remove it.
        self._has_joined = True
        self._heartbeats.start()
        self._dispatcher.join(self._config.retry_timeout)
        logger.info("This worker is %s in the queue %r", self.worker_name, self._requests.keys.queue)
        self._dispatcher.restore_spooled(self._config.retry_timeout)
        warn_of_popped_start_urls(spider)
        # From here on no call may block the reactor.
        self.df.filter.retry_timeout = 0.0
        spider.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        if self._has_made_server:
            # Not in `close`: start URLs are released over this connection afterwards.
            spider.crawler.signals.connect(self._disconnect, signals.spider_closed)
        engine.apply_backpressure(
            spider.crawler, lambda: len(self._worker.state.outbox) < self._config.batch_size, MAX_PAUSE, self._runtime
        )
        self._ticker.start()

    def _open_queue_and_filter(self, spider: Spider) -> None:
        """Do as scrapy-redis's `open`, which logs a resumed crawl with the deprecated Spider.log."""
        self.spider = spider
        queue_class, key = load_object(self.queue_cls), self.queue_key % {"spider": spider.name}
        self.queue = queue_class(server=self.server, spider=spider, key=key, serializer=self.serializer)
        # Before SCHEDULER_FLUSH_ON_START deletes anything.
        require_readable(self.queue, self._requests)
        if self.df is None:
            self.df = load_object(self.dupefilter_cls).from_spider(spider)
        if self.flush_on_start:
            self.flush()
        waiting = len(self.queue)
        if waiting:
            text, number = "The crawl resumes with %s in the queue %r", plural(waiting, "request")
            logger.info(text, number, self._requests.keys.queue)

    def _queue_at(self, key: str) -> RequestQueue:
        return RequestQueue(self.server, key)

    def _spool_directory(self, directory: str | None) -> SpoolDirectory:
        return SpoolDirectory(self._requests.keys.queue, directory, self._runtime)

    def _set_up_delivery(self, spider: Spider) -> None:
        self._notifier = RequestNotifier(spider, self.stats, self.df)
        note_failed = self.df.note_failed if self._config.forget_failed else None
        self._codec = RequestCodec(self.queue, self._requests, self._notifier, note_failed)
        lease = self._config.lease
        self._worker = QueueWorker(
            self.worker_name,
            f"{lease:g}",
            self._config.batch_size,
            self._codec.can_read,
            spider=spider.name,
            tuning=self._tuning,
            max_deliveries=self._config.max_deliveries,
        )
        self.df.forget_soon = self._worker.forget
        self._heartbeats = Heartbeats(
            self._requests, self.worker_name, lease, self._config.max_deliveries, self._runtime
        )
        self._idle_backoff = IdleBackoff(lease, self._runtime.monotonic)
        self._ticker = engine.Ticker(self._tuning.tick_seconds, self._tick, self._runtime)
        executor = Executor(self._worker, self._requests, self.df, self._runtime)
        self._watch = executor.watch
        self._dispatcher = Dispatcher(
            executor,
            self._codec,
            self._notifier,
            directory=self._spool_directory(job_dir(spider.settings)),
            crawler=spider.crawler,
            end_crawl=self.df.end_crawl,
            has_separate_filter=self.df.is_separate,
            tuning=self._tuning,
            runtime=self._runtime,
        )

    def enqueue_request(self, request: Request) -> bool:
        """Add a request to the next batch.

        Args:
            request: the request; its priority must be a whole number.

        Returns:
            False if the request is a known repeat or cannot be serialized, else True. A repeat that only Redis knows is
            dropped later, with the signal `request_dropped`.
        """
        fingerprint, is_unsure = None, False
        if not request.dont_filter:
            fingerprint = self.df.fingerprint_of(request)
            # By BLOOMFILTER_ALWAYS, "seen" does not count.
            is_unsure = self._has_always and self.df.is_new_once(request, fingerprint)
        if fingerprint is not None and not is_unsure:
            bloom = self.df.filter
            is_repeat = bloom.is_cached(fingerprint) or fingerprint in self.df.given_up
            if not is_repeat and self._worker.has_offered(fingerprint):
                # An equal request waits for the filter's reply.
                bloom.counters.cache_hits += 1
                is_repeat = True
            if is_repeat:
                self._notifier.note_repeat(request)
                return False
        entry = self._codec.encode(request, fingerprint, is_unsure=is_unsure)
        if entry is None:
            return False
        if fingerprint is None:
            self._notifier.count(ENQUEUED)
        self._dispatcher.put(entry, self._config.batch_size)
        return True

    def next_request(self) -> Request | None:
        """Take the request with the highest priority.

        Returns:
            The request, or None if the queue is empty or Redis is unreachable.
        """
        with contextlib.suppress(RedisUnreachableError):
            request = self._dispatcher.next_request()
            if request is not None:
                self._idle_backoff.reset()
                self._notifier.count(DEQUEUED)
            return request
        return None

    def has_pending_requests(self) -> bool:
        """Deliver the outbox and check for work.

        Returns:
            True if the queue or this process has requests, or if Redis is unreachable and the queue is unknown.
        """
        dispatcher = self._dispatcher
        try:
            dispatcher.note_finished()
            dispatcher.deliver_until(dispatcher.reactor_deadline())
            has_work = not dispatcher.is_idle or dispatcher.call(self._requests.count) > 0
        except RedisUnreachableError:
            return not dispatcher.has_ended
        if has_work:
            dispatcher.wakeup.set(MIN_PAUSE)
        return has_work

    def close(self, reason: str) -> None:
        """Deliver the outbox and leave; the last worker deletes queue and filter unless SCHEDULER_PERSIST is set.

        Args:
            reason: the spider's close reason. Unless it is "finished", queued requests are deleted, too.
        """
        if not self._has_joined:
            return
        self._ticker.stop()
        self._heartbeats.stop()
        self._report_losses()
        self.df.filter.retry_timeout = _LAST_TRY_SECONDS
        may_clear = not (self.persist or self._dispatcher.has_ended or self._worker.phase is Phase.JOINING)
        clears = Ending.FINISHED if reason in ("finished", QUEUE_LOST) else Ending.STOPPED
        ending = clears if may_clear else Ending.KEEP
        try:
            self._retry(lambda: self._dispatcher.leave(ending, self.df.conclude), _LAST_TRY_SECONDS)
        except (BloomError, *FAULTS) as error:
            cause = error.cause if isinstance(error, UnavailableError) else describe(error)
            logger.error("This worker could not leave the queue %r: %s", self._requests.keys.queue, cause)
        finally:
            self._notifier.confirm(self._worker.take_receipts())
            self._dispatcher.keep_undelivered()

    def flush(self) -> None:
        """Delete the queue, the workers' leases, and then the filter.

        Active workers queue and mark their requests again. In the other order a worker could queue a request between
        the two deletions: the request would be deleted with the queue, while the new filter calls it seen.

        This worker closes the queue in the meantime, so that no worker joins and asks the old filter. If it dies,
        another worker takes over and deletes the filter.
        """
        self._requests.execute(Flush(self.worker_name, lease_seconds=f"{self._config.lease:g}"))
        self.df.clear()
        # A worker that is about to join stays registered. A worker at work rejoins, as all others do.
        stays = not self._has_joined
        self._requests.execute(EndClosing(self.worker_name, clears=False, stays=stays, spider=self.spider.name))

    def when_queued(self, call: Callable[[], object]) -> None:
        """Call `call` once all requests enqueued so far are leased or queued.

        Args:
            call: called at most once; its errors are logged. A worker that dies before does not call it.
        """
        self._dispatcher.when_delivered(call)

    @property
    def queue_keys(self) -> QueueKeys:
        """The queue's keys, after `open`."""
        return self._requests.keys

    def ask_redis(self, work: Callable[[], T]) -> T:
        """Call a function that sends commands by `server`; while Redis is unreachable, call it only as a probe.

        Args:
            work: the function. If Redis refuses its commands, the crawl ends.

        Returns:
            The result of `work`.

        Raises:
            RedisUnreachableError: Redis is unreachable, or has refused a command and the crawl ends.
        """
        return self._dispatcher.call(work)

    def deliver(self) -> None:
        """Deliver the outbox, however long it takes.

        Raises:
            RedisUnreachableError: Redis is unreachable, or has refused a command and the crawl ends.
        """
        self._dispatcher.deliver_until(math.inf)

    def _retry(self, work: Callable[[], T], timeout: float | None = None) -> T:
        """Return the result of `work`; block and retry for BLOOMFILTER_RETRY_TIMEOUT or `timeout` seconds."""
        seconds = self._config.retry_timeout if timeout is None else timeout
        return retry_until(work, seconds, runtime=self._runtime)

    def _tick(self) -> bool:
        """Acknowledge finished requests and deliver the outbox while the engine asks for nothing.

        Returns:
            True if time was too short for everything.
        """
        if engine.is_closing(self.spider.crawler):
            self._worker.stop()
        self._dispatcher.note_finished()
        self._report_losses()
        self.df.update_stats()
        try:
            return self._dispatcher.deliver_until(self._dispatcher.reactor_deadline())
        except RedisUnreachableError:
            return False

    def _spider_idle(self) -> None:
        """Keep an idle worker while other workers hold requests, which may lead to more or may be requeued."""
        if self._dispatcher.has_ended:
            # Scrapy 2.13 closes an idle spider, with its own reason, before `end_crawl` takes effect.
            raise CloseSpider(UNUSABLE)
        if self._worker.state.may_finish:
            if self._watch.lost:
                raise CloseSpider(QUEUE_LOST)
            return
        self._dispatcher.wakeup.set(self._idle_backoff.next_pause())
        raise DontCloseSpider

    def _disconnect(self) -> None:
        """Close the connections, including the heartbeats'."""
        disconnect(self.server)

    def _report_losses(self) -> None:
        """Report the leases of dead workers, lost requests and new dead letters."""
        if self._heartbeats.requeued:
            self._notifier.show(RECOVERED, self._heartbeats.requeued)
        if self._watch.losses:
            self._notifier.show(QUEUE_LOSSES, self._watch.losses)
        while self._heartbeats.dead_letters:
            self._codec.report_buried(self._heartbeats.dead_letters.popleft(), self._config.max_deliveries)
