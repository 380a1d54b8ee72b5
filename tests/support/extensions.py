"""Parts of a crawl that users might have: extensions, and a stats collector that fails."""

import logging
import time
from typing import Any, Self

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.statscollectors import MemoryStatsCollector
from scrapy_redis.connection import get_redis
from scrapy_redis.stats import RedisStatsCollector
from twisted.internet.task import LoopingCall

from scrapy_bloom.queue.worker import Worker

LONGEST_STALL = "ticker/longest"
ALL_TURNS = "ticker/all"
_TICK_SECONDS = 0.01


def enabling(part: type) -> dict[str, object]:
    """Return the setting that adds an extension."""
    return {"EXTENSIONS": f'{{"{part.__module__}.{part.__qualname__}": 1}}'}


class Ticker:
    """Measures the maximum CPU time of a reactor turn, from the opening of the spider.

    Elapsed time would depend on the load of the machine.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._call = LoopingCall(self._tick)
        self._last = 0.0
        self._longest = 0.0
        self._all = 0.0
        crawler.signals.connect(self._start, signals.spider_opened)
        crawler.signals.connect(self._stop, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def _start(self) -> None:
        self._last = time.thread_time()
        self._call.start(_TICK_SECONDS)

    def _tick(self) -> None:
        now = time.thread_time()
        self._longest = max(self._longest, now - self._last)
        self._all += now - self._last
        self._last = now

    def _stop(self) -> None:
        self._call.stop()
        assert self._crawler.stats is not None
        self._crawler.stats.set_value(LONGEST_STALL, self._longest)
        self._crawler.stats.set_value(ALL_TURNS, self._all)


class FaultyLog:
    """Adds a log handler that fails at each warning and error of this project, as if its service were away."""

    @classmethod
    def from_crawler(cls, _: Crawler) -> Self:
        logging.getLogger().addHandler(_AlertHandler(logging.WARNING))
        return cls()


class _AlertHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("scrapy_bloom"):
            raise OSError


class FaultyStats(MemoryStatsCollector):
    """A stats collector that always fails at the stats of a scheduler or a filter."""

    def inc_value(self, key: str, *args: Any, **kwargs: Any) -> None:
        self._check(key)
        super().inc_value(key, *args, **kwargs)

    def set_value(self, key: str, *args: Any, **kwargs: Any) -> None:
        self._check(key)
        super().set_value(key, *args, **kwargs)

    def _check(self, key: str) -> None:
        if key.startswith(("scheduler/", "bloomfilter/")):
            raise RuntimeError("no stats today")


class StatsInRedis(RedisStatsCollector):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's stats collector, at STATS_URL, with the signatures of each version of Scrapy."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.server: Any = get_redis(url=crawler.settings["STATS_URL"], socket_timeout=30, socket_connect_timeout=30)

    def open_spider(self, spider: object = None) -> None:
        """Do nothing: the name is known from the class."""

    def close_spider(self, spider: object = None, reason: str = "") -> None:  # noqa: ARG002  # Scrapy's arguments
        """Delete the stats."""
        self.clear_stats()


class SlotlessDownloader:
    """A downloader of another kind."""

    def __init__(self, _: Crawler) -> None:
        self.active: set[Any] = set()

    def fetch(self, request: Request) -> None:
        """Download nothing."""

    def needs_backout(self) -> bool:
        return False

    def close(self) -> None:
        """Have nothing to close."""


class BrokenWorker:
    """Breaks a method of the worker of the queue, which the setting BROKEN names, from the first response on."""

    def __init__(self, crawler: Crawler) -> None:
        self._name = crawler.settings["BROKEN"]
        crawler.signals.connect(self._break, signals.response_received)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def _break(self) -> None:
        def fail(*_: object, **__: object) -> None:
            raise KeyError("broken")

        setattr(Worker, self._name, fail)
