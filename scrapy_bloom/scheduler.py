"""Scrapy's scheduler on the shared queue: requests on one side, one atomic script at a time on the other.

This module is Scrapy's view: `queue.worker` decides the next call, and `delivery` sends it.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from inspect import getattr_static
from typing import Any, ClassVar, Self, TypeVar

from scrapy import Request, Spider, signals
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.settings import BaseSettings, SettingsAttribute
from scrapy_redis import defaults, pipelines
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import engine
from scrapy_bloom.codec import RequestCodec, misread, require_serializer
from scrapy_bloom.delivery import MAX_PAUSE, MIN_PAUSE, Delivery
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.filter.info import Counters, foreign_key
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.pipelines import RedisPipeline
from scrapy_bloom.queue.heartbeat import Heartbeat
from scrapy_bloom.queue.inspection import first_request
from scrapy_bloom.queue.keys import FilterKey, another_count, partition_keys, queue_of
from scrapy_bloom.queue.partitioned import PartitionedWorker
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.queue.values import Outcome
from scrapy_bloom.queue.worker import Worker
from scrapy_bloom.report import DEAD_LETTERS, DEQUEUED, FAILED, CrawlReporter, call_safely
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.settings import BloomSettings, load_component, load_setting, read_flag
from scrapy_bloom.spiders import LeasedStartUrls, warn_of_popped_start_urls
from scrapy_bloom.text import plural
from scrapy_bloom.transport.connect import RedisSettings, connect, disconnect, is_cluster, require_usable
from scrapy_bloom.transport.failures import FAULTS, cause_of
from scrapy_bloom.transport.retry import LAST_TRY_SECONDS, RedisUnreachableError, disable_client_retries, retry_until

logger = logging.getLogger(__name__)

# The close reason of a crawl whose queue has lost requests.
QUEUE_LOST = "bloomfilter_queue_lost"
# Seconds between two deliveries at most, even while the engine asks for nothing.
_TICK_SECONDS = 0.25
# Seconds in which a partition's news wait for the next requests that are taken from it.
_REST_SECONDS = 1.0
# The calls of a queue of scrapy-redis that one script of ours replaces.
_CALLS = "push", "pop", "clear"
_DUPEFILTER = "scrapy_bloom.BloomRFPDupeFilter"
# Overrides that would have no effect, and what to do instead.
_ATTRIBUTES = "where %(x)s is the attribute x of the spider"
_BY_SETTINGS = f"set SCHEDULER_DUPEFILTER_KEY, {_ATTRIBUTES}, and the BLOOMFILTER_ settings instead"
_BY_PERSIST = "set SCHEDULER_PERSIST = True to keep the filter"
_OF_DUPEFILTERS = {
    "request_seen": "override request_fingerprint instead, which it calls",
    "from_spider": _BY_SETTINGS,
    "from_crawler": _BY_SETTINGS,
    "from_settings": _BY_SETTINGS,
    "open": "override __init__ instead, which it calls",
    "clear": _BY_PERSIST,
    "close": _BY_PERSIST,
}
_OF_QUEUES = {
    **dict.fromkeys(_CALLS, "set the priority of requests in a spider middleware instead, or SCHEDULER_SERIALIZER"),
    "__len__": "read len(scheduler) instead",
}
_OF_SCHEDULERS = {
    "flush": "set SCHEDULER_PERSIST = True to keep a crawl, or SCHEDULER_FLUSH_ON_START = True to delete it",
    "__len__": "override has_pending_requests instead",
}
# The options of a client that name its server, and their defaults.
_PLACE = {"host": "localhost", "port": 6379, "path": None, "db": 0}
# Settings of other schedulers, and what happens instead.
_WITHOUT_EFFECT = {
    "SCHEDULER_PRIORITY_QUEUE": "workers take requests from the queue in Redis, by their priority",
    "SCHEDULER_IDLE_BEFORE_CLOSE": "a worker ends when no worker holds requests any more; a RedisSpider waits "
    "for start URLs as MAX_IDLE_TIME_BEFORE_CLOSE says",
}
# Between the class of the spider and its serializer in a registration.
_WITH = " with "

T = TypeVar("T")


class BloomScheduler(Scheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's Scheduler with at-least-once delivery: no lost reply, outage or dead worker loses a request.

    Requests are stored as scrapy-redis stores them, so a crawl can switch between both schedulers. BloomScheduler needs
    `BloomRFPDupeFilter` as DUPEFILTER_CLASS and scrapy-redis's `PriorityQueue`.

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
    _has_opened = _has_joined = _has_waited = _holds_pages = False
    _kept = 0  # failed requests

    # The start.

    @classmethod
    @engine.reports_at_exit()
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
        for name, instead in _WITHOUT_EFFECT.items():
            if settings.get(name) and settings.getpriority(name):
                logger.warning("%s = %r has no effect under BloomScheduler: %s", name, settings[name], instead)
        config = BloomSettings.from_settings(settings)
        parent = super().from_settings
        # An unusable client is refused before scrapy-redis makes its own.
        retry = partial(retry_until, timeout=config.retry_timeout, runtime=cls._runtime)
        disconnect(retry(lambda: connect(settings)))
        given = RedisSettings(settings).for_scrapy_redis()
        if _is_unfiltered(settings):  # scrapy-redis would call a method that this class lacks
            given.attributes["DUPEFILTER_CLASS"] = SettingsAttribute(BloomRFPDupeFilter, 0)
        scheduler: Self = retry(lambda: parent(given))
        return scheduler

    @classmethod
    def check_settings(cls, settings: BaseSettings) -> None:
        """Check the settings that this scheduler depends on, without a connection.

        Args:
            settings: the crawl's settings.

        Raises:
            ConfigError: a setting is invalid, or names a class that this scheduler cannot use.
        """
        _require_methods("SCHEDULER", f"{cls.__module__}.{cls.__qualname__}", cls, BloomScheduler, _OF_SCHEDULERS)
        if not _is_unfiltered(settings):
            _require_dupefilter(settings.get("DUPEFILTER_CLASS"))
        _require_queue(settings.get("SCHEDULER_QUEUE_CLASS"))
        for name in ("SCHEDULER_PERSIST", "SCHEDULER_FLUSH_ON_START", "DUPEFILTER_DEBUG"):
            read_flag(settings, name)
        require_serializer(settings)

    @engine.reports_at_exit()
    def open(self, spider: Spider) -> None:
        """Join the workers of the queue; its filter is created if there is none.

        Args:
            spider: the crawl's spider.

        Raises:
            BloomError: the queue or the filter cannot be used.
        """
        self.spider, settings = spider, spider.settings
        # Again, since a subclass may have its own from_settings.
        self.check_settings(settings)
        self._config = config = BloomSettings.from_settings(settings)
        disable_client_retries(self.server)
        self._require_attributes()
        self.worker_name = f"{self._runtime.process_name()}-{self._runtime.token_hex(4)}"
        key = FilterKey.of_workers(settings, spider, is_clustered=is_cluster(self.server)).require_keeping()
        keys = partition_keys(queue_of(settings, spider), key.name, config.partitions)
        self._is_unfiltered = _is_unfiltered(settings)
        self._queues = [RequestQueue(self.server, *each) for each in keys]
        self.queue_keys, self._filter_key, self._is_shared = self._queues[0].keys, key.name, key.is_shared
        make = _require_dupefilter(self.dupefilter_cls).unopened
        self.df = self._retry(lambda: make(settings, key.name, spider.crawler))
        queue_key = self.queue_keys.queue.replace("%", "%%")  # scrapy-redis's queue inserts the spider's name
        self.queue = _require_queue(self.queue_cls)(self.server, spider, queue_key, serializer=self.serializer)
        _require_key("SCHEDULER_DUPEFILTER_KEY", self.df, key.name)
        _require_key("SCHEDULER_QUEUE_KEY", self.queue, self.queue_keys.queue)
        _require_methods("DUPEFILTER_CLASS", self.dupefilter_cls, self.df, BloomRFPDupeFilter, _OF_DUPEFILTERS)
        _require_one_server(self, self.df, self.queue)
        self._require_readable()
        self._parameters: FilterParameters = self.df.parameters().of_partition(config.partitions)
        parts = [self._new_worker() for _ in keys]
        self._worker = parts[0] if len(parts) == 1 else PartitionedWorker(parts)
        self._set_up(spider, keys)
        if isinstance(spider, LeasedStartUrls):
            spider.lease_start_urls(self)
        self._join()
        self._has_joined = True
        logger.info("This worker is %s in the queue %r", self.worker_name, self.queue_keys.queue)
        warn_of_popped_start_urls(spider)
        self._prepare_pipelines()
        spider.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        # Not in `close`: start URLs are released over this connection afterwards.
        spider.crawler.signals.connect(self._disconnect, signals.spider_closed)
        engine.follow_start(spider.crawler, self._note_start, lambda: self._worker.has_room, MAX_PAUSE, self._runtime)
        self._ticker.start()

    def _retry(self, work: Callable[[], T]) -> T:
        """Return the result of `work` at the start, which may block."""
        return retry_until(work, self._config.retry_timeout, runtime=self._runtime)

    def _require_attributes(self) -> None:
        """Refuse keys and a dupefilter that a subclass has chosen: `scrapy bloom` finds a crawl by its settings."""
        for name in ("queue_key", "dupefilter_key"):
            setting = f"SCHEDULER_{name.upper()}"
            _require_key(setting, self, self.spider.settings.get(setting) or getattr(defaults, setting), name)
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
                if writer := misread(member, self.queue.serializer):
                    raise self._wrong_serializer(
                        f"a request of the queue {queue.keys.queue!r} was written with {writer!r}, and this crawl "
                        f"cannot read it. If your crawls have written it, set SCHEDULER_SERIALIZER = {writer!r} until "
                        "all are fetched, since a foreign pickle can execute code; or SCHEDULER_FLUSH_ON_START = True"
                    )

    def _wrong_serializer(self, why: str) -> ConfigError:
        return ConfigError(f"SCHEDULER_SERIALIZER = {self.spider.settings.get('SCHEDULER_SERIALIZER')!r}: {why}")

    def _new_worker(self) -> Worker:
        """Return the worker of a partition."""
        config, spider = self._config, type(self.spider)
        return Worker(
            self.worker_name,
            config.lease,
            f"{spider.__module__}.{spider.__qualname__}{_WITH}{self.queue.serializer.__name__}",
            self._parameters,
            self._fingerprint_in,
            cache_size=config.cache_size // config.partitions,
            batch=config.batch_size,
            max_deliveries=config.max_deliveries,
            flush=self.flush_on_start,
            is_shared=self._is_shared,
        )

    def _set_up(self, spider: Spider, keys: list[tuple[str, str]]) -> None:
        config, runtime = self._config, self._runtime
        self.df.report = self._report = CrawlReporter(
            self._filter_key,
            Counters(),
            lambda: self._delivery.read_filter(self._parameters),
            self.stats,
            runtime.monotonic,
        )
        self._codec = RequestCodec(self.queue, self.queue_keys, partial(self._report.count, DEAD_LETTERS))
        self._delivery = Delivery(
            self._worker,
            self._queues,
            self._codec,
            self._report,
            spider,
            note_repeat=self._note_repeat,
            refuse=self._refusal,
            end_crawl=self.df.end_crawl,
            runtime=runtime,
        )
        self._idle_since: float | None = None
        self._ticker = engine.Ticker(_TICK_SECONDS, self._tick, runtime)
        # The dupefilter's own client is for the thread.
        beating = [RequestQueue(self.df.server, *each) for each in keys]
        self._heartbeat = Heartbeat(beating, self.worker_name, config.lease, config.max_deliveries, runtime)
        self._start: object = None  # the last request or item of start()
        self._taken: dict[Request, bytes] = {}
        self._failed: set[Request] = set()
        for part, name in [*((self.queue, call) for call in _CALLS), (self.df, "request_seen")]:
            setattr(part, name, partial(self._refuse_call, f"{type(part).__name__}.{name}"))

    def _join(self) -> None:
        """Join, and queue requests again that failed in earlier runs; this may block."""
        # Before joining: if its reply is lost, `close` has to leave.
        self._has_opened = True
        delivery, worker, timeout = self._delivery, self._worker, self._config.retry_timeout
        delivery.work_off(timeout)
        self._heartbeat.start()
        begin = partial(self._report.begin, self.server, self._config.ttl, is_shared=self._is_shared)
        while not self._retry(begin):  # another worker has started over since this one joined
            for part in worker.parts:
                part.expire()
            delivery.work_off(timeout)
        self._report.follow(self.spider.crawler)
        for report in delivery.reports:
            report.begin()
        if worker.waiting:
            # In scrapy-redis's words, which log parsers know; Scrapy deprecates Spider.log.
            self.spider.logger.info("Resuming crawl (%d requests scheduled)", worker.waiting)
        if not self._config.retry_failed:
            return
        engine.follow_failures(self.spider.crawler, self._config.retry_statuses, self._failed.add)
        if number := sum(map(self._queue_failed, range(len(self._queues)))):
            logger.info(
                "Queued %s of earlier runs again in the queue %r (BLOOMFILTER_RETRY_FAILED = True)",
                plural(number, "failed request"),
                self.queue_keys.queue,
            )

    def _queue_failed(self, index: int) -> int:
        """Queue the kept requests of a partition again, and return their number."""
        queue, delivery, worker, timeout = self._queues[index], self._delivery, self._worker, self._config.retry_timeout
        cursor, has_more, number = 0, True, 0
        while has_more:
            cursor, portion = self._retry(partial(queue.read_failed, cursor))
            again = [
                kept._replace(fingerprint=self._fingerprint_in(kept.member, is_kept=True) or kept.fingerprint)
                for run, kept in portion
                if run != worker.run
            ]
            worker.queue_again(again, index)
            delivery.work_off(timeout)
            has_more, number = cursor != 0, number + len(again)
        return number

    def _prepare_pipelines(self) -> None:
        """Let our item pipelines hold pages, and warn of others, unless the pages of lost items count as failed."""
        for each in engine.item_pipelines(self.spider.crawler):
            if isinstance(each, RedisPipeline):
                each.hold_pages = self.hold_pages
            elif isinstance(each, pipelines.RedisPipeline) and not self._config.retry_failed:
                logger.warning(
                    "ITEM_PIPELINES: %s.%s loses the items of an outage of Redis, whose pages count as done. Derive it "
                    "from scrapy_bloom.RedisPipeline, whose items wait",
                    type(each).__module__,
                    type(each).__qualname__,
                )

    # Scrapy's calls.

    def __len__(self) -> int:
        """Return the number of requests in this process, and in the queue at the last reply."""
        return self._worker.pending if self._has_opened and not self._worker.is_deleted else 0

    def enqueue_request(self, request: Request) -> bool:
        """Add a request to the next exchange.

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
            self._delivery.put(offer, is_start=request is self._start)
        except Exception as error:
            self._fail(error)
            raise
        return True

    def next_request(self) -> Request | None:
        """Take the request with the highest priority.

        Returns:
            The request, or None if the queue is empty or Redis is silent.
        """
        try:
            self._note_finished()
            deadline = self._delivery.deadline()
            while (entry := self._delivery.next_entry(deadline)) is not None:
                local = self._worker.local_request(entry.member)
                request: Request | None = self._codec.decode(entry.member) if local is None else local
                if request is not None:
                    if request in self._taken:  # a local request, yielded twice
                        request = copy(request)
                    self._taken[request] = entry.member
                    self._idle_since = None
                    if local is None:
                        self._report.count(DEQUEUED)
                    return request
                self._worker.finish(entry.member, Outcome.UNREADABLE)
        except RedisUnreachableError:
            pass
        except Exception as error:
            self._fail(error)
        return None

    def has_pending_requests(self) -> bool:
        """Deliver the outbox and check for work.

        Returns:
            True if the queue or this process has requests, or if Redis is silent and the queue is unknown.
        """
        try:
            self._note_finished()
            self._delivery.deliver()
        except RedisUnreachableError:
            return not self._delivery.has_ended
        except Exception as error:
            self._fail(error)
            return False
        has_work = not self._worker.is_idle or self._worker.waiting > 0
        if has_work:
            self._delivery.wakeup.set(MIN_PAUSE)
        return has_work

    def close(self, reason: str) -> None:
        """Deliver the outbox and leave; the last worker deletes queue and filter unless SCHEDULER_PERSIST is set.

        Args:
            reason: the spider's close reason. Unless it is "finished", queued requests are deleted, too.
        """
        if not self._has_opened:
            return
        delivery = self._delivery
        self._ticker.stop()
        self._heartbeat.stop()
        self._stop()
        # The shared filter of a stopped crawl calls the requests seen that wait in the queue.
        ending = "finished" if reason in ("finished", QUEUE_LOST) else "shared" if self._is_shared else "stopped"
        mode = "keep" if self.persist or delivery.has_ended or self._holds_pages else ending
        leave = partial(delivery.retry, partial(delivery.leave, mode), LAST_TRY_SECONDS)
        if not self._has_joined:  # a refused start has its error; the reply to a join may be lost
            with contextlib.suppress(BloomError, *FAULTS):
                leave()
            return
        self._report.refresh()
        try:
            leave()
        except (BloomError, *FAULTS) as error:
            logger.error(
                "This worker could not leave the queue %r: %s. Its requests wait again after BLOOMFILTER_LEASE = %g s",
                self.queue_keys.queue,
                cause_of(error),
                self._config.lease,
            )
        except Exception as error:
            self._fail(error)
        finally:
            delivery.confirm()
            for report in delivery.reports:
                report.warnings.flush()
            if self._kept:
                logger.info(
                    "Kept %s of this process at %s. The next run with BLOOMFILTER_RETRY_FAILED = True fetches them",
                    plural(self._kept, "failed request"),
                    ", ".join(repr(queue.keys.failed) for queue in self._queues),
                )
            self._report.end()

    def _stop(self) -> None:
        """Take nothing more, and note what the engine is done with."""
        try:
            self._note_heartbeats()
            self._worker.stop()
            if self._has_joined:
                self._note_finished()
        except Exception as error:
            self._fail(error)

    def flush(self) -> None:
        """Refuse to delete the queue beside other workers; see `_refuse_call`."""
        self._refuse_call("flush")

    # For start URLs and items.

    def hold_pages(self) -> None:
        """Acknowledge no further page, so that all pages in progress are fetched again, by another crawl.

        `RedisPipeline` calls this before the end of a crawl whose items it cannot store.
        """
        self._holds_pages = True

    def when_queued(self, call: Callable[[], object]) -> None:
        """Call `call` once all requests enqueued so far are queued.

        Args:
            call: called at most once; its errors are logged. A worker that dies before does not call it.
        """
        self._worker.call_when_queued(call)

    def ask_redis(self, work: Callable[[], T]) -> T:
        """Call a function that sends commands by `server`; while Redis is silent, call it only as a probe.

        Args:
            work: the function. If Redis refuses its commands, the crawl ends.

        Returns:
            The result of `work`.

        Raises:
            RedisUnreachableError: Redis is silent, or has refused a command and the crawl ends.
        """
        return self._delivery.ask(work)

    def _fail(self, error: Exception) -> None:
        """End the crawl at a fault of our own. No page is acknowledged any more: its links may not be queued."""
        self._holds_pages = self._delivery.has_ended = True
        self.df.end_crawl(error)

    # Requests.

    def _note_repeat(self, request: Request) -> None:
        """Log and count a repeat."""
        call_safely(self.df.log, request, self.spider)

    def _note_start(self, request_or_item: object) -> None:
        self._start = request_or_item

    def _mark_of(self, request: Request) -> bytes | None:
        return None if request.dont_filter or self._is_unfiltered else self.df.mark_of(request, self._worker.run)

    def _fingerprint_in(self, member: bytes, *, is_kept: bool = False) -> bytes | None:
        """Return a serialized request's item in the filter, or None if it bypasses the filter or is unreadable.

        A kept request has a mark in any case: Scrapy retries and redirects with dont_filter.
        """
        try:
            request = self._codec.read(member)
            return self.df.mark_of(request, self._worker.run) if is_kept else self._mark_of(request)
        except Exception:  # any error of the serializer or the spider
            return None

    def _note_finished(self) -> None:
        """Note the requests that the engine is done with, behind the requests that they led to."""
        if self._holds_pages:
            return
        running = engine.in_progress(self.spider.crawler)
        for request in [request for request in self._taken if request not in running]:
            has_failed, member = request in self._failed, self._taken.pop(request)
            is_local = self._worker.local_request(member) is not None
            self._worker.finish(member, Outcome.FAILED if has_failed else Outcome.DONE)
            if has_failed and is_local:
                logger.warning("%s failed, and is not kept for the next run: it cannot be serialized", request)
            elif has_failed:
                self._kept += 1
                self._report.count(FAILED)
        self._failed.intersection_update(self._taken)

    def _note_heartbeats(self) -> None:
        for index, others in self._heartbeat.take_others():
            self._worker.parts[index].note_others(others)
        self._delivery.report()

    # Signals.

    def _tick(self) -> bool:
        """Acknowledge finished requests and deliver the outbox while the engine asks for nothing.

        Returns:
            True if time was too short for everything.
        """
        try:
            if engine.is_closing(self.spider.crawler):
                self._worker.stop()
            self._note_finished()
            self._note_heartbeats()
            self._delivery.confirm()
            self._report.update()
            return self._delivery.deliver(rest=_REST_SECONDS)
        except RedisUnreachableError:
            return False
        except Exception as error:
            self._fail(error)
            return False

    def _spider_idle(self) -> None:
        """Keep an idle worker while other workers hold requests, which may lead to more or may be requeued."""
        delivery = self._delivery
        if delivery.has_ended:
            # Scrapy 2.13 closes an idle spider, with its own reason, before `end_crawl` takes effect.
            raise CloseSpider(engine.UNUSABLE)
        if self._worker.may_finish and self._worker.is_idle and not delivery.is_silent:
            if any(report.has_lost for report in delivery.reports):
                engine.report_at_exit(
                    f"the queue {self.queue_keys.queue!r} has lost requests, whose pages may be missing"
                )
                raise CloseSpider(QUEUE_LOST)
            return
        now = self._runtime.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        if now - self._idle_since > 2 * MAX_PAUSE and not self._has_waited:
            self._has_waited = True
            logger.info(
                "This worker is idle and waits for others: they hold requests that may lead to more, or are silent "
                "and lose their leases after BLOOMFILTER_LEASE = %g s",
                self._config.lease,
            )
        # Soon at first: the others may be about to finish.
        delivery.wakeup.set(min(max(MIN_PAUSE, now - self._idle_since), MAX_PAUSE))
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
        if status == b"PARTITIONS":
            return another_count(self._config.partitions, f"in the queue {queue!r}", int(details[0]))
        spider, of_filter = (each.decode() for each in details)
        if of_filter != mine:
            return ConfigError(
                f"SCHEDULER_DUPEFILTER_KEY = {mine!r}: other workers of the queue {queue!r} use the filter "
                f"{of_filter!r}; set that key for all of them"
            )
        spider, _, serializer = spider.partition(_WITH)
        if spider == f"{type(self.spider).__module__}.{type(self.spider).__qualname__}":
            return self._wrong_serializer(
                f"other workers of the queue {queue!r} have {serializer!r}; set the same for all of them"
            )
        return ConfigError(
            f"SCHEDULER_QUEUE_KEY: workers of the spider {spider!r} are registered with the queue {queue!r}. "
            "Spiders cannot share a queue, since each would take the other's requests; set a key with %(spider)s in it"
        )

    def _refuse_call(self, name: str, *_: object, **__: object) -> None:
        """End the crawl of a subclass that changes the queue or the filter beside the worker."""
        error = ConfigError(
            f"SCHEDULER = {f'{type(self).__module__}.{type(self).__qualname__}'!r}: something calls {name}, beside the "
            "script that checks, queues and leases requests; call super().enqueue_request(request) instead, mark known "
            "URLs by `scrapy bloom import --from-file FILE` before the crawl, set SCHEDULER_FLUSH_ON_START = True to "
            "delete a crawl, or use scrapy-redis's SCHEDULER"
        )
        self._delivery.has_ended = True
        self.df.end_crawl(error)
        raise error


def _is_unfiltered(settings: BaseSettings) -> bool:
    """Return whether DUPEFILTER_CLASS is Scrapy's class that drops no request."""
    return load_setting(settings, "DUPEFILTER_CLASS", _DUPEFILTER) is BaseDupeFilter


def _require_dupefilter(path: Any) -> type[BloomRFPDupeFilter]:
    """Return the class at a path, or the default; refuse one that cannot be used."""
    kind = load_component("DUPEFILTER_CLASS", path or _DUPEFILTER, _DUPEFILTER)
    if not (isinstance(kind, type) and issubclass(kind, BloomRFPDupeFilter)):
        raise ConfigError(
            f"DUPEFILTER_CLASS = {path!r}: cannot check requests in batches, as BloomScheduler does; set "
            f"{_DUPEFILTER!r} or a subclass, 'scrapy.dupefilters.BaseDupeFilter' to drop no request, or scrapy-redis's "
            "SCHEDULER"
        )
    _require_methods("DUPEFILTER_CLASS", path, kind, BloomRFPDupeFilter, _OF_DUPEFILTERS)
    return kind


def _require_queue(path: Any) -> type[Any]:
    """Return the class at a path, or the default; refuse one that cannot be used."""
    default = defaults.SCHEDULER_QUEUE_CLASS
    kind = load_component("SCHEDULER_QUEUE_CLASS", path or default, default)
    if not (isinstance(kind, type) and issubclass(kind, PriorityQueue)):
        raise ConfigError(
            f"SCHEDULER_QUEUE_CLASS = {path!r}: BloomScheduler leases requests from a sorted set, by their priority; "
            f"set {default!r}, with DEPTH_PRIORITY = 1 for about the order of a FifoQueue, -1 for that of a LifoQueue, "
            "or keep this class with SCHEDULER = 'scrapy_redis.scheduler.Scheduler'"
        )
    _require_methods("SCHEDULER_QUEUE_CLASS", path, kind, PriorityQueue, _OF_QUEUES)
    return kind


def _require_methods(setting: str, path: Any, part: Any, parent: type, methods: Mapping[str, str]) -> None:
    """Refuse a class, or an instance, that overrides a method which is never called; `methods` has what to do."""
    for name, instead in methods.items():
        if getattr_static(part, name) is not getattr_static(parent, name):
            raise ConfigError(
                f"{setting} = {path!r}: overrides {name}, which BloomScheduler never calls, since one script checks, "
                f"queues and leases many requests; {instead}, or use scrapy-redis's SCHEDULER"
            )


def _require_key(setting: str, part: Any, key: str, name: str = "key") -> None:
    """Refuse a class whose attribute chooses another key than the setting."""
    if (own := getattr(part, name)) != key:
        raise ConfigError(
            f"{setting} = {key!r}: {type(part).__qualname__} has the {name} {own!r} instead, which BloomScheduler "
            f"does not use; set {setting} to it, {_ATTRIBUTES}, or use scrapy-redis's SCHEDULER"
        )


def _require_one_server(*parts: Any) -> None:
    """Refuse parts with clients of their own for other servers, since one script uses the data of all parts."""
    clients = [require_usable(part.server).get_connection_kwargs() for part in parts]
    first, *others = [{name: options.get(name, default) for name, default in _PLACE.items()} for options in clients]
    for part, place in zip(parts[1:], others, strict=True):
        if place != first:
            raise ConfigError(
                f"REDIS_URL: {type(part).__qualname__}.server is at {place}, {type(parts[0]).__qualname__}.server at "
                f"{first}, but BloomScheduler needs one server for queue and filter; set REDIS_URL for all of them, or "
                "use scrapy-redis's SCHEDULER"
            )
