"""Counts the round trips of a demo's worker to Redis: the filter's and the queue's."""

from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler

from devtools.round_trips import counting

ROUND_TRIPS_STAT = "demo/round_trips"


class RoundTrips:
    """The extension that counts, from before the queue is opened to after it is closed."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._counting = counting()
        self._sent = self._counting.__enter__()  # until the process ends

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Count the round trips of a crawler's process."""
        self = cls(crawler)
        # Before the ledger, which records the stats then.
        crawler.signals.connect(self._engine_stopped, signals.engine_stopped)
        return self

    def _engine_stopped(self) -> None:
        if self._crawler.stats is not None:
            self._crawler.stats.set_value(ROUND_TRIPS_STAT, self._sent.trips)
