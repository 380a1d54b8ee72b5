"""Report a crawl's filter: warnings and a summary at the start, stats while it runs, a verdict at the end."""

import logging
import time
from collections.abc import Callable
from typing import Any

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http.request import NO_CALLBACK
from scrapy.statscollectors import StatsCollector

from scrapy_bloom._format import as_error_rate, as_expected_pages, as_size, plural
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter.describe import Counters, FilterInfo
from scrapy_bloom.monitoring import stats
from scrapy_bloom.monitoring.stats import call_safely
from scrapy_bloom.transport.failures import FAULTS, cause_of
from scrapy_bloom.transport.server_info import evicts, nodes, policy

logger = logging.getLogger(__name__)

_UPDATE_SECONDS = 0.1
_START_OVER = (
    "start the first worker with SCHEDULER_FLUSH_ON_START = True, or delete the filter by `scrapy bloom clear --yes`"
)
_TTL_ADVICE = (
    " BLOOMFILTER_TTL = %d keeps a request for up to 1.25 times as long: to crawl again every P seconds, set 0.75 P "
    "at most."
)


class CrawlReporter:
    """Reports one filter to the log and, if there is one, to a stats collector.

    Args:
        key: the filter's key.
        counters: this process's work with the filter.
        read: returns the filter's fill, or None if there is no filter any more.
        collector: the crawl's stats, or None.
        monotonic: the clock.
    """

    def __init__(
        self,
        key: str,
        counters: Counters,
        read: Callable[[], FilterInfo | None],
        collector: StatsCollector | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._counters = counters
        self._read = read
        self._collector = collector
        self._monotonic = monotonic
        self._dropped = 0
        self._forgotten = 0
        self._unpublished = 0
        self._next_update = 0.0
        self._is_current = True
        self._has_fetched = self._has_fetched_unfiltered = False
        self._is_alone: bool | None = None
        self._is_always_new: Callable[[Request], bool] = lambda _: False
        self._always: set[bytes] = set()
        self._is_ended = self._is_deleted = False

    def begin(self, server: Any, ttl: float | None, *, is_anew: bool = False) -> bool:
        """Log the opened filter, and warn of a server that may evict it.

        Args:
            server: a Redis client.
            ttl: the filter's TTL in seconds.
            is_anew: the crawl begins anew, so that requests in the filter are those of its other workers.

        Returns:
            False if the filter does not exist any more.
        """
        info = self._read()
        if info is None:
            return False
        self._info, self._found, self._ttl = info, info.count, ttl
        self._publish(info)
        warn_about_memory_policy(server, self._key, info.memory_bytes, expires=bool(ttl))
        if not info.count:
            logger.info(
                "Opened the Bloom filter at %r: it is new, and takes %s for a capacity of %s at an error rate of %s",
                self._key,
                as_size(info.memory_bytes),
                f"{info.capacity:,}",
                as_error_rate(info.error_rate),
            )
            return True
        logger.info("Opened the Bloom filter at %r: it holds %s", self._key, _in_words(info))
        if not is_anew:
            logger.info(
                "Requests in the filter at %r are not fetched again: the crawl continues with it. To start over, stop "
                "all workers, then start the first one with SCHEDULER_FLUSH_ON_START = True",
                self._key,
            )
        return True

    def follow(self, crawler: Crawler, is_always_new: Callable[[Request], bool]) -> None:
        """Note the fetches of a crawl, and report its end; `is_always_new` knows the requests of BLOOMFILTER_ALWAYS."""
        self._is_always_new = is_always_new
        for fetches in (signals.request_reached_downloader, signals.response_received):
            crawler.signals.connect(self._note_fetch, fetches)
        crawler.signals.connect(self._finish, signals.spider_closed)

    def count_filtered(self) -> None:
        """Count a dropped request."""
        self._dropped += 1
        self._unpublished += 1
        self.update()

    def note_always(self, mark: bytes) -> None:
        """Note a request that BLOOMFILTER_ALWAYS makes new in this run."""
        self._always.add(mark)

    def count_forgotten(self, number: int) -> None:
        """Count requests that the filter has forgotten."""
        self._forgotten += number
        if self._collector is not None and number:
            call_safely(self._collector.inc_value, stats.FORGOTTEN, number)

    def update(self) -> None:
        """Publish the stats, a few times a second: a stats collector is slower than the check of a repeat."""
        now = self._monotonic()
        if now >= self._next_update:
            self._next_update = now + _UPDATE_SECONDS
            self._show()

    def refresh(self) -> None:
        """Publish the filter's fill; the last known fill stays after a deletion or while the server is unreachable."""
        if self._is_ended:
            return
        try:
            info = self._read()
        except (BloomError, *FAULTS) as error:
            self._is_current = False
            # Without the timeout, which at the end of a crawl is no setting of the user.
            logger.warning("The fill of the filter at %r is unknown: %s", self._key, cause_of(error))
            return
        self._is_current = True
        if info is not None:
            self._info = info
            self._publish(info)

    def end(self, *, is_alone: bool | None = None, is_deleted: bool) -> None:
        """Note the end of the crawl, after which the filter may belong to another one.

        Args:
            is_alone: this worker has met no other one; None if that is unknown.
            is_deleted: the filter was deleted.
        """
        self._is_ended, self._is_alone, self._is_deleted = True, is_alone, is_deleted

    def _note_fetch(self, request: Request) -> None:
        """Note a fetched request, since a stats collector may keep no counts.

        Requests with `dont_filter` bypass the filter, as do requests without a callback: robots.txt, and the files of
        Scrapy's pipelines.
        """
        if request.dont_filter or self._is_always_new(request) or request.callback is NO_CALLBACK:
            self._has_fetched_unfiltered = True
        else:
            self._has_fetched = True

    def _show(self) -> None:
        self._publish(self._counters)
        collector, number = self._collector, self._unpublished
        if collector is not None and number and call_safely(collector.inc_value, stats.FILTERED, number):
            self._unpublished = 0

    def _finish(self, reason: str = "") -> None:
        """Log the work of the filter in this process; `reason` is the spider's close reason."""
        self.refresh()
        self._show()
        counters, info = self._counters, self._info
        # The error rate has only grown to the present one.
        missed = as_expected_pages(counters.added * info.current_error_rate)
        # A program that calls `request_seen` itself may not call `log` for repeats.
        repeats = max(self._dropped, counters.cache_hits)
        if reason == "finished" and repeats and counters.added <= len(self._always) and not self._has_fetched:
            self._warn_of_nothing_new(repeats)
        logger.info(
            "The Bloom filter at %r took %s and dropped %s of this process, %s of them without asking Redis, in %s; %s "
            "may have been missed. %s",
            self._key,
            plural(counters.added, "new request"),
            plural(repeats, "repeat"),
            f"{counters.cache_hits:,}",
            plural(counters.round_trips, "round trip"),
            missed,
            f"It holds {_in_words(info)}" if self._is_current else "Its fill is unknown",
        )
        if self._forgotten:
            logger.info(
                "The filter at %r has forgotten failed requests %s: a page is fetched again when a fetched page links "
                "to it. `scrapy bloom info` shows how many are left",
                self._key,
                plural(self._forgotten, "time"),
            )
        if info.current_error_rate > info.error_rate:
            logger.warning(
                "The filter at %r is too full: its error rate is %s, and %s is allowed; this process has probably "
                "missed %s. Start over with BLOOMFILTER_CAPACITY above %s, or let the filter grow "
                "(BLOOMFILTER_EXPANSION)",
                self._key,
                as_error_rate(info.current_error_rate),
                as_error_rate(info.error_rate),
                missed,
                info.capacity,
            )

    def _warn_of_nothing_new(self, repeats: int) -> None:
        """Warn that the filter knew all requests of this process, unless other workers explain it.

        A worker that joins late may find nothing to do, and its user must not flush anything. Only BloomScheduler knows
        the others. Under another scheduler this is no warning, and names both causes.
        """
        # Others have added requests if the count has grown by more than this process added.
        has_grown = self._info.count > self._found + self._counters.added
        if self._is_alone is False or not self._is_current or has_grown:
            return
        logger.log(
            logging.INFO if self._is_alone is None else logging.WARNING,
            "All %s %s that went through the filter at %r were known to it when this process began: %s. %s %s.%s%s",
            f"{repeats:,}",
            "requests" if self._has_fetched_unfiltered else "start requests",
            self._key,
            "nothing new was fetched, only requests with dont_filter=True or of BLOOMFILTER_ALWAYS"
            if self._has_fetched_unfiltered
            else "nothing was fetched",
            "To start over," if self._is_alone else "Either other workers crawl, and fetch it all; or, to start over,",
            "start the crawl again: its end has deleted the filter" if self._is_deleted else _START_OVER,
            "" if self._has_fetched_unfiltered else " To fetch them at each start, set dont_filter=True.",
            _TTL_ADVICE % self._ttl if self._ttl and not self._is_deleted else "",
        )

    def _publish(self, shown: Counters | FilterInfo) -> None:
        if self._collector is not None:
            call_safely(stats.publish, self._collector, shown)


def warn_about_memory_policy(server: Any, key: str, memory_bytes: int, *, expires: bool = False) -> None:
    """Warn if the filter exceeds the server's maxmemory, or if the server may evict it.

    Args:
        server: a Redis client. Managed servers may deny INFO, and are not checked then.
        key: the filter's key.
        memory_bytes: the filter's size.
        expires: whether the filter has a TTL, and volatile-* policies may evict it.
    """
    try:
        infos = [info for _, info in nodes(server)]
    except FAULTS:
        return
    limit = min((int(info.get("maxmemory", 0)) for info in infos), default=0)
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


def _in_words(info: FilterInfo) -> str:
    return (
        f"{info.count:,} requests for a capacity of {info.capacity:,} ({info.count / info.capacity:.0%}), error rate "
        f"{as_error_rate(info.current_error_rate)} of {as_error_rate(info.error_rate)} allowed, "
        f"{as_size(info.memory_bytes)} in {plural(info.layers, 'layer')}"
    )
