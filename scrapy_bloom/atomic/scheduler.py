"""Scrapy's scheduler on the atomic queue: the engine's requests on one side, one script at a time on the other.

`Worker` decides the next call, and this module sends it within the time that the reactor can spare. While Redis is
silent no call waits for it but an attempt now and then, requests stay in the process, and the engine gets nothing new:
the process holds no more than what the pages in the engine lead to.
"""

import contextlib
import logging
import math
import secrets
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Self, TypeVar

from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom._filter_key import FilterKey
from scrapy_bloom._format import plural
from scrapy_bloom._runtime import RUNTIME, Runtime, Tuning
from scrapy_bloom._scrapy import engine
from scrapy_bloom._scrapy.components import load_setting, read_flag, require_scheduler_settings
from scrapy_bloom._scrapy.connection import connect, refusing_unfit
from scrapy_bloom._scrapy.exit_report import reports_at_exit
from scrapy_bloom._scrapy.redis_settings import RedisSettings, is_filter_separate
from scrapy_bloom.atomic import hashing
from scrapy_bloom.atomic.heartbeat import Heartbeat
from scrapy_bloom.atomic.parameters import FilterParameters
from scrapy_bloom.atomic.queue import AtomicQueue, Keys
from scrapy_bloom.atomic.reports import QueueReport
from scrapy_bloom.atomic.values import Call, Entry, Offer, Outcome, Phase, RefusedError
from scrapy_bloom.atomic.worker import Worker
from scrapy_bloom.delivery.codec import RequestCodec, require_readable
from scrapy_bloom.delivery.dispatcher import MAX_PAUSE, MIN_PAUSE, IdleBackoff
from scrapy_bloom.dupefilter import UNUSABLE, BloomRFPDupeFilter
from scrapy_bloom.errors import SETTING_NAMES, BloomError, ConfigError, MismatchError, UnavailableError, WrongTypeError
from scrapy_bloom.monitoring.stats import DEQUEUED, ENQUEUED, FILTERED, RequestNotifier, call_safely
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.queue_keys import queue_name
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.start_urls.feed import warn_of_popped_start_urls
from scrapy_bloom.transport.client import disconnect
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import CircuitBreaker, RedisUnreachableError, disable_client_retries, retry_until
from scrapy_bloom.transport.server_info import is_cluster

logger = logging.getLogger(__name__)

RETRY_FAILED = "BLOOMFILTER_RETRY_FAILED"
# The close reason of a crawl whose queue has lost requests.
QUEUE_LOST = "bloomfilter_queue_lost"
# The stats of this worker's part in the filter, and of the requests that it kept.
ADDED, CACHE_HITS, ROUND_TRIPS = "bloomfilter/added", "bloomfilter/cache_hits", "bloomfilter/round_trips"
FAILED = "bloomfilter/failed"
# The end of a crawl waits for Redis at most so long.
_LAST_TRY_SECONDS = 3.0

T = TypeVar("T")


class BloomScheduler(Scheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's Scheduler with queue and filter in one atomic step: no lost reply or dead worker loses a request.

    Attributes:
        worker_name: the worker's name in the queue, set by `open`.

    Raises:
        ConfigError: a setting is invalid, or names a class that this scheduler cannot use.
        UnavailableError: Redis was unreachable at the start for BLOOMFILTER_RETRY_TIMEOUT seconds.
    """

    _runtime: ClassVar[Runtime] = RUNTIME
    # A worker takes no more than its share of the queue, so that a large prefetch starves nobody.
    _tuning: ClassVar[Tuning] = Tuning(prefetch=16)
    df: Any
    queue: Any
    spider: Spider
    _has_opened = False
    _has_ended = False
    # The last call got no reply.
    _is_silent = False

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
        config = BloomSettings.from_settings(_known(settings))
        parent = super().from_settings
        # An unusable client is refused before scrapy-redis makes its own.
        retry = partial(retry_until, timeout=config.retry_timeout, runtime=cls._runtime)
        disconnect(retry(lambda: connect(settings)))
        given = RedisSettings(settings)
        with refusing_unfit(given):
            self: Self = retry(lambda: parent(given.for_scrapy_redis()))
        disable_client_retries(self.server)
        self._config = config
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
        read_flag(settings, RETRY_FAILED)
        if is_filter_separate(settings):
            raise ConfigError(
                "BLOOMFILTER_REDIS_URL names another server than REDIS_URL, but queue and filter change in one step; "
                "remove it"
            )
        queue_class = load_setting(settings, "SCHEDULER_QUEUE_CLASS", "scrapy_redis.queue.PriorityQueue")
        for name in ("push", "pop", "clear"):
            if getattr(queue_class, name) is not getattr(PriorityQueue, name):
                raise ConfigError(
                    f"SCHEDULER_QUEUE_CLASS = {settings['SCHEDULER_QUEUE_CLASS']!r}: overrides {name}, which "
                    "BloomScheduler never calls, since one script queues and leases many requests. Set the priority of "
                    "requests in a spider middleware instead, or SCHEDULER_SERIALIZER, or scrapy-redis's SCHEDULER"
                )

    @reports_at_exit()
    def open(self, spider: Spider) -> None:
        """Join the workers of the queue; its filter is created if there is none.

        Args:
            spider: the crawl's spider.

        Raises:
            BloomError: the queue or the filter cannot be used.
        """
        self.spider, config, settings = spider, self._config, spider.settings
        self.worker_name = f"{self._runtime.process_name()}-{self._runtime.token_hex(4)}"
        keys = self._keys(spider)
        self.queue_keys = keys
        self._requests = AtomicQueue(self.server, keys)
        make = load_object(self.dupefilter_cls).unopened
        self.df = self._retry(lambda: make(_known(settings), keys.filter, spider.crawler))
        self.queue = load_object(self.queue_cls)(
            server=self.server, spider=spider, key=self.queue_key % {"spider": spider.name}, serializer=self.serializer
        )
        require_readable(self.queue, self._requests)  # type: ignore[arg-type]  # it has the methods that are used
        self._parameters = FilterParameters(
            config.capacity,
            config.error_rate,
            config.expansion,
            config.ttl,
            self.df.fingerprint_scheme(),
            names=SETTING_NAMES,
        )
        self._worker = Worker(
            self.worker_name,
            config.lease,
            f"{type(spider).__module__}.{type(spider).__qualname__}",
            _NewFilter(self._parameters),
            self._fingerprint_in,
            cache_size=config.cache_size,
            batch=config.batch_size,
            max_deliveries=config.max_deliveries,
            flush=self.flush_on_start,
        )
        self._set_up(spider)
        self._join(settings)
        logger.info("This worker is %s in the queue %r", self.worker_name, keys.queue)
        warn_of_popped_start_urls(spider)
        spider.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        # Not in `close`: start URLs are released over this connection afterwards.
        spider.crawler.signals.connect(self._disconnect, signals.spider_closed)
        engine.apply_backpressure(
            spider.crawler, lambda: len(self._worker.outbox) < config.batch_size, MAX_PAUSE, self._runtime
        )
        self._ticker.start()

    def _keys(self, spider: Spider) -> Keys:
        chosen = FilterKey.of_spider(spider)
        of_filter = chosen.slot_key if chosen.slot_key and is_cluster(self.server) else chosen.name
        return Keys(of_filter, queue_name(self.queue_key, spider.name))

    def _set_up(self, spider: Spider) -> None:
        config = self._config
        self._notifier = RequestNotifier(spider, self.stats, self.df)
        self._codec = RequestCodec(self.queue, self._requests, self._notifier)  # type: ignore[arg-type]  # as above
        self._report = QueueReport(self._worker, self.queue_keys, self._notifier, self._report_buried)
        self._breaker = CircuitBreaker(self._runtime)
        self._wakeup = engine.EngineWakeup(spider.crawler, self._runtime)
        self._idle_backoff = IdleBackoff(config.lease, self._runtime.monotonic)
        self._ticker = engine.Ticker(self._tuning.tick_seconds, self._tick, self._runtime)
        # The dupefilter's own client is for the thread.
        beating = AtomicQueue(self.df.server, self.queue_keys)
        self._heartbeat = Heartbeat(beating, self.worker_name, config.lease, config.max_deliveries, self._runtime)
        self._taken: dict[Request, bytes] = {}
        self._failed: set[Request] = set()
        self._urgency = math.inf  # the lowest score in the outbox
        self._doubtful = 0  # how many first requests of the outbox an exchange had whose reply was lost
        self._next_poll, self._pause = 0.0, MIN_PAUSE
        for part, names in ((self.queue, ("push", "pop", "clear")), (self.df, ("request_seen",))):
            for name in names:
                setattr(part, name, partial(self._refuse_call, f"{type(part).__name__}.{name}"))

    def _join(self, settings: BaseSettings) -> None:
        """Join, and queue requests again that failed in earlier runs; this may block."""
        # Before joining: if its reply is lost, `close` has to leave.
        self._has_opened = True
        self._work_off()
        self._heartbeat.start()
        self._report.begin()
        if waiting := self._worker.waiting:
            logger.info("The crawl resumes with %s in the queue %r", plural(waiting, "request"), self.queue_keys.queue)
        if not read_flag(settings, RETRY_FAILED):
            return
        engine.follow_failures(self.spider.crawler, self._config.forget_statuses, self._failed.add)
        cursor, portion = self._retry(self._requests.read_failed)
        while True:
            self._worker.queue_again(self._again(offer) for run, offer in portion if run != self._worker.run)
            self._work_off()
            if not cursor:
                return
            cursor, portion = self._retry(partial(self._requests.read_failed, cursor))

    def _again(self, kept: Offer) -> Offer:
        return kept._replace(fingerprint=self._fingerprint_in(kept.member, is_kept=True) or kept.fingerprint)

    def _work_off(self) -> None:
        """Execute calls until there is no news, however long it takes."""
        while self._retry(self._execute_next) is not None:
            self._report.update()

    def _execute_next(self) -> Call | None:
        call = self._worker.next_call(0)
        if call is not None:
            self._execute(call)
        return call

    # Scrapy's calls.

    def __len__(self) -> int:
        """Return the number of requests in this process, and of those that waited in the queue at the last reply."""
        worker = self._worker if self._has_opened else None
        return 0 if worker is None else worker.waiting + len(worker.ready) + len(worker.outbox)

    def enqueue_request(self, request: Request) -> bool:
        """Add a request to the next exchange.

        Args:
            request: the request; its priority must be a whole number.

        Returns:
            False if the request is a known repeat or cannot be serialized, else True. A repeat that only Redis knows is
            dropped later, with the signal `request_dropped`.
        """
        fingerprint = self._fingerprint_of(request)
        if fingerprint is not None and self._worker.is_repeat(fingerprint):
            self._notifier.count(CACHE_HITS)
            self._note_repeat(request)
            return False
        entry = self._codec.encode(request, fingerprint)
        if entry is None:
            return False
        self._worker.offer(Offer(entry.score, entry.member, fingerprint))
        self._urgency = min(self._urgency, entry.score)
        if len(self._worker.outbox) >= self._config.batch_size:
            with contextlib.suppress(RedisUnreachableError):
                self._deliver_until(self._deadline())
        return True

    def next_request(self) -> Request | None:
        """Take the request with the highest priority.

        Returns:
            The request, or None if the queue is empty or Redis is silent.
        """
        with contextlib.suppress(RedisUnreachableError):
            self._note_finished()
            deadline = self._deadline()
            while (entry := self._next_entry(deadline)) is not None:
                request = self._codec.decode(QueueEntry(*entry))
                if request is not None:
                    self._taken[request] = entry.member
                    self._idle_backoff.reset()
                    self._notifier.count(DEQUEUED)
                    return request
                self._worker.finish(entry.member, Outcome.UNREADABLE)
        return None

    def has_pending_requests(self) -> bool:
        """Deliver the outbox and check for work.

        Returns:
            True if the queue or this process has requests, or if Redis is silent and the queue is unknown.
        """
        try:
            self._note_finished()
            self._deliver_until(self._deadline())
        except RedisUnreachableError:
            return not self._has_ended
        has_work = not self._worker.is_idle or self._worker.waiting > 0
        if has_work:
            self._wakeup.set(MIN_PAUSE)
        return has_work

    def close(self, reason: str) -> None:
        """Deliver the outbox and leave; the last worker deletes queue and filter unless SCHEDULER_PERSIST is set.

        Args:
            reason: the spider's close reason. Unless it is "finished", queued requests are deleted, too.
        """
        if not self._has_opened:
            return
        self._ticker.stop()
        self._heartbeat.stop()
        self._note_heartbeats()
        ending = "finished" if reason in ("finished", QUEUE_LOST) else "stopped"
        mode = "keep" if self.persist or self._has_ended else ending
        self._worker.stop()
        self._note_finished()
        try:
            self._retry(partial(self._leave, mode), _LAST_TRY_SECONDS)
        except (BloomError, *FAULTS) as error:
            cause = error.cause if isinstance(error, UnavailableError) else describe(error)
            logger.error(
                "This worker could not leave the queue %r: %s. Its requests wait again after BLOOMFILTER_LEASE = %g s",
                self.queue_keys.queue,
                cause,
                self._config.lease,
            )
        finally:
            self._confirm()
            self._report.warnings.flush()

    def flush(self) -> None:
        """Refuse to delete the queue beside other workers; see `_refuse_call`."""
        self._refuse_call("flush")

    # For start URLs.

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
        if self._has_ended:
            raise RedisUnreachableError
        try:
            return self._breaker.call(work)
        except RedisUnreachableError:
            self._wakeup.set(MAX_PAUSE)
            raise
        except (BloomError, *FAULTS) as error:
            self._has_ended = True
            self.df.end_crawl(error)
            raise RedisUnreachableError from None

    # Requests.

    def _fingerprint_of(self, request: Request) -> bytes | None:
        return None if request.dont_filter else self._mark_of(request)

    def _mark_of(self, request: Request) -> bytes:
        """Return what the filter knows a request by; a page of BLOOMFILTER_ALWAYS is another one in each run."""
        fingerprint: bytes = self.df.fingerprint_of(request)
        return fingerprint + self._worker.run if self._config.always and self.df.is_always_new(request) else fingerprint

    def _fingerprint_in(self, member: bytes, *, is_kept: bool = False) -> bytes | None:
        """Return the fingerprint of a serialized request, or None if it bypasses the filter or is unreadable.

        A kept request has one in any case: Scrapy retries and redirects with dont_filter.
        """
        try:
            request = self.queue._decode_request(self._requests.decode(member))  # noqa: SLF001  # as the codec does
            return self._mark_of(request) if is_kept else self._fingerprint_of(request)
        except Exception:  # any error of the serializer or the spider
            return None

    def _note_repeat(self, request: Request) -> None:
        self._notifier.count(FILTERED)
        self._notifier.note_repeat(request)

    def _note_finished(self) -> None:
        """Note the requests that the engine is done with, behind those that they led to."""
        running = engine.in_progress(self.spider.crawler)
        for request in [request for request in self._taken if request not in running]:
            has_failed = request in self._failed
            self._worker.finish(self._taken.pop(request), Outcome.FAILED if has_failed else Outcome.DONE)
            if has_failed:
                self._notifier.count(FAILED)
        self._failed.intersection_update(self._taken)

    def _note_heartbeats(self) -> None:
        for others in self._heartbeat.take_others():
            self._worker.note_others(others)
        self._report.update()

    def _report_buried(self, member: bytes) -> None:
        self._codec.report_buried(QueueEntry(0.0, member), self._config.max_deliveries)

    # Calls.

    def _deadline(self) -> float:
        return self._runtime.monotonic() + self._tuning.reactor_seconds

    def _next_entry(self, deadline: float) -> Entry | None:
        """Return the next request for the engine, or None: there is none, or time is up."""
        worker = self._worker
        if self._is_silent:
            self._step(self._tuning.prefetch)
        while (now := self._runtime.monotonic()) < deadline:
            # What has just been found may go before what was taken ahead.
            if worker.ready and self._urgency < worker.ready[0].score:
                self._step(1)
            elif (entry := worker.take()) is not None:
                return entry
            elif self._step(self._tuning.prefetch if worker.outbox or now >= self._next_poll else 0) is None:
                return None
        self._wakeup.set(0)
        return None

    def _deliver_until(self, deadline: float) -> bool:
        """Send what there is to send; return whether the deadline left some. One round trip may exceed it."""
        while self._step(0) is not None:
            if self._runtime.monotonic() > deadline:
                self._wakeup.set(0)
                return True
        return False

    def _step(self, want: int) -> Call | None:
        """Execute the next call, and report what it brought; raise RedisUnreachableError while Redis is silent."""
        if self._breaker.is_open or self._has_ended:
            raise RedisUnreachableError
        call = self._worker.next_call(want)
        if call is None:
            return None
        self._is_silent = True
        self.ask_redis(partial(self._execute, call))
        self._is_silent = False
        if want and call.script == "exchange" and self._worker.phase is Phase.WORK:
            self._note_poll()
        self._report.update()
        self._confirm()
        return call

    def _note_poll(self) -> None:
        """Ask an empty queue again after a pause, each twice as long as the last."""
        if self._worker.ready:
            self._pause = MIN_PAUSE
            return
        self._next_poll = self._runtime.monotonic() + self._pause
        self._wakeup.set(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE)

    def _execute(self, call: Call) -> None:
        worker = self._worker
        offers = list(islice(worker.outbox, call.offers))
        self._notifier.count(ROUND_TRIPS)
        try:
            reply = self._requests.send(worker.name, call)
        except BaseException:
            self._doubtful = max(self._doubtful, call.offers)
            worker.lose()
            raise
        try:
            flags = worker.receive(reply)
        except RefusedError as refused:
            raise self._error_of(*refused.args) from None
        if not worker.outbox:
            self._urgency = math.inf
        self._note_offers(offers, flags)

    def _note_offers(self, offers: list[Offer], flags: list[bool]) -> None:
        """Count new requests, and drop repeats; nobody knows which of the doubtful ones were new."""
        doubtful, self._doubtful = self._doubtful, max(self._doubtful - len(flags), 0)
        new = [offer for offer, is_new in zip(offers, flags, strict=False) if is_new]
        if new:
            self._notifier.count(ENQUEUED, len(new))
            self._notifier.count(ADDED, sum(offer.fingerprint is not None for offer in new))
        for offer, is_new in islice(zip(offers, flags, strict=False), doubtful, None):
            request = None if is_new else self._codec.decode(QueueEntry(offer.score, offer.member))
            if request is not None:
                self._note_repeat(request)
                self.spider.crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=self.spider)

    def _confirm(self) -> None:
        for call in self._worker.take_receipts():
            call_safely(call)

    def _leave(self, mode: str) -> None:
        """Deliver everything and leave the queue; a second call resumes after a failed attempt."""
        while not self._has_ended and self._execute_next() is not None:
            self._report.update()
        if self._worker.phase is not Phase.LEFT:
            self._worker.leave(mode)
        while self._worker.phase is not Phase.LEFT:
            self._execute_next()
        dead = self._requests.count_dead_letters()
        self._report.update()
        self._report.report_end(mode, dead)

    def _retry(self, work: Callable[[], T], timeout: float | None = None) -> T:
        """Return the result of `work`; block and retry for BLOOMFILTER_RETRY_TIMEOUT or `timeout` seconds."""
        seconds = self._config.retry_timeout if timeout is None else timeout
        return retry_until(work, seconds, runtime=self._runtime)

    # Signals.

    def _tick(self) -> bool:
        """Acknowledge finished requests and deliver the outbox while the engine asks for nothing.

        Returns:
            True if time was too short for everything.
        """
        if engine.is_closing(self.spider.crawler):
            self._worker.stop()
        self._note_finished()
        self._note_heartbeats()
        self._confirm()
        try:
            return self._deliver_until(self._deadline())
        except RedisUnreachableError:
            return False

    def _spider_idle(self) -> None:
        """Keep an idle worker while other workers hold requests, which may lead to more or may be requeued."""
        if self._has_ended:
            # Scrapy 2.13 closes an idle spider, with its own reason, before `end_crawl` takes effect.
            raise CloseSpider(UNUSABLE)
        if self._worker.may_finish and self._worker.is_idle and not self._is_silent:
            if self._report.has_lost:
                raise CloseSpider(QUEUE_LOST)
            return
        self._wakeup.set(self._idle_backoff.next_pause())
        raise DontCloseSpider

    def _disconnect(self) -> None:
        disconnect(self.server)
        disconnect(self.df.server)

    # Refusals.

    def _error_of(self, status: bytes, *details: bytes) -> BloomError:
        """Return why a join was refused."""
        keys = self.queue_keys
        if status == b"WRONGTYPE":
            return WrongTypeError(
                f"the key {keys.filter!r} holds a {details[0].decode()} that is not a filter: use another key "
                f"(SCHEDULER_DUPEFILTER_KEY), or start anew with {SETTING_NAMES.anew}"
            )
        if status == b"MISMATCH":
            try:
                self._parameters.verify(keys.filter, details[0].decode(), SETTING_NAMES)
            except MismatchError as error:
                return error
        spider, of_filter = (each.decode() for each in details)
        if of_filter != keys.filter:
            return ConfigError(
                f"SCHEDULER_DUPEFILTER_KEY = {keys.filter!r}: other workers of the queue {keys.queue!r} use the filter "
                f"{of_filter!r}; set that key for all of them"
            )
        return ConfigError(
            f"SCHEDULER_QUEUE_KEY: workers of the spider {spider!r} are registered with the queue {keys.queue!r}. "
            "Spiders cannot share a queue, since each would take the other's requests; set a key with %(spider)s in it"
        )

    def _refuse_call(self, name: str, *_: object, **__: object) -> None:
        """End the crawl of a subclass that changes the queue or the filter beside the worker."""
        error = ConfigError(
            f"SCHEDULER = {f'{type(self).__module__}.{type(self).__qualname__}'!r}: something calls {name}, beside the "
            "script that checks, queues and leases requests; call super().enqueue_request(request) instead, set "
            f"{SETTING_NAMES.anew} to delete a crawl, or use scrapy-redis's SCHEDULER"
        )
        self._has_ended = True
        self.df.end_crawl(error)
        raise error


class _NewFilter:
    """The filter that a join creates if there is none."""

    def __init__(self, parameters: FilterParameters) -> None:
        self._parameters = parameters

    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        """Return parameters, a new id and secret, the TTL in ms, and the sizes, which take long to compute, or ''."""
        of_layers = self._parameters.sizes() if sizes else ()
        text = "".join("{} {} {} {};".format(*size) for size in of_layers)
        ttl = round((self._parameters.ttl or 0) * 1000)
        return self._parameters.to_json(), secrets.token_hex(8), hashing.new_secret(), ttl, text


def _known(settings: BaseSettings) -> BaseSettings:
    """Return the settings without those that only this scheduler knows."""
    known = BaseSettings()
    known.attributes = {name: value for name, value in settings.attributes.items() if name != RETRY_FAILED}
    return known
