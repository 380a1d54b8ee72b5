"""Write the costs of a measured crawl to a file at its end."""

import json
import time
from pathlib import Path
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler

import scrapy_bloom
from benchmarks.subjects.crawl_schedulers import SENT, Timed

PATH_SETTING = "CRAWL_RESULT"


class CrawlResult:
    """The extension that writes the result once all stats are set."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._used = time.process_time()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Write the crawler's result to the file named by a setting."""
        self = cls(crawler)
        crawler.signals.connect(self._engine_stopped, signals.engine_stopped)
        return self

    def _engine_stopped(self) -> None:
        stats = self._crawler.stats.get_stats() if self._crawler.stats else {}
        result = {
            "package": scrapy_bloom.__file__,
            "began": stats["start_time"].timestamp(),
            "ended": stats["finish_time"].timestamp(),
            "pages": stats.get("response_received_count", 0),
            "scheduler_seconds": Timed.seconds,
            "cpu_seconds": time.process_time() - self._used,
            "round_trips": SENT.trips,
        }
        Path(self._crawler.settings[PATH_SETTING]).write_text(json.dumps(result))
