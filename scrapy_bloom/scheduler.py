"""The scheduler that loses nothing: scrapy-redis's, with batches, outages and dead workers taken care of.

A worker never holds a request that Redis does not hold too (see `custody`). Nothing here waits for Redis: while it is
away requests are kept, none is handed out, and the engine asks again.
"""

import logging
from typing import Any, Self

from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy_redis import defaults
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import compat
from scrapy_bloom.config import BloomConfig
from scrapy_bloom.connection import connect, limited, telling_no_values
from scrapy_bloom.custody import Member, Waiting
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, UnavailableError
from scrapy_bloom.outbox import Outbox, Parcel, Undelivered
from scrapy_bloom.patience import FAULTS, Outage, patiently, without_resending
from scrapy_bloom.stats import RECOVERED
from scrapy_bloom.workers import Workers

logger = logging.getLogger(__name__)

# At the end of a crawl delivery is tried for so long; what remains goes to a file.
_LAST_TRY_SECONDS = 3.0
# An idle worker asks so often whether others have made work for it.
_IDLE_SECONDS = 0.5


class BloomScheduler(Scheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's Scheduler, at least once: no request is lost with a reply, with Redis, or with a worker.

    The queue and the requests in it are scrapy-redis's own, so that a crawl may change between both schedulers. Needs
    BloomRFPDupeFilter as DUPEFILTER_CLASS and scrapy-redis's PriorityQueue; refuses others with ConfigError. Waits for
    a Redis that is not up yet, and raises UnavailableError after BLOOMFILTER_RETRY_TIMEOUT.
    """

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Connect, and make sure that the other parts are those that this one works with."""
        _refuse_unfit(settings)
        config = BloomConfig.from_settings(settings)
        parent = super().from_settings
        # What cannot work is told of before it is used.
        patiently(lambda: connect(settings), config.retry_timeout).close()
        with telling_no_values():
            self: Self = patiently(lambda: parent(limited(settings)), config.retry_timeout)
        without_resending(self.server)
        self._config = config
        return self

    def open(self, spider: Spider) -> None:
        """Open queue and filter, join the workers, and take up what an earlier crawl could not deliver."""
        key = self.queue_key % {"spider": spider.name}
        self._workers = Workers(self.server, key, self._config.lease)
        self._custody = self._workers.custody
        self._outbox = Outbox()
        self._undelivered = Undelivered(key)
        self._outage = Outage()
        self._alarm = compat.Alarm(spider.crawler)
        self._taken: dict[Request, Member] = {}
        self._has_ended = False
        patiently(lambda: super(BloomScheduler, self).open(spider), self._config.retry_timeout)
        patiently(self._workers.join, self._config.retry_timeout)
        self._take_up()
        # From here on nothing may block the reactor for long.
        self.df.filter.retry_timeout = 0.0
        spider.crawler.signals.connect(self._stay_while_others_work, signals.spider_idle)
        compat.hold_back_start(spider.crawler, lambda: len(self._outbox) < self._config.batch_size, _IDLE_SECONDS)

    def enqueue_request(self, request: Request) -> bool:
        """Keep a request for the next batch; False: it is known to be a repeat. One found later is dropped then."""
        item = None
        if not request.dont_filter:
            item = self.df.item(request)
            if self.df.filter.knows(item) or self._is_waiting(item):
                self.df.log(request, self.spider)
                return False
        member = self.queue._encode_request(request)
        self._outbox.add(Parcel(member, -request.priority, item, request))
        if len(self._outbox) >= self._config.batch_size:
            self.deliver()
        return True

    def next_request(self) -> Request | None:
        """Deliver what waits, release what is finished, and take a request; None while Redis is away."""
        while self.deliver():
            if not self._custody.has_ready:
                self._release_finished()
            taken = self._attempt(lambda: (self._custody.take(),))
            if taken is None or taken[0] is None:
                return None
            request = self._decode(taken[0])
            if request is not None:
                self._taken[request] = taken[0].member
                self._count("scheduler/dequeued/redis")
                return request
        return None

    def has_pending_requests(self) -> bool:
        """Whether there is work; while Redis is away nobody knows, and the crawl goes on."""
        if not self.deliver():
            return not self._has_ended
        self._release_finished()
        waiting: int | None = self._attempt(self._custody.count)
        if waiting is None:
            return not self._has_ended
        return waiting > 0 or self._custody.has_ready

    def close(self, reason: str) -> None:  # noqa: ARG002  # the engine passes it
        """Deliver what waits and say goodbye; the last worker clears all unless SCHEDULER_PERSIST is set."""
        self._workers.stop()
        self._show_recovered()
        self.df.filter.retry_timeout = _LAST_TRY_SECONDS
        try:
            patiently(self._leave, _LAST_TRY_SECONDS)
        except (BloomError, *FAULTS) as error:
            fault = error.fault if isinstance(error, UnavailableError) else error
            logger.error("Redis could not be told of the end of this worker: %s", fault)
        if self._outbox:
            path = self._undelivered.write(self._outbox.parcels)
            logger.error(
                "%d requests that could not be delivered are in %s: a crawl that is started in the same directory "
                "takes them up",
                len(self._outbox),
                path,
            )

    def flush(self) -> None:
        """Delete the filter, the queue, and what workers hold of it."""
        super().flush()
        self._workers.forget()

    def _leave(self) -> None:
        while self._outbox and not self._has_ended:
            self._send()
        if not self._outbox:
            self._release_finished()
            self._custody.count()
        self._workers.leave(None if self.persist or self._has_ended else self.flush)

    def _take_up(self) -> None:
        """Queue what an earlier crawl could not deliver; whether the filter was told of it nobody knows."""
        for path, parcels in self._undelivered.read():
            self.df.filter.doubt(parcel.item for parcel in parcels if parcel.item is not None)
            for parcel in parcels:
                self._outbox.add(parcel)
            while self._outbox:
                patiently(self._send, self._config.retry_timeout)
            path.unlink(missing_ok=True)
            logger.info("%d requests that could not be delivered before are queued, from %s", len(parcels), path)

    def _is_waiting(self, item: bytes) -> bool:
        """Whether a request with this item waits to be checked; it counts as a repeat that the process knew."""
        found = self._outbox.knows(item)
        self.df.filter.counters.cache_hits += found
        return found

    def deliver(self) -> bool:
        """Send all batches that wait; False: Redis is away."""
        while self._outbox:
            if self._attempt(self._send) is None:
                return False
        return True

    def _send(self) -> bool:
        """Have the next batch checked, then queued: two round trips, between which other workers could take over."""
        batch = self._outbox.parcels[: self._config.batch_size]
        repeats = self._check([parcel for parcel in batch if parcel.item is not None])
        batch = [parcel for parcel in batch if parcel not in repeats]
        try:
            self._custody.put([parcel.waiting for parcel in batch], self._outbox.settled)
            self._outbox.sent(batch)
            self._count("scheduler/enqueued/redis", len(batch))
        finally:
            for parcel in repeats:
                self._drop(parcel)
        return True

    def _check(self, parcels: list[Parcel]) -> list[Parcel]:
        """Ask the filter, which remembers the new ones now; gives the repeats, which are out of the outbox."""
        if not parcels:
            return []
        hold = self._custody.hold(parcel.waiting for parcel in parcels)
        answers = self.df.filter.add_many([parcel.item for parcel in parcels], [hold])
        self.df.update_stats()
        return self._outbox.settle(parcels, answers)

    def _drop(self, repeat: Parcel) -> None:
        """Tell of a repeat as the engine would have, had it been known at once; handlers may enqueue other requests."""
        if repeat.request is None:
            return
        self.df.log(repeat.request, self.spider)
        self.spider.crawler.signals.send_catch_log(signals.request_dropped, request=repeat.request, spider=self.spider)

    def _decode(self, taken: Waiting) -> Request | None:
        """The request that was serialised, or None: it is set aside for the next crawl."""
        try:
            request: Request = self.queue._decode_request(taken.member)
        except Exception:  # whatever the serialiser or the spider makes of it
            logger.exception("A request of the queue %r cannot be read; it is left for another crawl", self.queue.key)
            self._attempt(lambda: (self._custody.set_aside(taken),))
            return None
        return request

    def _attempt(self, work: Any) -> Any:
        """What some work with Redis gives, or None: it is away, or refuses, which ends the crawl."""
        if self._has_ended:
            return None
        try:
            result = self._outage.attempt(work, first=self._workers.beat)
        except (BloomError, *FAULTS) as error:
            self._has_ended = True
            self.df.end_crawl(error)
            return None
        if result is None:
            self._alarm.set(_IDLE_SECONDS)
        self._show_recovered()
        return result

    def _show_recovered(self) -> None:
        if self.stats is not None and self._workers.recovered:
            self.stats.set_value(RECOVERED, self._workers.recovered)

    def _release_finished(self) -> None:
        """Let go of the requests that the engine is done with; what they led to is delivered by then."""
        running = compat.in_progress(self.spider.crawler)
        finished = [request for request in self._taken if request not in running]
        self._custody.release([self._taken.pop(request) for request in finished])

    def _stay_while_others_work(self) -> None:
        """An idle worker stays while others hold requests that may lead to more, or put them back."""
        if self._has_ended:
            return
        if self._attempt(self._workers.are_at_work) is not False:
            self._alarm.set(_IDLE_SECONDS)
            raise DontCloseSpider

    def _count(self, stat: str, number: int = 1) -> None:
        if self.stats is not None:
            self.stats.inc_value(stat, number)


def _refuse_unfit(settings: BaseSettings) -> None:
    dupefilter = settings.get("DUPEFILTER_CLASS")
    if not issubclass(load_object(dupefilter), BloomRFPDupeFilter):
        raise ConfigError(
            f"DUPEFILTER_CLASS = {dupefilter!r}: BloomScheduler checks requests in batches, which only "
            "'scrapy_bloom.BloomRFPDupeFilter' and its subclasses can do; set that, or scrapy-redis's SCHEDULER"
        )
    queue = settings.get("SCHEDULER_QUEUE_CLASS") or defaults.SCHEDULER_QUEUE_CLASS
    if not issubclass(load_object(queue), PriorityQueue):
        raise ConfigError(
            f"SCHEDULER_QUEUE_CLASS = {queue!r}: BloomScheduler holds what it takes from a sorted set, and a list has "
            "no command that gives the same guarantee; set 'scrapy_redis.queue.PriorityQueue', or scrapy-redis's "
            "SCHEDULER"
        )
