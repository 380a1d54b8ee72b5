"""Scrapy's scheduler on the shared queue: requests on one side, one atomic script at a time on the other.

This module is Scrapy's view: `queue.worker` decides the next calls. Each call of Scrapy makes one round trip at most.
While Redis is silent the engine gets nothing new, so the process holds no more than the links of its running pages.
"""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.settings import BaseSettings, SettingsAttribute
from scrapy_redis import defaults, pipelines
from scrapy_redis.scheduler import Scheduler
from scrapy_redis.spiders import RedisMixin

from scrapy_bloom import engine
from scrapy_bloom.codec import RequestCodec, misread, order_of, require_serializer
from scrapy_bloom.command import report_at_exit, reports_at_exit
from scrapy_bloom.components import (
    CALLS,
    OF_DUPEFILTERS,
    OF_SCHEDULERS,
    is_unfiltered,
    place_of,
    require_dupefilter,
    require_key,
    require_methods,
    require_one_server,
    require_queue,
    without_effect,
)
from scrapy_bloom.dupefilter import BloomRFPDupeFilter, share_delay
from scrapy_bloom.errors import BloomError, ConfigError, RefusedError
from scrapy_bloom.filter.info import Counters, FilterInfo, describe_reply, foreign_key, read_filter, sum_of
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.pipelines import WaitingPipeline
from scrapy_bloom.queue.heartbeat import Heartbeat
from scrapy_bloom.queue.inspection import first_request
from scrapy_bloom.queue.keys import FilterKey, another_count, partition_keys, queue_of
from scrapy_bloom.queue.messages import Entry, JoinRefusedError, Offer, Outcome, Received, Terms
from scrapy_bloom.queue.queue import Queue
from scrapy_bloom.queue.request_queue import RequestQueue, Sender, require_slot_of_start
from scrapy_bloom.queue.worker import Worker
from scrapy_bloom.report import (
    DEAD_LETTERS,
    DEQUEUED,
    ENQUEUED,
    FAILED,
    UNSERIALIZABLE,
    CrawlReporter,
    QueueReport,
    call_safely,
    warn_about_memory,
)
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.settings import BloomSettings, is_or_copies, path_of, read_flag
from scrapy_bloom.start_data import StartData, data_of, is_start, why_it_pops
from scrapy_bloom.stats import guard_stats
from scrapy_bloom.text import as_text, get_logger, plural
from scrapy_bloom.transport.connect import RedisSettings, connect, disconnect, is_cluster
from scrapy_bloom.transport.failures import FAULTS, caught_error, cause_of, describe
from scrapy_bloom.transport.retry import (
    LAST_TRY_SECONDS,
    CircuitBreaker,
    RedisUnreachableError,
    disable_client_retries,
    retry_until,
)
from scrapy_bloom.unique_items import UniqueItemsPipeline

logger = get_logger(__name__)

# The close reason of a crawl whose queue has lost requests.
QUEUE_LOST = "bloomfilter_queue_lost"
# Seconds between two syncs at most, even while the engine asks for nothing.
_TICK_SECONDS = 0.25
# Seconds until an idle worker asks Redis again; the last, if no worker holds anything.
_MIN_PAUSE, _MAX_PAUSE, _QUIET_PAUSE = 0.1, 0.6, 1.0
# Requests to take ahead at most. A worker holds no more than its share of all, so that this starves no other.
_PREFETCH = 16
# Seconds in which news wait for the next requests that are taken.
_REST_SECONDS = 1.0
# Seconds after which an idle worker says that it waits.
_WAIT_SECONDS = 1.2
# Start data that are logged with a traceback.
_MAX_TRACEBACKS = 3
_POPS = "The spider %r pops its start URLs by itself, since %s: a killed worker loses those that it has just taken. %s"
# Between the class of the spider and its serializer in a registration.
_WITH = " with "

T = TypeVar("T")


class BloomScheduler(Scheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's Scheduler with at-least-once delivery: no lost reply, outage or dead worker loses a request.

    With scrapy-redis's `PriorityQueue`, the default, requests are stored as scrapy-redis stores them, so a crawl can
    switch between both schedulers. BloomScheduler needs `BloomRFPDupeFilter` as DUPEFILTER_CLASS.

    Attributes:
        worker_name: the worker's name in the queue, set by `open`.
        queue_keys: the keys of the queue, set by `open`.

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
    df: Any
    queue: Any
    spider: Spider
    _config = BloomSettings()
    _has_opened = _has_joined = _has_waited = _holds_pages = _has_ended = _is_silent = _has_more = False
    _kept = _local = _buried = 0  # failed requests, unserializable ones, start data that are dead letters

    # The start.

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
        for each in without_effect(settings):
            logger.warning("%s has no effect under BloomScheduler: %s", *each)
        config = BloomSettings.from_settings(settings)
        parent = super().from_settings
        # An unusable client is refused before scrapy-redis makes its own.
        retry = partial(retry_until, timeout=config.retry_timeout, runtime=cls._runtime)
        disconnect(retry(lambda: connect(settings)))
        given = RedisSettings(settings).for_scrapy_redis()
        if is_unfiltered(settings):  # scrapy-redis would call a method that this class lacks
            given.attributes["DUPEFILTER_CLASS"] = SettingsAttribute(BloomRFPDupeFilter, 0)
        scheduler: Self = retry(lambda: parent(given))
        return scheduler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the scheduler, as Scrapy does.

        Args:
            crawler: the crawl.

        Returns:
            A connected scheduler, to be opened.
        """
        scheduler: Self = super().from_crawler(crawler)
        crawler.signals.connect(scheduler._require_opened, signals.spider_opened)
        return scheduler

    def _require_opened(self, spider: Spider) -> None:
        """End the crawl of a subclass whose `open` does not call this one."""
        if not self._has_joined:
            error = ConfigError(
                f"SCHEDULER = {path_of(type(self))!r}: its open does not call super().open(spider), which joins the "
                "workers of the queue; call it, choose keys by SCHEDULER_QUEUE_KEY and SCHEDULER_DUPEFILTER_KEY, where "
                "%(x)s is the attribute x of the spider, or use scrapy-redis's SCHEDULER"
            )
            engine.end_crawl(spider.crawler, error, self._runtime)

    @classmethod
    def check_settings(cls, settings: BaseSettings) -> None:
        """Check the settings that this scheduler depends on, without a connection.

        Args:
            settings: the crawl's settings.

        Raises:
            ConfigError: a setting is invalid, or names a class that this scheduler cannot use.
        """
        require_methods("SCHEDULER", path_of(cls), cls, BloomScheduler, OF_SCHEDULERS)
        if not is_unfiltered(settings):
            require_dupefilter(settings.get("DUPEFILTER_CLASS"))
        require_queue(settings.get("SCHEDULER_QUEUE_CLASS"))
        for name in ("SCHEDULER_PERSIST", "SCHEDULER_FLUSH_ON_START", "DUPEFILTER_DEBUG"):
            read_flag(settings, name)
        require_serializer(settings)

    @reports_at_exit()
    def open(self, spider: Spider) -> None:
        """Join the workers of the queue; its filter is created if there is none.

        Args:
            spider: the crawl's spider.

        Raises:
            BloomError: the queue or the filter cannot be used.
        """
        self.spider, settings = spider, spider.settings
        guard_stats(spider.crawler, self._runtime)
        # Again, since a subclass may have its own from_settings.
        self.check_settings(settings)
        self._config = config = BloomSettings.from_settings(settings)
        disable_client_retries(self.server)
        self._require_attributes()
        share_delay(spider.crawler, self._runtime)
        self.worker_name = f"{self._runtime.process_name()}-{self._runtime.token_hex(4)}"
        key = FilterKey.of_workers(settings, spider, is_clustered=is_cluster(self.server)).require_keeping()
        keys = partition_keys(queue_of(settings, spider), key.name, config.partitions)
        self._is_unfiltered = is_unfiltered(settings)
        self._ahead = min(_PREFETCH, settings.getint("CONCURRENT_REQUESTS") or _PREFETCH)
        self._queues = [RequestQueue(self.server, *each) for each in keys]
        self.queue_keys, self._filter_key, self._is_shared = self._queues[0].keys, key.name, key.is_shared
        make = require_dupefilter(self.dupefilter_cls).unopened
        self.df = self._retry(lambda: make(settings, key.name, spider.crawler))
        queue_key = self.queue_keys.queue.replace("%", "%%")  # scrapy-redis's queue inserts the spider's name
        self.queue = require_queue(self.queue_cls)(self.server, spider, queue_key, serializer=self.serializer)
        require_key("SCHEDULER_DUPEFILTER_KEY", self.df, key.name)
        require_key("SCHEDULER_QUEUE_KEY", self.queue, self.queue_keys.queue)
        require_methods("DUPEFILTER_CLASS", self.dupefilter_cls, self.df, BloomRFPDupeFilter, OF_DUPEFILTERS)
        require_one_server(self, self.df, self.queue)
        self._parameters: FilterParameters = self.df.parameters().of_partition(config.partitions)
        self._require_readable()
        self._take_over_lists()
        self._starts = self._start_data()
        self._set_up(spider, keys)
        self._join()
        self._has_joined = True
        logger.info("This worker is %s in the queue %r", self.worker_name, self.queue_keys.queue)
        self._prepare_pipelines()
        spider.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        spider.crawler.signals.connect(self._disconnect, signals.spider_closed)
        engine.follow_start(spider.crawler, self._note_start, self._has_room, _MAX_PAUSE, self._runtime)
        self._ticker.start()

    def _retry(self, work: Callable[[], T]) -> T:
        """Return the result of `work` at the start, which may block."""
        return retry_until(work, self._config.retry_timeout, runtime=self._runtime)

    def _require_attributes(self) -> None:
        """Refuse keys and a dupefilter that a subclass has chosen: `scrapy bloom` finds a crawl by its settings."""
        for name in ("queue_key", "dupefilter_key"):
            setting = f"SCHEDULER_{name.upper()}"
            require_key(setting, self, self.spider.settings.get(setting) or getattr(defaults, setting), name)
        if self.df is not None and not self._has_opened:
            raise ConfigError(
                f"DUPEFILTER_CLASS: {type(self).__qualname__} has the df {self.df!r} already, which BloomScheduler "
                "does not use; set DUPEFILTER_CLASS to its class, or use scrapy-redis's SCHEDULER"
            )

    def _require_readable(self) -> None:
        """Refuse a queue whose first request was written by another SCHEDULER_SERIALIZER."""
        for queue in () if self.flush_on_start else self._queues:
            first = self._retry(partial(first_request, self.server, queue.keys.queue))
            _, failed = self._retry(partial(queue.read_failed, 0))
            for member in [*([first] if first else []), *(kept.member for _, kept in failed[:1])]:
                writer = misread(member, self.queue.serializer)
                if writer is not None:
                    by = f" with {writer!r}" if writer else " with another one, or by another SCHEDULER_QUEUE_CLASS"
                    that = f"SCHEDULER_SERIALIZER = {writer!r}" if writer else "that one"
                    raise self._wrong_serializer(
                        f"a request of the queue {queue.keys.queue!r} was written{by}, and this crawl cannot read it. "
                        f"If your crawls have written it, set {that} until all are fetched, since a foreign pickle can "
                        "execute code; or SCHEDULER_FLUSH_ON_START = True"
                    )

    def _take_over_lists(self) -> None:
        """Move the requests that wait in a list of scrapy-redis, since workers lease them from a sorted set."""
        order = order_of(type(self.queue))
        for queue in self._queues:
            key, rest = queue.keys.queue, queue.keys.rest
            kinds = [as_text(self._retry(partial(self.server.type, each))) for each in (key, rest)]
            if kinds[0] != "list" and kinds[1] == "none":
                continue
            if self.flush_on_start:
                self._retry(partial(self.server.delete, rest, *[key] * (kinds[0] == "list")))
            elif not order:
                raise ConfigError(
                    f"SCHEDULER_QUEUE_CLASS = {self.queue_cls!r}: the requests at {key!r} wait in a list; set the "
                    "class that has written it, 'scrapy_redis.queue.FifoQueue' or 'scrapy_redis.queue.LifoQueue', or "
                    "SCHEDULER_FLUSH_ON_START = True to delete it"
                )
            else:
                # A refused crawl leaves the list to scrapy-redis.
                if found := self._retry(partial(read_filter, self.server, queue.filter_key)):
                    self._parameters.verify(queue.filter_key, found.parameters.to_json())
                while self._retry(partial(queue.convert, "zset", order)):
                    pass
                logger.info("Moved the requests of the list at %r into a sorted set", key)

    def _wrong_serializer(self, why: str) -> ConfigError:
        return ConfigError(f"SCHEDULER_SERIALIZER = {self.spider.settings.get('SCHEDULER_SERIALIZER')!r}: {why}")

    def _start_data(self) -> StartData | None:
        """Return the start data of scrapy-redis's spiders, unless the spider pops them by itself."""
        spider = self.spider
        if not isinstance(spider, RedisMixin):
            if is_or_copies(type(spider), RedisMixin, "next_requests"):
                way = "Derive it from scrapy_bloom.RedisSpider or RedisCrawlSpider"
                logger.warning(_POPS, spider.name, "its RedisMixin is a copy of scrapy-redis's", way)
            return None
        why = why_it_pops(spider)
        if why is None and place_of(spider) != place_of(self):
            why = "its server is another one than the queue's"
        if why is None:
            starts = StartData(spider, self._runtime)
            for key in starts.keys if is_cluster(self.server) else ():
                require_slot_of_start(self.queue_keys, key, spider.name)
            return starts
        logger.warning(
            _POPS,
            spider.name,
            why,
            "Let setup_redis call super().setup_redis(crawler), and next_requests iterate over "
            "self.fetch_data(self.redis_key, self.redis_batch_size)",
        )
        return None

    def _new_worker(self) -> Worker:
        config, starts = self._config, self._starts
        terms = Terms(
            config.lease,
            f"{path_of(type(self.spider))}{_WITH}{self.queue.serializer.__name__}",
            self._parameters,
            self._fingerprint_in,
            queues=config.partitions,
            batch=config.batch_size,
            max_deaths=config.max_deliveries,
            is_shared=self._is_shared,
            starts=min(starts.batch, self._ahead) if starts else 0,
            start_kind=starts.kind if starts else "list",
        )
        queues = [Queue(terms, flush=self.flush_on_start) for _ in range(config.partitions)]
        return Worker(queues, config.cache_size)

    def _set_up(self, spider: Spider, keys: list[tuple[str, str]]) -> None:
        config, runtime = self._config, self._runtime
        self._worker = self._new_worker()
        if self._starts:
            self._queues[0] = RequestQueue(self.server, *keys[0], self._starts.keys)
        self.df.report = self._report = CrawlReporter(
            self._filter_key, Counters(), self._read_filter, self.stats, runtime.monotonic
        )
        note_unreadable = partial(self._report.count, DEAD_LETTERS)
        self._codec = RequestCodec(self.queue, self.queue_keys, note_unreadable, runtime.unix_time)
        self._reports = [QueueReport(queue.keys, self._report, self._codec.read) for queue in self._queues]
        self._sender = Sender(self.worker_name, self._worker, self._queues, self._note_reply, runtime)
        self._breaker = CircuitBreaker(runtime)
        self._wakeup = engine.EngineWakeup(spider.crawler, runtime)
        self._next_poll, self._pause, self._synced = 0.0, _MIN_PAUSE, runtime.monotonic()
        self._idle_since: float | None = None
        self._ticker = engine.Ticker(_TICK_SECONDS, self._tick, runtime)
        # The dupefilter's own client is for the thread.
        beating = [RequestQueue(self.df.server, *each) for each in keys]
        self._heartbeat = Heartbeat(beating, self.worker_name, config.lease, config.max_deliveries, runtime)
        self._start: object = None  # the last request or item of start()
        self._taken: dict[Request, bytes] = {}
        self._failed: set[Request] = set()
        self._unfolding: deque[tuple[bytes, Iterator[Request]]] = deque()
        for part, name in [*((self.queue, call) for call in CALLS), (self.df, "request_seen")]:
            setattr(part, name, partial(self._refuse_call, f"{type(part).__name__}.{name}"))
        if type(self).enqueue_request is not BloomScheduler.enqueue_request:
            setattr(self, "enqueue_request", partial(self._enqueue_by, self.enqueue_request))  # noqa: B010  # for mypy

    def _read_filter(self) -> FilterInfo | None:
        """Return the fill of all filters, or None if one does not exist any more."""
        infos = []
        for line, queue in zip(self._worker.queues, self._queues, strict=True):
            if (reply := queue.describe_filter(line.crawl.filter_id)) is None:
                return None
            infos.append(describe_reply(self._parameters, reply))
        return sum_of(infos)

    def _join(self) -> None:
        """Join, and queue requests again that failed in earlier runs; this may block."""
        # Before joining: if its reply is lost, `close` has to leave.
        self._has_opened = True
        worker = self._worker
        warn_about_memory(self.server, self._filter_key, self._parameters, self._config.partitions)
        self._work_off()
        self._heartbeat.start()
        begin = partial(self._report.begin, is_shared=self._is_shared)
        while not self._retry(begin):  # another worker has started over since this one joined
            for line in worker.queues:
                line.expire()
            self._work_off()
        self._report.follow(self.spider.crawler)
        for line, report in zip(worker.queues, self._reports, strict=True):
            report.begin(line.news)
        if waiting := sum(line.news.waiting for line in worker.queues):
            # In scrapy-redis's words, which log parsers know; Scrapy deprecates Spider.log.
            call_safely(self.spider.logger.info, "Resuming crawl (%d requests scheduled)", waiting)
        if not self._config.retry_failed:
            return
        engine.follow_failures(self.spider.crawler, self._config.retry_statuses, self._failed.add)
        if number := sum(map(self._queue_failed, worker.queues, self._queues)):
            logger.info(
                "Queued %s of earlier runs again in the queue %r (BLOOMFILTER_RETRY_FAILED = True)",
                plural(number, "failed request"),
                self.queue_keys.queue,
            )

    def _work_off(self) -> None:
        """Execute calls until there is no news; each is retried."""
        while self._retry(self._step):
            pass

    def _queue_failed(self, line: Queue, queue: RequestQueue) -> int:
        """Queue the requests of a queue again that failed in earlier runs, and return their number."""
        cursor, has_more, number = 0, True, 0
        while has_more:
            cursor, portion = self._retry(partial(queue.read_failed, cursor))
            again = [
                (line.item_of(self._fingerprint_in(kept.member, is_kept=True) or kept.fingerprint), kept.member)
                for run, kept in portion
                if run != line.crawl.run
            ]
            number += max(0, self._retry(partial(queue.requeue, line.crawl.filter_id, again)))
            has_more = cursor != 0
        return number

    def _prepare_pipelines(self) -> None:
        """Let our item pipelines hold pages, and warn of others, unless the pages of lost items count as failed."""
        found = engine.item_pipelines(self.spider.crawler)
        if self._config.item_key is not None and not any(isinstance(each, UniqueItemsPipeline) for each in found):
            logger.warning(
                "BLOOMFILTER_ITEM_KEY has no effect: ITEM_PIPELINES lacks UniqueItemsPipeline, so equal items pass. "
                "Put 'scrapy_bloom.UniqueItemsPipeline' before the pipelines that store items, or remove the setting"
            )
        for each in found:
            if isinstance(each, WaitingPipeline):
                each.hold_pages = self.hold_pages
            elif is_or_copies(type(each), pipelines.RedisPipeline, "_process_item") and not self._config.retry_failed:
                logger.warning(
                    "ITEM_PIPELINES: %s loses the items of an outage of Redis, whose pages count as done. Derive it "
                    "from scrapy_bloom.RedisPipeline, whose items wait",
                    path_of(type(each)),
                )

    # Scrapy's calls.

    def __len__(self) -> int:
        """Return the number of requests in this process, and in the queue at the last reply."""
        if not self._has_opened or self._worker.queues[0].is_gone:
            return 0
        lines = self._worker.queues
        return len(self._worker.ready) + sum(line.news.waiting + len(line.outbox) for line in lines)

    def enqueue_request(self, request: Request) -> bool:
        """Add a request to the next sync.

        Args:
            request: the request. If it cannot be serialized, this process crawls it.

        Returns:
            False if the request is a known repeat, else True. A repeat that only Redis knows is dropped later, with the
            signal `request_dropped`.
        """
        try:
            fingerprint = self._mark_of(request)
        except BloomError as error:  # any other error of the user's code is that of this request alone
            self._fail(error)
            return False
        try:
            if fingerprint is not None and self._worker.is_repeat(fingerprint):
                self._report.counters.cache_hits += 1
                self._note_repeat(request)
                return False
            offer = self._codec.encode(request, fingerprint)
            if self._worker.offer(offer, is_start=request is self._start):
                with contextlib.suppress(RedisUnreachableError):
                    self._sync()
        except Exception as error:
            self._fail(error)
            raise
        return True

    def _enqueue_by(self, own: Callable[[Request], bool], request: Request) -> bool:
        """Call a subclass's `enqueue_request`; end the crawl if a command of its own fails, since Scrapy goes on."""
        try:
            return own(request)
        except FAULTS as error:
            if not self._has_ended:
                refusal = RefusedError(
                    f"SCHEDULER = {path_of(type(self))!r}: a command in its enqueue_request failed "
                    f"({describe(error)}), and the request would be lost; leave the key {self._filter_key!r} to the "
                    "filter, and call super().enqueue_request(request)"
                )
                self._fail(refusal)
            raise

    def next_request(self) -> Request | None:
        """Take the request with the highest priority.

        Returns:
            The request, or None if the queue is empty or Redis is silent.
        """
        try:
            self._finish_pages()
            self._unfold()
            entry = self._next_entry()
            while entry is not None:
                if (request := self._request_of(entry)) is not None:
                    return request
                self._wakeup.set(0)
                entry = self._worker.take()
        except RedisUnreachableError:
            pass
        except Exception as error:
            self._fail(error)
        return None

    def has_pending_requests(self) -> bool:
        """Send the news, and check for work.

        Returns:
            True if the queue or this process has requests, or if Redis is silent and the queue is unknown.
        """
        try:
            self._finish_pages()
            self._sync()
        except RedisUnreachableError:
            return not self._has_ended
        except Exception as error:
            self._fail(error)
            return False
        has_work = not self._worker.is_idle or any(line.news.waiting for line in self._worker.queues)
        if has_work:
            self._wakeup.set(_MIN_PAUSE)
        return has_work

    def close(self, reason: str) -> None:
        """Send the news and leave; the last worker deletes queue and filter unless SCHEDULER_PERSIST is set.

        Args:
            reason: the spider's close reason. Unless it is "finished", queued requests are deleted, too.
        """
        if not self._has_opened:
            return
        self._ticker.stop()
        self._heartbeat.stop()
        self._stop()
        # The shared filter of a stopped crawl calls the requests seen that wait in the queue.
        ending = "finished" if reason in ("finished", QUEUE_LOST) else "shared" if self._is_shared else "stopped"
        mode = "keep" if self.persist or self._has_ended or self._holds_pages else ending
        leave = partial(retry_until, partial(self._leave, mode), LAST_TRY_SECONDS, runtime=self._runtime)
        if not self._has_joined:  # a refused start has its error; the reply to a join may be lost
            with contextlib.suppress(BloomError, *FAULTS):
                leave()
            return
        try:
            leave()
            if reason != QUEUE_LOST:
                self._tell_losses()
        except (BloomError, *FAULTS) as error:
            self._report.refresh()
            problem = f"This worker could not leave the queue {self.queue_keys.queue!r}: {cause_of(error)}"
            report_at_exit(problem)
            logger.error(
                "%s. Its requests wait again after BLOOMFILTER_LEASE = %g s, and the next run continues this crawl",
                problem,
                self._config.lease,
            )
        except Exception as error:
            self._fail(error)
        finally:
            self._report_end()

    def _tell_losses(self) -> bool:
        """End the command with an error if requests of the queue were lost; return whether they were."""
        has_lost = any(report.has_lost for report in self._reports)
        if has_lost:
            report_at_exit(f"the queue {self.queue_keys.queue!r} has lost requests, whose pages may be missing")
        return has_lost

    def _stop(self) -> None:
        """Take nothing more, and note what the engine is done with."""
        try:
            self._note_heartbeats()
            self._worker.stop()
            if self._has_joined:
                self._finish_pages()
        except Exception as error:
            self._fail(error)

    def _leave(self, mode: str) -> None:
        """Send everything and leave the queues; a second call resumes after a failed attempt."""
        while not self._has_ended and self._step():
            pass
        self._report.refresh()
        if not self._worker.has_left:
            self._worker.leave("keep" if mode == "shared" else mode)
        while not self._worker.has_left:
            self._step()
        first = self._worker.queues[0]
        for queue, report in zip(self._queues, self._reports, strict=True):
            report.end(mode, queue.count_dead_letters(), is_gone=first.is_gone, is_last=not first.working)

    def _report_end(self) -> None:
        for report in self._reports:
            report.warnings.flush()
        if run := self._local - self._worker.dropped:
            logger.info("%s could not be serialized: this process crawled them itself", plural(run, "request"))
        if self._worker.dropped:
            logger.warning(
                "%s could not be serialized and were not crawled: they end with this process, and the filter calls "
                "them seen. To fetch them, start over with SCHEDULER_FLUSH_ON_START = True",
                plural(self._worker.dropped, "request"),
            )
        if self._kept:
            logger.info(
                "Kept %s of this process at %s. The next run with BLOOMFILTER_RETRY_FAILED = True fetches them",
                plural(self._kept, "failed request"),
                ", ".join(repr(queue.keys.failed) for queue in self._queues),
            )
        self._report.end()

    def flush(self) -> None:
        """Refuse to delete the queue beside other workers; see `_refuse_call`."""
        self._refuse_call("flush")

    # For items.

    def hold_pages(self) -> None:
        """Acknowledge no further page, so that all pages in progress are fetched again, by another crawl.

        Our item pipelines call this before the end of a crawl whose items they cannot process.
        """
        self._holds_pages = True

    # Calls of the queue.

    def _sync(self, want: int = 0) -> None:
        """Execute the next calls of the worker, one for each queue at most.

        Raises:
            RedisUnreachableError: Redis is silent, or has refused a command and the crawl ends.
        """
        if self._has_ended:
            raise RedisUnreachableError
        try:
            self._breaker.call(partial(self._step, want))
        except RedisUnreachableError:
            self._is_silent = True
            self._wakeup.set(_MAX_PAUSE)
            raise
        except Exception as error:  # a refusal, or a fault of our own, which must not leave a worker that never ends
            self._has_ended = True
            self.df.end_crawl(error)
            raise RedisUnreachableError from None
        self._is_silent, self._synced = False, self._runtime.monotonic()
        self._has_more = self._worker.urgency < math.inf

    def _step(self, want: int = 0) -> bool:
        try:
            return self._sender.step(want)
        except JoinRefusedError as refused:
            raise self._refusal(*refused.args) from None

    def _next_entry(self) -> Entry | None:
        """Return the next request for the engine, or None if there is none.

        Raises:
            RedisUnreachableError: Redis is silent.
        """
        worker = self._worker
        if self._is_silent:
            self._poll()
        elif worker.is_urgent:  # a new link goes before requests that were taken ahead
            self._sync(1)
        if (entry := worker.take()) is None:
            now = self._runtime.monotonic()
            if now >= self._next_poll or worker.urgency < math.inf:
                self._poll()
                entry = worker.take()
        return entry

    def _poll(self) -> None:
        """Take requests ahead; ask an empty queue again after a pause, each twice as long as the last."""
        self._sync(self._ahead)
        if self._worker.ready or not self._worker.is_joined:
            self._pause, self._next_poll = _MIN_PAUSE, 0.0
            self._wakeup.set(0)
            return
        self._next_poll = self._runtime.monotonic() + self._pause
        self._wakeup.set(self._pause)
        self._pause = min(2 * self._pause, _QUIET_PAUSE if self._worker.may_finish else _MAX_PAUSE)

    def _note_reply(self, index: int, received: Received) -> None:
        """Count new requests, drop repeats, and report what a reply says."""
        self._report.counters.round_trips += 1
        call_safely(
            self._reports[index].update,
            received,
            self._worker.queues[index].news,
            forgets_starts=bool(received.rejoin) and self._worker.forgets_starts,
        )
        self._note_offers(received.offers)
        if received.problem and "WRONGTYPE" not in received.problem:
            raise caught_error(received.problem)
        if received.problem:
            keys, kind = (self._starts.keys, self._starts.kind) if self._starts else ([], "")
            raise ConfigError(
                f"redis_key = {', '.join(keys)!r}: start URLs are read from a {kind}, and a key is another one "
                f"({received.problem}); use another key, or set REDIS_START_URLS_AS_SET or REDIS_START_URLS_AS_ZSET to "
                "match"
            )

    def _note_offers(self, ended: Sequence[tuple[Offer, bool]]) -> None:
        new = [offer for offer, is_new in ended if is_new]
        local = sum(offer.request is not None for offer in new)
        self._local += local
        for stat, number in ((ENQUEUED, len(new) - local), (UNSERIALIZABLE, local)):
            if number:
                self._report.count(stat, number)
        self._report.counters.added += sum(offer.fingerprint is not None for offer in new)
        for offer, is_new in ended:
            request = None if is_new else offer.request or self._codec.decode(offer.member)
            if request is not None:
                self._note_repeat(request)
                self.spider.crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=self.spider)

    def _fail(self, error: Exception) -> None:
        """End the crawl at a fault of our own. No page is acknowledged any more: its links may not be queued."""
        self._holds_pages = self._has_ended = True
        self.df.end_crawl(error)

    # Requests.

    def _request_of(self, entry: Entry) -> Request | None:
        """Return the request of an entry, or None: it is a start datum, or this worker cannot read it."""
        if is_start(entry.member) and self._starts:
            self._unfolding.append((entry.member, self._starts.requests_of(entry.member)))
            return None
        local = self._worker.local.get(entry.member)
        request: Request | None = self._codec.decode(entry.member) if local is None else local
        if request is None:
            self._worker.finish(entry.member, Outcome.UNREADABLE)
            return None
        if request in self._taken:  # a local request, yielded twice
            request = copy(request)
        self._taken[request] = entry.member
        self._idle_since = None
        if local is None:
            self._report.count(DEQUEUED)
        return request

    def _unfold(self) -> None:
        """Have the engine schedule requests of the start data at hand, a batch at once."""
        for _ in range(self._config.batch_size):
            if not self._unfolding or not self._has_room():
                break
            member, requests = self._unfolding[0]
            try:
                request = next(requests, None)
            except Exception as error:  # any error of the spider
                self._unfolding.popleft()
                self._bury_start(member, error)
                continue
            if request is not None:
                engine.crawl(self.spider.crawler, request)
            else:
                self._unfolding.popleft()
                self._worker.finish(member)
        if self._unfolding:
            self._wakeup.set(0 if self._has_room() else _MIN_PAUSE)

    def _bury_start(self, member: bytes, error: Exception) -> None:
        """Make a start datum a dead letter."""
        self._worker.finish(member, Outcome.UNREADABLE)
        self._report.count(DEAD_LETTERS)
        self._buried += 1
        key, datum = data_of(member)
        logger.error(
            "The spider makes no request of the start URL %.500r of %r, which is kept at the key %r: %s: %s",
            datum,
            key,
            self.queue_keys.dead_letters,
            type(error).__name__,
            error,
            exc_info=error if self._buried <= _MAX_TRACEBACKS and not isinstance(error, ValueError) else None,
        )

    def _has_room(self) -> bool:
        """Return whether start requests, which could come without an end, may be offered."""
        return not self._worker.is_full and len(self._worker.ready) < self._config.batch_size + _PREFETCH

    def _note_repeat(self, request: Request) -> None:
        """Log and count a repeat."""
        call_safely(self.df.log, request, self.spider)

    def _note_start(self, request_or_item: object) -> None:
        self._start = request_or_item

    def _mark_of(self, request: Request) -> bytes | None:
        return None if request.dont_filter or self._is_unfiltered else self.df.mark_of(request, self._run)

    @property
    def _run(self) -> bytes:
        return self._worker.queues[0].crawl.run

    def _fingerprint_in(self, member: bytes, *, is_kept: bool = False) -> bytes | None:
        """Return a serialized request's item in the filter, or None if it bypasses the filter or is unreadable.

        A kept request has a mark in any case: Scrapy retries and redirects with dont_filter.
        """
        try:
            request = self._codec.read(member)
            return self.df.mark_of(request, self._run) if is_kept else self._mark_of(request)
        except Exception:  # any error of the serializer or the spider
            return None

    def _finish_pages(self) -> None:
        """Note the requests that the engine is done with, behind the requests that they led to."""
        if self._holds_pages:
            return
        running = engine.in_progress(self.spider.crawler)
        ended = [request for request in self._taken if request not in running]
        for request in ended:
            has_failed, member = request in self._failed, self._taken.pop(request)
            is_local = member in self._worker.local
            self._worker.finish(member, Outcome.FAILED if has_failed else Outcome.DONE)
            if has_failed and is_local:
                logger.warning("%s failed, and is not kept for the next run: it cannot be serialized", request)
            elif has_failed:
                self._kept += 1
                self._report.count(FAILED)
        if ended and any(line.news.waiting for line in self._worker.queues):  # its share has grown
            self._next_poll = 0.0
        self._failed.intersection_update(self._taken)

    def _give_back(self, request: Request) -> bool:
        """Put a request back that waits for its turn; return whether it is one of the queue's."""
        if is_taken := request in self._taken:
            self._worker.give_back(self._taken[request])
        return is_taken

    def _note_heartbeats(self) -> None:
        for index, others in self._heartbeat.take_others():
            self._reports[index].update(Received(others=others), self._worker.queues[index].news)

    # Signals.

    def _tick(self) -> bool:
        """Acknowledge finished requests and send the outbox while the engine asks for nothing.

        Returns:
            True if there is more to send.
        """
        try:
            self._heartbeat.tick()
            if engine.is_closing(self.spider.crawler):
                self._worker.stop()
                engine.give_back(self.spider.crawler, self._give_back)
            self._finish_pages()
            self._note_heartbeats()
            self._report.update()
            if self._has_more or self._runtime.monotonic() >= self._synced + _REST_SECONDS:
                self._sync()
            return self._has_more
        except RedisUnreachableError:
            return False
        except Exception as error:
            self._fail(error)
            return False

    def _spider_idle(self) -> None:
        """Keep an idle worker while other workers hold requests, which may lead to more or may be requeued."""
        if self._has_ended:
            # Scrapy 2.13 closes an idle spider, with its own reason, before `end_crawl` takes effect.
            raise CloseSpider(engine.UNUSABLE)
        if self._worker.may_finish and self._worker.is_idle and not self._is_silent:
            if self._tell_losses():
                raise CloseSpider(QUEUE_LOST)
            return
        now = self._runtime.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        if now - self._idle_since > _WAIT_SECONDS and not self._has_waited:
            self._has_waited = True
            logger.info(
                "This worker is idle and waits for others: they hold requests that may lead to more, or are silent "
                "and lose their leases after BLOOMFILTER_LEASE = %g s",
                self._config.lease,
            )
        # Soon at first: the others may be about to finish.
        self._wakeup.set(min(max(_MIN_PAUSE, now - self._idle_since), _MAX_PAUSE))
        raise DontCloseSpider

    def _disconnect(self) -> None:
        disconnect(self.server)
        disconnect(self.df.server)

    # Refusals.

    def _refusal(self, status: bytes, *details: bytes) -> BloomError:
        """Return the error for a refused join."""
        queue, mine = self.queue_keys.queue, self._filter_key
        if status == b"WRONGTYPE":
            return foreign_key(mine, details[0].decode())
        if status == b"MISMATCH":
            self._parameters.verify(mine, details[0].decode())
        if status == b"QUEUES":
            return another_count(self._config.partitions, f"in the queue {queue!r}", int(details[0]))
        spider, of_filter = (each.decode() for each in details)
        if of_filter != mine:
            return ConfigError(
                f"SCHEDULER_DUPEFILTER_KEY = {mine!r}: other workers of the queue {queue!r} use the filter "
                f"{of_filter!r}; set that key for all of them"
            )
        spider, _, serializer = spider.partition(_WITH)
        if serializer != self.queue.serializer.__name__:
            return self._wrong_serializer(
                f"other workers of the queue {queue!r} have {serializer!r}; set the same for all of them"
            )
        named = self.spider.settings.get("SCHEDULER_QUEUE_KEY") or defaults.SCHEDULER_QUEUE_KEY
        advice = "set a key with %(spider)s in it"
        if "%(spider)s" in named:
            advice = f"both have the name {self.spider.name!r}: give one of them another name, or another key"
        return ConfigError(
            f"SCHEDULER_QUEUE_KEY = {named!r}: workers of the spider {spider!r} are registered with the queue "
            f"{queue!r}, and this one is {path_of(type(self.spider))!r}. Spiders cannot share a queue, since each "
            f"would take the other's requests; {advice}"
        )

    def _refuse_call(self, name: str, *_: object, **__: object) -> None:
        """End the crawl of a subclass that changes the queue or the filter beside the worker."""
        error = ConfigError(
            f"SCHEDULER = {path_of(type(self))!r}: something calls {name}, beside the "
            "script that checks, queues and leases requests; call super().enqueue_request(request) instead, mark known "
            "URLs by `scrapy bloom import --from-file FILE` before the crawl, set SCHEDULER_FLUSH_ON_START = True to "
            "delete a crawl, or use scrapy-redis's SCHEDULER"
        )
        self._has_ended = True
        self.df.end_crawl(error)
        raise error
