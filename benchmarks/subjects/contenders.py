"""The dupefilters and schedulers to compare, built as a crawl builds them."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler
from scrapy_redis.dupefilter import RFPDupeFilter as SetDupeFilter
from scrapy_redis.scheduler import Scheduler

from devtools.servers import Server, memory_usage
from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler

SCRAPY = "Scrapy, in memory"
SET = "scrapy-redis, SET"
FORK = "scrapy-redis-bloomfilter"
BF_ADD = "RedisBloom, BF.ADD"
OURS = "scrapy-bloom"
STOCK_SCHEDULER = "scrapy-redis with its Scheduler"
OUR_SCHEDULER = "scrapy-bloom with BloomScheduler"

DUPEFILTERS = (SCRAPY, SET, FORK, BF_ADD, OURS)
SCHEDULERS = (STOCK_SCHEDULER, OUR_SCHEDULER)

CAPACITY = 1_000_000
ERROR_RATE = 1e-6


class BfAddDupeFilter(SetDupeFilter):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's dupefilter with RedisBloom in place of its SET."""

    def __init__(self, server: Any, key: str, debug: bool = False) -> None:
        super().__init__(server, key, debug)
        server.execute_command("BF.RESERVE", key, ERROR_RATE, CAPACITY)

    def request_seen(self, request: Request) -> bool:
        """Return whether the filter has the fingerprint."""
        return not self.server.execute_command("BF.ADD", self.key, self.request_fingerprint(request))


@dataclass(frozen=True)
class Contender:
    """An open contender.

    `page` takes the requests of a page and returns whether each is dropped; `end` deletes all data.
    """

    page: Callable[[Sequence[Request]], list[bool]]
    memory_bytes: Callable[[], int]
    end: Callable[[], object]


def build(name: str, server: Server, client: redis.Redis, key: str) -> Contender:
    """Build an empty contender at this key; `client` measures its memory."""
    filters = {SET: SetDupeFilter, BF_ADD: BfAddDupeFilter, OURS: BloomRFPDupeFilter}
    settings = {
        "REDIS_URL": server.url,
        "SCHEDULER_DUPEFILTER_KEY": key,
        "SCHEDULER_QUEUE_KEY": f"queue of {key}",
        "DUPEFILTER_CLASS": BloomRFPDupeFilter if name == OUR_SCHEDULER else SetDupeFilter,
        "BLOOMFILTER_CAPACITY": CAPACITY,
        "BLOOMFILTER_ERROR_RATE": ERROR_RATE,
    }
    crawler = get_crawler(BenchSpider, settings)
    crawler.spider = BenchSpider.from_crawler(crawler)
    if name in SCHEDULERS:
        return _scheduler(BloomScheduler if name == OUR_SCHEDULER else Scheduler, crawler, client, key)
    if name == SCRAPY:
        in_memory = RFPDupeFilter.from_crawler(crawler)
        return _dupefilter(in_memory, lambda: _size(in_memory._fingerprints), lambda: None)
    # The tests run without the fork, which prints its parameters.
    kind = load_object("scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter") if name == FORK else filters[name]
    with contextlib.redirect_stdout(sys.stderr):
        dupefilter = kind.from_spider(crawler.spider)
    return _dupefilter(dupefilter, lambda: memory_usage(client, key), dupefilter.clear)


class BenchSpider(Spider):
    """The spider of the requests."""

    name = "bench"


def _dupefilter(dupefilter: Any, memory_bytes: Callable[[], int], end: Callable[[], object]) -> Contender:
    seen = dupefilter.request_seen
    return Contender(lambda requests: [seen(request) for request in requests], memory_bytes, end)


def _scheduler(kind: Any, crawler: Crawler, client: redis.Redis, key: str) -> Contender:
    scheduler = kind.from_crawler(crawler)
    scheduler.open(crawler.spider)
    enqueue = scheduler.enqueue_request

    def page(requests: Sequence[Request]) -> list[bool]:
        dropped = [not enqueue(request) for request in requests]
        # BloomScheduler delivers its buffered requests before it takes the next.
        scheduler.next_request()
        return dropped

    return Contender(page, lambda: memory_usage(client, key), lambda: scheduler.close("finished"))


def _size(fingerprints: set[bytes]) -> int:
    return sys.getsizeof(fingerprints) + sum(map(sys.getsizeof, fingerprints))
