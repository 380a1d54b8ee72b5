"""The scheduler with at-least-once delivery: scrapy-redis's, with batches, outages and dead workers taken care of.

A worker never has a request that Redis does not have too (see `queue`). Nothing here waits for Redis during a crawl:
while it is away requests are kept, none is handed out, and the engine asks again.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Self, TypeVar

from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy_redis import defaults
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import _engine
from scrapy_bloom._last_line import told_at_exit
from scrapy_bloom.connection import connect, hiding_credentials, with_socket_timeouts
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, UnavailableError
from scrapy_bloom.monitoring.reporter import warn_of_deleted_requests
from scrapy_bloom.monitoring.stats import RECOVERED
from scrapy_bloom.queue.entries import Member, OutboxEntry, QueueEntry
from scrapy_bloom.queue.outbox import Outbox
from scrapy_bloom.queue.spool import Spool
from scrapy_bloom.queue.workers import WorkerRegistry
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.retry import CircuitBreaker, RedisAwayError, disable_client_retries, retry_until

logger = logging.getLogger(__name__)

# Seconds for which delivery is tried at the end of a crawl; what remains goes to a file.
_LAST_TRY_SECONDS = 3.0
# Seconds after which an idle worker asks again whether others have made work for it.
_IDLE_SECONDS = 0.5

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
        self._outbox = Outbox()
        self._breaker = CircuitBreaker()
        self._leased: dict[Request, Member] = {}
        self._has_joined = False
        self._has_ended = False
        self._has_waited = False

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
        _refuse_unfit(settings)
        config = BloomSettings.from_settings(settings)
        parent = super().from_settings
        # What cannot work is told of before it is used.
        retry_until(lambda: connect(settings), config.retry_timeout).close()
        with hiding_credentials():
            self: Self = retry_until(lambda: parent(with_socket_timeouts(settings)), config.retry_timeout)
        disable_client_retries(self.server)
        self._config = config
        return self

    def __len__(self) -> int:
        """Return how many requests wait: in the queue, in the outbox, and taken ahead.

        While Redis is away, or before this scheduler is open, only those of this process are counted.
        """
        queued = 0
        if self._has_joined:
            with contextlib.suppress(RedisAwayError):
                queued = self._call(self._requests.count)
        return queued + self._waiting_here

    @told_at_exit()
    def open(self, spider: Spider) -> None:
        """Open queue and filter, join the workers, and queue what an earlier crawl could not deliver.

        Args:
            spider: the spider of this crawl.

        Raises:
            BloomError: the queue or the filter cannot be used; see `BloomFilter`.
        """
        key = self.queue_key % {"spider": spider.name}
        self._workers = WorkerRegistry(self.server, key, self._config.lease)
        self._requests = self._workers.requests
        self._spool = Spool(key)
        self._wakeup = _engine.EngineWakeup(spider.crawler)
        retry_until(lambda: super(BloomScheduler, self).open(spider), self._config.retry_timeout)
        # Also where joining fails: a heartbeat may have been sent by then, and `close` takes it back.
        self._has_joined = True
        retry_until(self._workers.join, self._config.retry_timeout)
        self._restore_spooled()
        # From here on nothing may block the reactor for long.
        self.df.filter.retry_timeout = 0.0
        spider.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        _engine.apply_backpressure(spider.crawler, lambda: len(self._outbox) < self._config.batch_size, _IDLE_SECONDS)

    def enqueue_request(self, request: Request) -> bool:
        """Keep a request for the next batch.

        Args:
            request: what the spider yielded.

        Returns:
            False if this process knows that it is a repeat, else True. A repeat that only Redis knows is dropped later,
            with the signal `request_dropped`.
        """
        fingerprint = None
        if not request.dont_filter:
            fingerprint = self.df.fingerprint_of(request)
            if self.df.filter.is_cached(fingerprint) or self._is_waiting(fingerprint):
                self.df.log(request, self.spider)
                return False
        member = self.queue._encode_request(request)
        self._outbox.add(OutboxEntry(member, -request.priority, fingerprint, request))
        if len(self._outbox) >= self._config.batch_size:
            with contextlib.suppress(RedisAwayError):
                self.deliver()
        return True

    def next_request(self) -> Request | None:
        """Deliver what waits, acknowledge what is finished, and take a request.

        Returns:
            The request that goes first, or None: there is none, or Redis is away.
        """
        try:
            return self._next_request()
        except RedisAwayError:
            return None

    def has_pending_requests(self) -> bool:
        """Deliver what waits, and look whether there is work.

        Returns:
            True if there is. While Redis is away nobody knows, and the crawl goes on.
        """
        try:
            self.deliver()
            self._ack_finished()
            return self._call(self._requests.count) > 0 or self._requests.has_prefetched
        except RedisAwayError:
            return not self._has_ended

    def close(self, reason: str) -> None:  # noqa: ARG002  # the engine passes it
        """Deliver what waits, and leave; the last worker clears queue and filter unless SCHEDULER_PERSIST is set.

        Args:
            reason: why the spider was closed, which does not matter here.
        """
        if not self._has_joined:
            return
        self._workers.stop_heartbeats()
        self._show_recovered()
        self.df.filter.retry_timeout = _LAST_TRY_SECONDS
        try:
            retry_until(self._shut_down, _LAST_TRY_SECONDS)
        except (BloomError, *FAULTS) as error:
            cause = error.cause if isinstance(error, UnavailableError) else error
            logger.error("Redis could not be told of the end of this worker: %s", cause)
        if self._outbox:
            path = self._spool.save(self._outbox.entries)
            logger.error(
                "%d requests that could not be delivered are in %s: a crawl that is started in the same directory "
                "takes them up",
                len(self._outbox),
                path,
            )

    def flush(self) -> None:
        """Delete the filter, the queue, and what workers hold of it."""
        super().flush()
        self._workers.delete_all()

    def deliver(self) -> None:
        """Send all batches that wait.

        Raises:
            RedisAwayError: Redis is away, or refused what it was asked and the crawl ends.
        """
        while self._outbox:
            self._call(self._send_batch)

    @property
    def _waiting_here(self) -> int:
        """Requests of this process that wait and are not in the queue."""
        prefetched = self._requests.prefetched if self._has_joined else 0
        return len(self._outbox) + prefetched

    def _next_request(self) -> Request | None:
        while True:
            self.deliver()
            if not self._requests.has_prefetched:
                self._ack_finished()
            entry = self._call(self._requests.pop)
            if entry is None:
                return None
            request = self._decode(entry)
            if request is not None:
                self._leased[request] = entry.member
                self._count("scheduler/dequeued/redis")
                return request

    def _shut_down(self) -> None:
        while self._outbox and not self._has_ended:
            self._send_batch()
        if not self._outbox:
            self._ack_finished()
            self._requests.count()
        self._workers.leave(on_last=None if self.persist or self._has_ended else self._flush_at_end)

    def _flush_at_end(self) -> None:
        """Delete everything, and say so where requests still wait: the crawl was stopped."""
        waiting = self._requests.count()
        if waiting:
            warn_of_deleted_requests(waiting, self.queue.key)
        self.flush()

    def _restore_spooled(self) -> None:
        """Queue what an earlier crawl could not deliver. The filter may know it: the reply was lost."""
        for path, entries in self._spool.load():
            self.df.filter.mark_ambiguous(entry.fingerprint for entry in entries if entry.fingerprint is not None)
            for entry in entries:
                self._outbox.add(entry)
            while self._outbox:
                retry_until(self._send_batch, self._config.retry_timeout)
            path.unlink(missing_ok=True)
            logger.info("%d requests that could not be delivered before are queued, from %s", len(entries), path)

    def _is_waiting(self, fingerprint: bytes) -> bool:
        """Return whether an equal request waits in the outbox; it counts as a repeat that the process knew."""
        is_waiting = fingerprint in self._outbox
        self.df.filter.counters.cache_hits += is_waiting
        return is_waiting

    def _send_batch(self) -> None:
        """Have the next batch checked, then queued: two round trips, between which other workers could take over."""
        batch = self._outbox.entries[: self._config.batch_size]
        duplicates = self._check([entry for entry in batch if entry.fingerprint is not None])
        batch = [entry for entry in batch if entry not in duplicates]
        try:
            self._requests.push([entry.in_queue for entry in batch], ack=self._outbox.duplicates_to_ack)
            self._outbox.mark_delivered(batch)
            self._count("scheduler/enqueued/redis", len(batch))
        finally:
            for entry in duplicates:
                self._drop_duplicate(entry)

    def _check(self, entries: list[OutboxEntry]) -> list[OutboxEntry]:
        """Ask the filter, which remembers the new ones now, and return the duplicates, which leave the outbox.

        The worker leases all of them in the same round trip, before the filter is told of them.
        """
        if not entries:
            return []
        lease = self._requests.lease(entry.in_queue for entry in entries)
        answers = self.df.filter.add_many([entry.fingerprint for entry in entries], [lease])
        self.df.update_stats()
        return self._outbox.resolve(entries, answers)

    def _drop_duplicate(self, duplicate: OutboxEntry) -> None:
        """Tell of a repeat as the engine would have, had it been known at once; handlers may enqueue other requests."""
        request = duplicate.request
        if request is None:
            return
        self.df.log(request, self.spider)
        self.spider.crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=self.spider)

    def _decode(self, entry: QueueEntry) -> Request | None:
        """Return the request that was serialised, or None: it cannot be read, and is a dead letter now."""
        try:
            request: Request = self.queue._decode_request(entry.member)
        except Exception:  # whatever the serialiser or the spider makes of it
            logger.exception("A request of the queue %r cannot be read; it is left for another crawl", self.queue.key)
            self._call(lambda: self._requests.dead_letter(entry))
            return None
        return request

    def _call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, unless Redis is known to be away.

        Raises:
            RedisAwayError: Redis is away, or refused what it was asked and the crawl ends.
        """
        if self._has_ended:
            raise RedisAwayError
        try:
            result = self._breaker.call(work, on_recovery=self._workers.heartbeat)
        except RedisAwayError:
            self._wakeup.set(_IDLE_SECONDS)
            raise
        except (BloomError, *FAULTS) as error:
            self._has_ended = True
            self.df.end_crawl(error)
            raise RedisAwayError from None
        finally:
            self._show_recovered()
        return result

    def _show_recovered(self) -> None:
        if self.stats is not None and self._workers.recovered:
            self.stats.set_value(RECOVERED, self._workers.recovered)

    def _ack_finished(self) -> None:
        """Acknowledge the requests that the engine is done with; what they led to is delivered by then."""
        running = _engine.in_progress(self.spider.crawler)
        finished = [request for request in self._leased if request not in running]
        self._requests.ack([self._leased.pop(request) for request in finished])

    def _spider_idle(self) -> None:
        """Keep an idle worker while others hold requests that may lead to more, or put them back."""
        if self._has_ended:
            return
        try:
            if not self._call(self._workers.others_are_active):
                return
        except RedisAwayError:
            pass  # nobody knows
        if not self._has_waited:
            self._has_waited = True
            logger.info(
                "This worker is idle and waits for others: they have requests that may lead to more, or are silent and "
                "put back within BLOOMFILTER_LEASE = %g s",
                self._config.lease,
            )
        self._wakeup.set(_IDLE_SECONDS)
        raise DontCloseSpider

    def _count(self, stat: str, number: int = 1) -> None:
        if self.stats is not None:
            self.stats.inc_value(stat, number)


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
