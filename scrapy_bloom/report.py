"""Report a crawl: the stats, log lines and warnings of its filter, its queue and its workers.

A failing stats collector or log handler never loses a request.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.statscollectors import StatsCollector

from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter.info import Counters, FilterInfo
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.pace import RESERVED, WASTED
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import News, Received
from scrapy_bloom.queue.worker import MAX_STARTS
from scrapy_bloom.text import LimitedWarnings, as_error_rate, as_expected_pages, as_size, get_logger, plural
from scrapy_bloom.transport.connect import evicts, is_cluster, policy
from scrapy_bloom.transport.failures import FAULTS, cause_of

logger = get_logger(__name__)

# scrapy-redis's own stats.
ENQUEUED, DEQUEUED = "scheduler/enqueued/redis", "scheduler/dequeued/redis"
FILTERED = "dupefilter/filtered"
RECOVERED = "bloomfilter/recovered"
DEAD_LETTERS = "bloomfilter/dead_letters"
FAILED = "bloomfilter/failed"
QUEUE_LOSSES = "bloomfilter/queue_losses"
# Named as in Scrapy's own scheduler.
UNSERIALIZABLE = "scheduler/unserializable"

_PREFIX = "bloomfilter/"
_FIELDS: dict[type, tuple[str, ...]] = {
    Counters: ("added", "cache_hits", "round_trips", "losses"),
    FilterInfo: ("fill_ratio", "count", "current_error_rate", "memory_bytes", "layers"),
}
_OF_FILTER = tuple(_PREFIX + field for fields in _FIELDS.values() for field in fields)
_OF_WORKER = FILTERED, RECOVERED, DEAD_LETTERS, FAILED, QUEUE_LOSSES, UNSERIALIZABLE, RESERVED, WASTED
NAMES = (*_OF_WORKER, *_OF_FILTER)

_UPDATE_SECONDS = 0.1
_START_OVER = (
    ", whose pages may be missed. To fetch them, start over with SCHEDULER_FLUSH_ON_START = True, or if the filter is "
    "shared by `scrapy bloom clear`"
)
_JOINS_AGAIN = ". This worker joins again with its requests, and some may be fetched twice"
_GONE = (
    "Requests in the queue %r or leased from it are gone%s, %s of them known: a key of it, or of another of its "
    "partitions, was deleted, evicted, or put back to an earlier state, or another client takes requests. The filter "
    "calls them seen" + _START_OVER
)
_SHARDS = "The filter of the queue %r lost %d shards (evicted?). The crawl continues, and may fetch their pages again"
_IS_SHARED = "The filter at %r is shared: SCHEDULER_DUPEFILTER_KEY has no %%(spider)s in it, so no crawl deletes it"
_CONTINUES = (
    "Requests in the filter at %r are not fetched again: the crawl continues with it. To start over, stop all workers, "
    "then %s"
)
_WORK = (
    "The Bloom filter at %r took %s and dropped %s of this process, %s of them without asking Redis, in %s; %s may "
    "have been missed. %s"
)
_TOO_FULL = (
    "The filter at %r is too full: its error rate is %s, and %s is allowed; this process has probably missed %s. Start "
    "over with BLOOMFILTER_CAPACITY above %s, or let the filter grow (BLOOMFILTER_EXPANSION)"
)
_EVICTS = (
    "maxmemory-policy = %s: the server may evict parts of the filter at %r, so that pages are fetched again, or the "
    "queue, so that pages are missed; set noeviction%s"
)
_DEAD_LETTER = (
    "%s: BLOOMFILTER_MAX_DELIVERIES workers died while they held it; it is not crawled, and is kept at the key %r. "
    "Correct the cause, and run `scrapy bloom requeue`"
)
_LEFT_SHARED = (
    "Left %s in the queue %r. Start this spider again to fetch what waits there, since the shared filter drops further "
    "links to it"
)
_DEAD_LETTERS_LEFT = (
    "%s kept at the key %r as dead letters, see the ERROR of each: no worker could read them, or "
    "BLOOMFILTER_MAX_DELIVERIES workers died with them. Correct the cause, and run `scrapy bloom requeue`"
)
_DELETED = (
    "Deleted %s that still waited in the queue %r, %s; set SCHEDULER_PERSIST = True to keep the queue and resume the "
    "crawl"
)
# What a rejoin means, by its reason in `sync.lua`.
_REJOINS = {
    "gone": (
        "Redis has lost the crawl of the queue %r, unless other workers presumed this one dead and ended it. This "
        "worker queues its requests again, and others may be lost" + _START_OVER
    ),
    "ended": (
        "Other workers presumed this one dead, and finished the crawl of the queue %r. This worker fetches its "
        "requests again, and the pages behind them: stop it, unless you want that"
    ),
    "flush": "The queue %r was cleared, or another worker started over with it" + _JOINS_AGAIN,
    "behind": (
        "Redis went back to an earlier state of the queue %r, by a restart from a snapshot or a failover" + _JOINS_AGAIN
    ),
    "dead": "Other workers presumed this one dead and requeued its leases in the queue %r" + _JOINS_AGAIN,
    "leases": "Leases of this worker in the queue %r are gone (evicted?)" + _JOINS_AGAIN,
    "filter": (
        "The filter of the queue %r was replaced (cleared, evicted, or at the end of BLOOMFILTER_TTL). The crawl "
        "continues with a new filter, and may fetch the pages of the lost one again"
    ),
}
_REJOINS["new"] = _REJOINS["gone"]  # another crawl is in its place
_STARTS_LOST = (
    "Redis has lost requests of the queue %r, perhaps also start requests beyond the last "
    f"{MAX_STARTS:,} that a worker remembers" + _START_OVER
)
# The fields of INFO that limit the memory.
_LIMITS = (
    ("maxmemory", "but the server's maxmemory is", "raise it"),
    ("total_system_memory", "but its machine has", "use a larger one"),
)


def call_safely(call: Callable[..., object], *arguments: Any, **options: Any) -> bool:
    """Call a handler, such as a user's stats collector; return False and log if it raises."""
    try:
        call(*arguments, **options)
    except Exception:  # no request is lost for a handler's error
        logger.debug("A stats collector or handler failed", exc_info=True)
        return False
    return True


@dataclass(eq=False)
class CrawlReporter:
    """Reports one filter to the log and, if there is one, to a stats collector.

    Attributes:
        key: the filter's key.
        counters: this process's work with the filter.
        read: returns the filter's fill, or None if there is no filter any more.
        collector: the crawl's stats, or None.
        monotonic: the clock.
    """

    key: str
    counters: Counters
    read: Callable[[], FilterInfo | None]
    collector: StatsCollector | None
    monotonic: Callable[[], float]
    _dropped = _unpublished = 0
    _next_update = 0.0

    def begin(self, *, is_shared: bool = False) -> bool:
        """Log the opened filter.

        Args:
            is_shared: other spiders use the filter, too.

        Returns:
            False if the filter does not exist any more.
        """
        if (info := self.read()) is None:
            return False
        self._show_fill(info)
        if is_shared:
            logger.info(_IS_SHARED, self.key)
        state = f"holds {_in_words(info)}"
        if not info.count:
            state = f"is new, and takes {as_size(info.memory_bytes)} for a capacity of {info.capacity:,}"
            state += f" at an error rate of {as_error_rate(info.error_rate)}"
        logger.info("Opened the Bloom filter at %r: it %s", self.key, state)
        if info.count:
            clearing = f"delete the filter by `scrapy bloom clear --key {self.key} --yes`"
            flushing = "start the first one with SCHEDULER_FLUSH_ON_START = True"
            logger.info(_CONTINUES, self.key, clearing if is_shared else flushing)
        return True

    def follow(self, crawler: Crawler) -> None:
        """Report the end of a crawl."""
        crawler.signals.connect(self._finish, signals.spider_closed)

    def count(self, stat: str, number: int = 1) -> bool:
        """Add a number to a stat; return whether it is counted."""
        return self.collector is not None and call_safely(self.collector.inc_value, stat, number)

    def count_filtered(self) -> None:
        """Count a dropped request."""
        self._dropped += 1
        self._unpublished += 1
        self.update()

    def update(self) -> None:
        """Publish the stats, a few times a second: a stats collector is slower than the check of a repeat."""
        now = self.monotonic()
        if now >= self._next_update:
            self._next_update = now + _UPDATE_SECONDS
            self._show()

    def refresh(self) -> None:
        """Publish the filter's fill; the last known fill stays after a deletion or while the server is unreachable."""
        try:
            if (info := self.read()) is not None:
                self._show_fill(info)
        except (BloomError, *FAULTS) as error:
            self._fill = "Its fill is unknown"
            # Without the timeout, which at the end of a crawl is no setting of the user.
            logger.warning("The fill of the filter at %r is unknown: %s", self.key, cause_of(error))

    def end(self) -> None:
        """Note the end of the crawl, after which the filter may belong to another one."""
        self.read = lambda: None

    def _show_fill(self, info: FilterInfo) -> None:
        self._info, self._fill = info, f"It holds {_in_words(info)}"
        self._publish(info)

    def _show(self) -> None:
        self._publish(self.counters)
        if self._unpublished and self.count(FILTERED, self._unpublished):
            self._unpublished = 0

    def _finish(self) -> None:
        """Log the work of the filter in this process."""
        self.refresh()
        self._show()
        counters, info = self.counters, self._info
        # The error rate has only grown to the present one.
        missed = as_expected_pages(counters.added * info.current_error_rate)
        # A program that calls `request_seen` itself may not call `log` for repeats.
        repeats = plural(max(self._dropped, counters.cache_hits), "repeat")
        new, calls = plural(counters.added, "new request"), plural(counters.round_trips, "round trip")
        logger.info(_WORK, self.key, new, repeats, f"{counters.cache_hits:,}", calls, missed, self._fill)
        if info.current_error_rate > info.error_rate:
            rate, allowed = as_error_rate(info.current_error_rate), as_error_rate(info.error_rate)
            logger.warning(_TOO_FULL, self.key, rate, allowed, missed, info.capacity)

    def _publish(self, source: Counters | FilterInfo) -> None:
        if self.collector is not None:
            for field in _FIELDS[type(source)]:
                call_safely(self.collector.set_value, _PREFIX + field, getattr(source, field))


def warn_about_memory(server: Any, key: str, parameters: FilterParameters, partitions: int = 1) -> None:
    """Warn if a filter has no room in the memory of its server, or if the server may evict it.

    To be called before the filter is made: its first layer is allocated at once.

    Args:
        server: a Redis client. Managed servers may deny INFO, and are not checked then.
        key: the filter's key.
        parameters: those of the filter, or of each partition.
        partitions: their number.
    """
    nodes = [{"target_nodes": node} for node in server.get_primaries()] if is_cluster(server) else [{}]
    try:
        infos = [server.info(**node) for node in nodes]
    except FAULTS:
        return
    needed = parameters.sizes()[0].memory_bytes * math.ceil(partitions / len(infos))
    for name, has, action in _LIMITS:
        limit = min(int(info.get(name, 0)) for info in infos)
        if limit and needed > limit:
            text = "The filter at %r takes %s bytes, %s %s bytes; %s, or set a smaller BLOOMFILTER_CAPACITY"
            logger.warning(text, key, f"{needed:,}", has, f"{limit:,}", action)
            break
    expires = bool(parameters.ttl)
    if evicting := [policy(info) for info in infos if evicts(info, expires=expires)]:
        others = ": the keys of a filter with BLOOMFILTER_TTL expire" if expires else ", or a volatile-* policy"
        logger.warning(_EVICTS, evicting[0], key, others)


def _in_words(info: FilterInfo) -> str:
    return (
        f"{plural(info.count, 'request')} for a capacity of {info.capacity:,} ({info.count / info.capacity:.0%}), "
        f"error rate {as_error_rate(info.current_error_rate)} of {as_error_rate(info.error_rate)} allowed, "
        f"{as_size(info.memory_bytes)} in {plural(info.layers, 'layer')}"
    )


class QueueReport:
    """Reports what a worker learns of one queue.

    Args:
        keys: the keys of the queue.
        report: counts in the stats.
        read: returns a serialized request.

    Attributes:
        has_lost: the queue has lost requests since this worker joined.
    """

    def __init__(self, keys: QueueKeys, report: CrawlReporter, read: Callable[[bytes], Request]) -> None:
        self.has_lost = self._has_begun = False
        self.warnings = LimitedWarnings(logger)
        self._keys, self._report, self._read, self._news = keys, report, read, News()

    def begin(self, news: News) -> None:
        """Report the losses before this worker joined."""
        self._has_begun, self._news = True, news
        if news.losses and not self.has_lost:
            logger.warning(_GONE, self._keys.queue, " since before this worker began", f"{news.lost:,}")

    def update(self, received: Received, news: News, *, forgets_starts: bool = False) -> None:
        """Report what a reply says, and the queue after it."""
        if received.rejoin:
            self._report_rejoin(received.rejoin, forgets_starts=forgets_starts)
        if received.others:
            for dead in received.others.dead:
                self._report.count(RECOVERED, dead.requests)
                text = "Worker %s has been silent for %.0f s: requeued %s of its leases in the queue %r"
                logger.warning(text, dead.name, dead.seconds, plural(dead.requests, "request"), self._keys.queue)
            for member in received.others.dead_letters:
                self._report_dead_letter(member)
        before, self._news = self._news, news
        # That of a heartbeat comes with the last known news once more.
        if (news.found and news is not before) or (self._has_begun and news.losses > before.losses):
            self._note_loss()
            self.warnings.warn(_GONE, self._keys.queue, "", f"{max(news.lost - before.lost, 0):,}", level=logging.ERROR)
        if news.lost_shards > before.lost_shards:
            self._report.counters.losses += 1
            self.warnings.warn(_SHARDS, self._keys.queue, news.lost_shards - before.lost_shards)

    def _report_rejoin(self, reason: str, *, forgets_starts: bool) -> None:
        is_loss = reason in ("gone", "new")
        self.warnings.warn(_REJOINS[reason], self._keys.queue, level=logging.ERROR if is_loss else logging.WARNING)
        self._report.counters.losses += reason == "filter"
        if forgets_starts and (is_loss or reason == "behind"):
            is_loss = True
            self.warnings.warn(_STARTS_LOST, self._keys.queue, level=logging.ERROR)
        if is_loss:
            self._note_loss()

    def _report_dead_letter(self, member: bytes) -> None:
        """Log and count a request that became a dead letter after the deaths of its workers."""
        try:
            name = str(self._read(member))
        except Exception as error:  # the request may be from other code, or start data
            name = f"A request that cannot be read ({type(error).__name__})"
        self._report.count(DEAD_LETTERS)
        logger.error(_DEAD_LETTER, name, self._keys.dead_letters)

    def end(self, mode: str, dead: int, *, is_gone: bool, is_last: bool) -> None:
        """Report the requests that are left in the queue or deleted with it, and the dead letters.

        Args:
            mode: how the worker has left: `finished`, `stopped`, `keep`, or `shared`: stopped beside a shared filter.
            dead: dead letters.
            is_gone: the crawl is deleted.
            is_last: no other worker is left.
        """
        waiting = self._news.waiting
        if waiting and is_gone:
            warn_of_deleted_requests(waiting, self._keys.queue)
        elif waiting and mode == "shared" and is_last:
            logger.warning(_LEFT_SHARED, plural(waiting, "request"), self._keys.queue)
        elif waiting:
            logger.info("Left %s in the queue %r", plural(waiting, "request"), self._keys.queue)
        if dead:
            logger.warning(_DEAD_LETTERS_LEFT, plural(dead, "request"), self._keys.dead_letters)

    def _note_loss(self) -> None:
        self.has_lost = True
        self._report.count(QUEUE_LOSSES)


def warn_of_deleted_requests(waiting: int, queue: str, *, is_shared: bool = False) -> None:
    """Warn that a stopped crawl deletes queued requests, and the filter unless that is shared."""
    kept = "but not the shared filter, so that their pages are missed"
    logger.warning(_DELETED, plural(waiting, "request"), queue, kept if is_shared else "and the filter")
