"""The schedulers of measured crawls, with timers."""

import time

import scrapy.core.scheduler
import scrapy_redis.scheduler
from scrapy import Request

from devtools.round_trips import counting
from scrapy_bloom import BloomScheduler

_counting = counting()
SENT = _counting.__enter__()  # until the process ends


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
