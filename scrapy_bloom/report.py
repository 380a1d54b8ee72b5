"""What a crawl is told of its filter: a line at the start, stats while it runs, a line at the end."""

import logging
import time
from typing import Any

import redis
from scrapy.statscollectors import StatsCollector

from scrapy_bloom import stats
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter import Filter
from scrapy_bloom.info import FilterInfo

_SHOWN_EVERY_SECONDS = 0.1

logger = logging.getLogger(__name__)


class Report:
    """Tells a stats collector, if there is one, and the log about one filter."""

    def __init__(self, bloom: Filter, collector: StatsCollector | None) -> None:
        self._filter = bloom
        self._collector = collector
        self._dropped = 0
        self._next = 0.0
        self._info = bloom.info()

    def start(self) -> None:
        """Say what was opened."""
        self._publish(self._info)
        logger.info("Opened the Bloom filter at %r: %s", self._filter.key, _in_words(self._info))

    def drop(self) -> None:
        """Count a request that is dropped."""
        self._dropped += 1
        self.update()

    def update(self) -> None:
        """Show what the process does, a few times a second: a stats collector takes longer than a repeat does."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _SHOWN_EVERY_SECONDS
            self._show()

    def _show(self) -> None:
        self._publish(self._filter.counters)
        if self._collector is not None and self._dropped:
            self._collector.inc_value(stats.FILTERED, self._dropped)
            self._dropped = 0

    def look(self) -> None:
        """Show how full the filter is, unless it is cleared or its server is away: then what is known stays."""
        if not self._filter.is_open:
            return
        try:
            self._info = self._filter.info()
        except (BloomError, redis.RedisError) as error:
            logger.warning("How full the filter at %r is cannot be told: %s", self._filter.key, error)
        self._publish(self._info)

    def finish(self) -> None:
        """Say what the filter did in this crawl."""
        self.look()
        self._show()
        counters = self._filter.counters
        logger.info(
            "The Bloom filter at %r took %s new requests of this process and answered %s repeats from its memory, in "
            "%s round trips; %.2g pages may have been missed. It holds %s",
            self._filter.key,
            f"{counters.added:,}",
            f"{counters.cache_hits:,}",
            f"{counters.round_trips:,}",
            counters.expected_false_positives,
            _in_words(self._info),
        )

    def _publish(self, shown: Any) -> None:
        if self._collector is not None:
            stats.publish(self._collector, shown)


def _in_words(info: FilterInfo) -> str:
    return (
        f"about {info.estimated_count:,} requests for a capacity of {info.capacity:,} "
        f"({info.estimated_count / info.capacity:.0%}), error rate {info.estimated_error_rate:.2g} of "
        f"{info.error_rate:.2g} allowed, {info.memory_bytes / 1e6:.1f} MB in {info.layers} layer(s)"
    )
