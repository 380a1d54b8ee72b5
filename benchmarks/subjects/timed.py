"""The schedulers of measured crawls, with timers, and the extension that adds the costs to the stats."""

import time
from typing import Any

import scrapy.core.scheduler
import scrapy_redis.scheduler
from scrapy import Request
from scrapy.crawler import Crawler

from devtools.round_trips import RoundTrips
from scrapy_bloom import BloomScheduler

CPU, SCHEDULER = "costs/cpu_seconds", "costs/scheduler_seconds"


class Costs(RoundTrips):
    """Add the CPU time of the process, and the time in the scheduler."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._stats: Any = crawler.stats
        self._used = time.process_time()

    def _engine_stopped(self) -> None:
        super()._engine_stopped()
        self._stats.set_value(CPU, time.process_time() - self._used)
        self._stats.set_value(SCHEDULER, Timed.seconds)


class Timed:
    """Mixin: measure the time of the duplicate check and of the queue."""

    seconds = 0.0

    def enqueue_request(self, request: Request) -> bool:
        """Time the call."""
        started = time.perf_counter()
        result: bool = super().enqueue_request(request)  # type: ignore[misc]  # of the class it is mixed into
        Timed.seconds += time.perf_counter() - started
        return result

    def next_request(self) -> Request | None:
        """Time the call."""
        started = time.perf_counter()
        result: Request | None = super().next_request()  # type: ignore[misc]
        Timed.seconds += time.perf_counter() - started
        return result


class InMemory(Timed, scrapy.core.scheduler.Scheduler):
    """Scrapy's own scheduler."""


class ScrapyRedis(Timed, scrapy_redis.scheduler.Scheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's scheduler."""


class ScrapyBloom(Timed, BloomScheduler):
    """scrapy-bloom's scheduler."""
