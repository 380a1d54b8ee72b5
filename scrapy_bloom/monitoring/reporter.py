"""Report a crawl's filter: server warnings and a summary at the start, stats while it runs, a verdict at the end."""

import logging
import time
from collections.abc import Callable
from typing import Any

import redis
from scrapy import Request
from scrapy.http.request import NO_CALLBACK
from scrapy.statscollectors import StatsCollector

from scrapy_bloom._format import as_expected_pages, as_size
from scrapy_bloom.errors import BloomError, UnavailableError
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.describe import FilterInfo
from scrapy_bloom.monitoring import stats
from scrapy_bloom.monitoring.notifier import call_safely
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.server_info import evicts, nodes, policy

logger = logging.getLogger(__name__)


def warn_about_memory_policy(server: Any, key: str, memory_bytes: int, *, expires: bool = False) -> None:
    """Warn where the filter does not fit the server's maxmemory, or where the server may evict it.

    `memory_bytes` is what the filter takes when it is made. The keys of one that `expires` may be evicted where others
    may not. Managed servers may deny INFO. The nodes of a cluster share the filter.
    """
    try:
        told = [info for _, info in nodes(server)]
    except FAULTS:
        return
    limits = [int(info.get("maxmemory", 0)) for info in told]
    limit = sum(limits) if all(limits) else 0
    if limit and memory_bytes > limit:
        logger.warning(
            "The filter at %r takes %s bytes, and the server's maxmemory is %s bytes: raise maxmemory, or set a "
            "smaller BLOOMFILTER_CAPACITY or a larger BLOOMFILTER_ERROR_RATE",
            key,
            f"{memory_bytes:,}",
            f"{limit:,}",
        )
    evicting = [policy(info) for info in told if evicts(info, expires=expires)]
    if evicting:
        logger.warning(
            "The server's maxmemory-policy is %s: it may evict parts of the filter at %r, and the crawl then fetches "
            "pages again; or the queue, with requests whose pages are then missed. Set noeviction%s",
            evicting[0],
            key,
            ": the keys of a filter with BLOOMFILTER_TTL expire" if expires else ", or a volatile-* policy",
        )


_SHOWN_EVERY_SECONDS = 0.1
_TTL_ADVICE = (
    " BLOOMFILTER_TTL = %d keeps a request for up to 1.25 times as long: to crawl again every P seconds, set 0.75 P "
    "at most."
)


class CrawlReporter:
    """Tells a stats collector, if there is one, and the log about one filter."""

    def __init__(
        self,
        bloom: BaseBloomFilter,
        collector: StatsCollector | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._filter = bloom
        self._collector = collector
        self._dropped = 0
        self._unpublished = 0
        self._next = 0.0
        self._info = bloom.info()
        self._is_current = True
        # It tells a filter that is done with from one that others fill meanwhile.
        self._found = self._info.estimated_count if bloom.is_open else None
        self._has_fetched = self._has_fetched_unfiltered = False
        self._is_alone: bool | None = None
        self._is_concluded = False

    def start(self, *, begins_anew: bool = False) -> None:
        """Say what was opened. Where the crawl `begins_anew`, others may have filled the filter a moment ago."""
        self._publish(self._info)
        if self._filter.is_open:
            logger.info("Opened the Bloom filter at %r: it holds %s", self._filter.key, _in_words(self._info))
        else:
            logger.info(
                "Opened the Bloom filter at %r: it is new, and takes %s from the first request on, for a capacity of "
                "%s at an error rate of %.2g",
                self._filter.key,
                as_size(self._info.memory_bytes),
                f"{self._info.capacity:,}",
                self._info.error_rate,
            )
        if self._info.estimated_count and not begins_anew:
            logger.info(
                "What the filter at %r holds is not fetched again: this crawl goes on with it. To begin anew instead, "
                "stop all of its workers, and start the first one with SCHEDULER_FLUSH_ON_START = True",
                self._filter.key,
            )

    def count_filtered(self) -> None:
        """Count a request that is dropped."""
        self._dropped += 1
        self._unpublished += 1
        self.update()

    def note_fetch(self, request: Request) -> None:
        """Note that this process fetches a request; stats may be counted by nobody.

        Requests with `dont_filter` bypass the filter, and so do those without a callback: robots.txt, and the files of
        Scrapy's pipelines.
        """
        if request.dont_filter or request.callback is NO_CALLBACK:
            self._has_fetched_unfiltered = True
        else:
            self._has_fetched = True

    def note_workers(self, *, is_alone: bool) -> None:
        """Note whether this worker just had its queue to itself; without a word of it, nobody knows."""
        self._is_alone = is_alone and self._is_alone is not False

    def update(self) -> None:
        """Show what the process does, a few times a second: a stats collector takes longer than a repeat does."""
        now = self._monotonic()
        if now >= self._next:
            self._next = now + _SHOWN_EVERY_SECONDS
            self._show()

    def _show(self) -> None:
        self._publish(self._filter.counters)
        if self._collector is not None and self._unpublished:
            call_safely(self._publish_dropped, self._collector)

    def _publish_dropped(self, collector: StatsCollector) -> None:
        collector.inc_value(stats.FILTERED, self._unpublished)
        self._unpublished = 0

    def refresh(self) -> None:
        """Show how full the filter is, unless it is cleared or its server is away: then what is known stays."""
        if self._is_concluded or not self._filter.is_open:
            return
        try:
            self._info = self._filter.info()
            self._is_current = True
        except (BloomError, redis.RedisError) as error:
            self._is_current = False
            # The time that was waited at the end of a crawl is nobody's setting.
            cause = error.cause if isinstance(error, UnavailableError) else describe(error)
            logger.warning("How full the filter at %r is cannot be told: %s", self._filter.key, cause)
        self._publish(self._info)

    def conclude(self) -> None:
        """Show how full the filter is for the last time: it may be gone when the spider is closed."""
        self.refresh()
        self._is_concluded = True

    def finish(self, reason: str = "") -> None:
        """Say what the filter did in this crawl, which has ended for a reason."""
        self.refresh()
        self._show()
        counters = self._filter.counters
        missed = as_expected_pages(counters.expected_false_positives)
        # A program that asks the dupefilter itself need not say what it drops.
        repeats = max(self._dropped, counters.cache_hits)
        if reason == "finished" and repeats and not counters.added and not self._has_fetched:
            self._warn_of_nothing_new(repeats)
        logger.info(
            "The Bloom filter at %r took %s new requests of this process and dropped %s repeats, %s of them "
            "without asking Redis; that took %s round trips, and %s may have been missed. %s",
            self._filter.key,
            f"{counters.added:,}",
            f"{repeats:,}",
            f"{counters.cache_hits:,}",
            f"{counters.round_trips:,}",
            missed,
            f"It holds {_in_words(self._info)}" if self._is_current else "How full it is cannot be told",
        )
        if self._info.estimated_error_rate > self._info.error_rate:
            logger.warning(
                "The filter at %r is too full: its error rate is %.2g now, and %.2g is allowed; this process has "
                "probably missed %s. Begin a new one with a larger BLOOMFILTER_CAPACITY than %s, or one that may grow "
                "(BLOOMFILTER_EXPANSION)",
                self._filter.key,
                self._info.estimated_error_rate,
                self._info.error_rate,
                missed,
                self._info.capacity,
            )

    def _warn_of_nothing_new(self, repeats: int) -> None:
        """Warn that the filter knew all requests of this process, unless others are at work, or the filter is deleted.

        A worker that joins a crawl of others has nothing to do either, and its user must not flush anything. The others
        may have ended before it looks again, so that it counts who was there when it joined. Only BloomScheduler knows
        its other workers. Under another scheduler it is no warning, and names both reasons.
        """
        is_unchanged = self._filter.is_open and self._is_current and self._info.estimated_count == self._found
        if self._is_alone is False or not is_unchanged:
            return
        ttl = self._filter.parameters.ttl
        logger.log(
            logging.INFO if self._is_alone is None else logging.WARNING,
            "All %s %s that went through the filter at %r were known to it when this process began: %s. %s start the "
            "first worker with SCHEDULER_FLUSH_ON_START = True, or empty the filter by `scrapy bloom clear`.%s%s",
            f"{repeats:,}",
            "requests" if self._has_fetched_unfiltered else "start requests",
            self._filter.key,
            "nothing new was fetched, only requests with dont_filter=True"
            if self._has_fetched_unfiltered
            else "nothing was fetched",
            "To crawl anew," if self._is_alone else "Either other workers crawl, and do it all; or, to crawl anew,",
            "" if self._has_fetched_unfiltered else " To fetch them at each start, set dont_filter=True.",
            _TTL_ADVICE % ttl if ttl else "",
        )

    def _publish(self, shown: Any) -> None:
        if self._collector is not None:
            call_safely(stats.publish, self._collector, shown)


def warn_of_deleted_requests(waiting: int, queue: str) -> None:
    """Warn that requests still wait in a queue that is deleted, with the filter: the crawl was stopped."""
    logger.warning(
        "%s requests that still waited in the queue %r are deleted, and the filter with them: set SCHEDULER_PERSIST = "
        "True to keep both for a crawl that goes on",
        f"{waiting:,}",
        queue,
    )


def warn_of_kept_requests(waiting: int, queue: str) -> None:
    """Warn that requests still wait in a queue that stays with its filter, which another crawl uses."""
    logger.warning(
        "%s requests still wait in the queue %r, and stay there: another crawl uses their filter, which takes them for "
        "seen. Start this spider again to fetch them",
        f"{waiting:,}",
        queue,
    )


def warn_of_dead_letters(number: int, key: str) -> None:
    """Warn that requests stay that no worker could read, or that too many workers died with."""
    logger.warning(
        "%s requests are kept at the key %r: no worker could read them, or BLOOMFILTER_MAX_DELIVERIES workers died "
        "with them. The next worker to start has the unreadable ones queued again, and `scrapy bloom requeue` all. "
        "Delete the key if they are never to be fetched",
        f"{number:,}",
        key,
    )


def _in_words(info: FilterInfo) -> str:
    return (
        f"about {info.estimated_count:,} requests for a capacity of {info.capacity:,} "
        f"({info.estimated_count / info.capacity:.0%}), error rate {info.estimated_error_rate:.2g} of "
        f"{info.error_rate:.2g} allowed, {as_size(info.memory_bytes)} in {info.layers} layer(s)"
    )
