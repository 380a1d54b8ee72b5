"""The news of a crawl's requests, for its stats, its log and its signals. No request is lost if one of them fails."""

import logging
from collections.abc import Callable
from typing import Protocol

from scrapy import Request, Spider, signals
from scrapy.statscollectors import StatsCollector

from scrapy_bloom.monitoring.stats import failures_logged
from scrapy_bloom.queue.entries import OutboxEntry, Receipt

logger = logging.getLogger(__name__)

# scrapy-redis's own stats.
ENQUEUED, DEQUEUED = "scheduler/enqueued/redis", "scheduler/dequeued/redis"


class LogsRepeats(Protocol):
    """A dupefilter, which has a way of its own to log a repeat."""

    def log(self, request: Request, spider: Spider) -> None:
        """Log that a request was filtered."""


class RequestNotifier:
    """Tells a crawl what becomes of its requests."""

    def __init__(self, spider: Spider, stats: StatsCollector | None, dupefilter: LogsRepeats) -> None:
        self._spider = spider
        self._stats = stats
        self._dupefilter = dupefilter

    def count(self, stat: str, number: int = 1) -> None:
        """Add to a stat."""
        stats = self._stats
        if stats is not None:
            self.call_safely(lambda: stats.inc_value(stat, number))

    def show(self, stat: str, value: object) -> None:
        """Set a stat."""
        stats = self._stats
        if stats is not None:
            self.call_safely(lambda: stats.set_value(stat, value))

    def log_repeat(self, request: Request) -> None:
        """Log a repeat as the dupefilter does."""
        # `tell` would take as long as a repeat does.
        try:
            self._dupefilter.log(request, self._spider)
        except Exception:  # a collector of the user's may keep its stats anywhere
            logger.debug("A stats collector failed", exc_info=True)

    def notify_dropped(self, repeat: OutboxEntry) -> None:
        """Tell of a repeat as the engine would have, had it been known at once; handlers may enqueue other requests."""
        request = repeat.request
        if request is None:
            return
        self.log_repeat(request)
        self._spider.crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=self._spider)

    def confirm(self, receipts: list[Receipt]) -> None:
        """Tell those who asked for it that what they offered is safe."""
        for receipt in receipts:
            self.call_safely(receipt.call)

    def call_safely(self, call: Callable[[], object]) -> None:
        """Call something; what it raises is logged."""
        with failures_logged():
            call()
