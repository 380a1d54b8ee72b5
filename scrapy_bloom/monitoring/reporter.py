"""Report a crawl's filter: warnings and a summary at the start, stats while it runs, a verdict at the end."""

import logging
import time
from collections.abc import Callable
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.statscollectors import StatsCollector

from scrapy_bloom._format import as_error_rate, as_expected_pages, as_size, plural
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter.info import Counters, FilterInfo
from scrapy_bloom.monitoring import stats
from scrapy_bloom.monitoring.stats import call_safely
from scrapy_bloom.transport.failures import FAULTS, cause_of
from scrapy_bloom.transport.server_info import evicts, nodes, policy

logger = logging.getLogger(__name__)

_UPDATE_SECONDS = 0.1


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
        self._unpublished = 0
        self._next_update = 0.0
        self._is_current = True
        self._is_ended = False

    def begin(self, server: Any, ttl: float | None, *, is_shared: bool = False) -> bool:
        """Log the opened filter, and warn of a server that may evict it.

        Args:
            server: a Redis client.
            ttl: the filter's TTL in seconds.
            is_shared: other spiders use the filter, too.

        Returns:
            False if the filter does not exist any more.
        """
        info = self._read()
        if info is None:
            return False
        self._info = info
        self._publish(info)
        warn_about_memory_policy(server, self._key, info.memory_bytes, expires=bool(ttl))
        if is_shared:
            logger.info(
                "The filter at %r is shared: SCHEDULER_DUPEFILTER_KEY has no %%(spider)s in it, so no crawl deletes it",
                self._key,
            )
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
        logger.info(
            "Requests in the filter at %r are not fetched again: the crawl continues with it. To start over, stop all "
            "workers, then %s",
            self._key,
            f"delete the filter by `scrapy bloom clear --key {self._key} --yes`"
            if is_shared
            else "start the first one with SCHEDULER_FLUSH_ON_START = True",
        )
        return True

    def follow(self, crawler: Crawler) -> None:
        """Report the end of a crawl."""
        crawler.signals.connect(self._finish, signals.spider_closed)

    def count_filtered(self) -> None:
        """Count a dropped request."""
        self._dropped += 1
        self._unpublished += 1
        self.update()

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

    def end(self) -> None:
        """Note the end of the crawl, after which the filter may belong to another one."""
        self._is_ended = True

    def _show(self) -> None:
        self._publish(self._counters)
        collector, number = self._collector, self._unpublished
        if collector is not None and number and call_safely(collector.inc_value, stats.FILTERED, number):
            self._unpublished = 0

    def _finish(self) -> None:
        """Log the work of the filter in this process."""
        self.refresh()
        self._show()
        counters, info = self._counters, self._info
        # The error rate has only grown to the present one.
        missed = as_expected_pages(counters.added * info.current_error_rate)
        # A program that calls `request_seen` itself may not call `log` for repeats.
        repeats = max(self._dropped, counters.cache_hits)
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
