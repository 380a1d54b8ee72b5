"""Report a crawl's filter: warnings and a summary at the start, stats while it runs, a verdict at the end."""

import logging
import time
from collections.abc import Callable
from typing import Any

import redis
from scrapy import Request
from scrapy.http.request import NO_CALLBACK
from scrapy.statscollectors import StatsCollector

from scrapy_bloom._format import as_error_rate, as_expected_pages, as_size, plural
from scrapy_bloom.errors import BloomError, UnavailableError
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.describe import FilterInfo
from scrapy_bloom.monitoring import stats
from scrapy_bloom.monitoring.stats import call_safely
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.server_info import evicts, nodes, policy

logger = logging.getLogger(__name__)


def warn_about_memory_policy(server: Any, key: str, memory_bytes: int, *, expires: bool = False) -> None:
    """Warn if the filter exceeds the server's maxmemory, or if the server may evict it.

    Args:
        server: a Redis client. Managed servers may deny INFO, and are not checked then.
        key: the filter's key.
        memory_bytes: the filter's size when it is created; the nodes of a cluster share it.
        expires: whether the filter has a TTL, and volatile-* policies may evict it.
    """
    try:
        infos = [info for _, info in nodes(server)]
    except FAULTS:
        return
    limits = [int(info.get("maxmemory", 0)) for info in infos]
    limit = sum(limits) if all(limits) else 0
    if limit and memory_bytes > limit:
        logger.warning(
            "The filter at %r takes %s bytes, but the server's maxmemory is %s bytes; raise maxmemory, or set a "
            "smaller BLOOMFILTER_CAPACITY or a larger BLOOMFILTER_ERROR_RATE",
            key,
            f"{memory_bytes:,}",
            f"{limit:,}",
        )
    evicting = [policy(info) for info in infos if evicts(info, expires=expires)]
    if evicting:
        logger.warning(
            "maxmemory-policy = %s: the server may evict parts of the filter at %r, so that pages are fetched again, "
            "or the queue, so that pages are missed; set noeviction%s",
            evicting[0],
            key,
            ": the keys of a filter with BLOOMFILTER_TTL expire" if expires else ", or a volatile-* policy",
        )


_UPDATE_SECONDS = 0.1
_START_OVER = (
    "start the first worker with SCHEDULER_FLUSH_ON_START = True, or delete the filter by `scrapy bloom clear --yes`"
)
_TTL_ADVICE = (
    " BLOOMFILTER_TTL = %d keeps a request for up to 1.25 times as long: to crawl again every P seconds, set 0.75 P "
    "at most."
)


class CrawlReporter:
    """Reports one filter to the log and, if there is one, to a stats collector."""

    def __init__(
        self,
        bloom: BaseBloomFilter,
        collector: StatsCollector | None,
        monotonic: Callable[[], float] = time.monotonic,
        is_always_new: Callable[[Request], bool] = lambda _: False,
    ) -> None:
        self._monotonic = monotonic
        self._is_always_new = is_always_new
        self._filter = bloom
        self._collector = collector
        self._dropped = 0
        self._forgotten = 0
        self._unpublished = 0
        self._next_update = 0.0
        self._info = bloom.info()
        self._is_current = True
        # None until the filter exists. An unchanged count means that no worker has added a request.
        self._found = self._info.estimated_count if bloom.is_open else None
        self._is_unchanged = False
        self._has_fetched = self._has_fetched_unfiltered = False
        self._is_alone: bool | None = None
        self._is_concluded = False

    def start(self, *, begins_anew: bool = False) -> None:
        """Log the opened filter. If the crawl `begins_anew`, its requests are those of other workers of the crawl."""
        self._publish(self._info)
        if self._filter.is_open:
            logger.info("Opened the Bloom filter at %r: it holds %s", self._filter.key, _in_words(self._info))
        else:
            logger.info(
                "Opened the Bloom filter at %r: it is new, and takes %s from the first request on, for a capacity of "
                "%s at an error rate of %s",
                self._filter.key,
                as_size(self._info.memory_bytes),
                f"{self._info.capacity:,}",
                as_error_rate(self._info.error_rate),
            )
        if self._info.estimated_count and not begins_anew:
            logger.info(
                "Requests in the filter at %r are not fetched again: the crawl continues with it. To start over, stop "
                "all workers, then start the first one with SCHEDULER_FLUSH_ON_START = True",
                self._filter.key,
            )

    def count_filtered(self) -> None:
        """Count a dropped request."""
        self._dropped += 1
        self._unpublished += 1
        self.update()

    def count_forgotten(self, number: int) -> None:
        """Count requests that the filter has forgotten."""
        self._forgotten += number
        if self._collector is not None and number:
            call_safely(self._collector.inc_value, stats.FORGOTTEN, number)

    def note_fetch(self, request: Request) -> None:
        """Note a fetched request, since a stats collector may keep no counts.

        Requests with `dont_filter` bypass the filter, as do requests without a callback: robots.txt, and the files of
        Scrapy's pipelines.
        """
        if request.dont_filter or self._is_always_new(request) or request.callback is NO_CALLBACK:
            self._has_fetched_unfiltered = True
        else:
            self._has_fetched = True

    def note_workers(self, *, is_alone: bool) -> None:
        """Note whether this worker is alone; once other workers were seen, it never counts as alone."""
        self._is_alone = is_alone and self._is_alone is not False

    def update(self) -> None:
        """Publish the stats, a few times a second: a stats collector is slower than the check of a repeat."""
        now = self._monotonic()
        if now >= self._next_update:
            self._next_update = now + _UPDATE_SECONDS
            self._show()

    def _show(self) -> None:
        self._publish(self._filter.counters)
        collector, number = self._collector, self._unpublished
        if collector is not None and number and call_safely(collector.inc_value, stats.FILTERED, number):
            self._unpublished = 0

    def refresh(self) -> None:
        """Publish the filter's fill; the last known fill stays after a deletion or while the server is unreachable."""
        if self._is_concluded or not self._filter.is_open:
            return
        try:
            self._info = self._filter.info()
            self._is_current = True
        except (BloomError, redis.RedisError) as error:
            self._is_current = False
            # Without the timeout, which at the end of a crawl is no setting of the user.
            cause = error.cause if isinstance(error, UnavailableError) else describe(error)
            logger.warning("The fill of the filter at %r is unknown: %s", self._filter.key, cause)
        # Noted here: the crawl may delete the filter before it reports.
        self._is_unchanged = self._is_current and self._info.estimated_count == self._found
        self._publish(self._info)

    def conclude(self) -> None:
        """Publish the filter's fill for the last time: other workers may delete it before the spider closes."""
        self.refresh()
        self._is_concluded = True

    def finish(self, reason: str = "") -> None:
        """Log the work of the filter in this process; `reason` is the spider's close reason."""
        self.refresh()
        self._show()
        counters = self._filter.counters
        missed = as_expected_pages(counters.expected_false_positives)
        # A program that calls `request_seen` itself may not call `log` for repeats.
        repeats = max(self._dropped, counters.cache_hits)
        if reason == "finished" and repeats and counters.added == counters.ambiguous and not self._has_fetched:
            self._warn_of_nothing_new(repeats)
        logger.info(
            "The Bloom filter at %r took %s and dropped %s of this process, %s of them without asking Redis, in %s; %s "
            "may have been missed. %s",
            self._filter.key,
            plural(counters.added, "new request"),
            plural(repeats, "repeat"),
            f"{counters.cache_hits:,}",
            plural(counters.round_trips, "round trip"),
            missed,
            f"It holds {_in_words(self._info)}" if self._is_current else "Its fill is unknown",
        )
        if self._forgotten:
            logger.info(
                "The filter at %r has forgotten failed requests %s: a page is fetched again when a fetched page links "
                "to it. `scrapy bloom info` shows how many are left",
                self._filter.key,
                plural(self._forgotten, "time"),
            )
        if self._info.estimated_error_rate > self._info.error_rate:
            logger.warning(
                "The filter at %r is too full: its error rate is %s, and %s is allowed; this process has probably "
                "missed %s. Start over with BLOOMFILTER_CAPACITY above %s, or let the filter grow "
                "(BLOOMFILTER_EXPANSION)",
                self._filter.key,
                as_error_rate(self._info.estimated_error_rate),
                as_error_rate(self._info.error_rate),
                missed,
                self._info.capacity,
            )

    def _warn_of_nothing_new(self, repeats: int) -> None:
        """Warn that the filter knew all requests of this process, unless other workers explain it.

        A worker that joins late may find nothing to do, and its user must not flush anything. The other workers may
        have ended since, so those seen when it joined count. Only BloomScheduler knows them. Under another scheduler
        this is no warning, and names both causes.
        """
        if self._is_alone is False or not self._is_unchanged:
            return
        ttl = self._filter.parameters.ttl
        is_kept = self._filter.is_open
        logger.log(
            logging.INFO if self._is_alone is None else logging.WARNING,
            "All %s %s that went through the filter at %r were known to it when this process began: %s. %s %s.%s%s",
            f"{repeats:,}",
            "requests" if self._has_fetched_unfiltered else "start requests",
            self._filter.key,
            "nothing new was fetched, only requests with dont_filter=True or of BLOOMFILTER_ALWAYS"
            if self._has_fetched_unfiltered
            else "nothing was fetched",
            "To start over," if self._is_alone else "Either other workers crawl, and fetch it all; or, to start over,",
            _START_OVER if is_kept else "start the crawl again: its end has deleted the filter",
            "" if self._has_fetched_unfiltered else " To fetch them at each start, set dont_filter=True.",
            _TTL_ADVICE % ttl if ttl and is_kept else "",
        )

    def _publish(self, shown: Any) -> None:
        if self._collector is not None:
            call_safely(stats.publish, self._collector, shown)


def warn_of_deleted_requests(waiting: int, queue: str) -> None:
    """Warn that a stopped crawl deletes queued requests and the filter."""
    logger.warning(
        "%s requests that still waited in the queue %r are deleted, and the filter with them; set SCHEDULER_PERSIST = "
        "True to keep both and resume the crawl",
        f"{waiting:,}",
        queue,
    )


def warn_of_kept_requests(waiting: int, queue: str) -> None:
    """Warn that queued requests stay in Redis, with a filter that another crawl uses."""
    logger.warning(
        "%s requests still wait in the queue %r, and stay there: another crawl uses their filter, which calls them "
        "seen. Start this spider again to fetch them",
        f"{waiting:,}",
        queue,
    )


def warn_of_dead_letters(number: int, key: str) -> None:
    """Warn of requests that no worker could read, or that killed too many workers."""
    logger.warning(
        "%s requests are kept at the key %r: no worker could read them, or BLOOMFILTER_MAX_DELIVERIES workers died "
        "with them. The next worker to start queues the unreadable ones again, and `scrapy bloom requeue` all of them. "
        "To discard them, delete the key",
        f"{number:,}",
        key,
    )


def _in_words(info: FilterInfo) -> str:
    return (
        f"about {info.estimated_count:,} requests for a capacity of {info.capacity:,} "
        f"({info.estimated_count / info.capacity:.0%}), error rate {as_error_rate(info.estimated_error_rate)} of "
        f"{as_error_rate(info.error_rate)} allowed, {as_size(info.memory_bytes)} in {plural(info.layers, 'layer')}"
    )
