"""The dupefilters that a crawl can choose from, each as a crawl would build it, and what each has used."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

import redis
from scrapy import Spider
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.test import get_crawler
from scrapy_redis.dupefilter import RFPDupeFilter as SetDupeFilter
from scrapy_redis_bloomfilter.dupefilter import RFPDupeFilter as ForkDupeFilter

from benchmarks.launch import Server, memory_usage
from scrapy_bloom import BloomRFPDupeFilter

SCRAPY = "Scrapy, in memory"
SET = "scrapy-redis, SET"
FORK = "scrapy-redis-bloomfilter"
OURS = "scrapy-bloom"


@dataclass(frozen=True)
class Contender:
    """A dupefilter at work, and what it has used so far."""

    dupefilter: BaseDupeFilter
    round_trips: Callable[[], int]
    memory_bytes: Callable[[], int]


def build(name: str, server: Server, client: redis.Redis, key: str) -> Contender:
    """A dupefilter that has seen nothing, over a server and a key of its own; `client` is to look at both."""
    crawler = get_crawler(Spider, {"REDIS_URL": server.url, "SCHEDULER_DUPEFILTER_KEY": key})
    crawler.spider = spider = Spider.from_crawler(crawler, name="bench")

    def stored() -> int:
        return memory_usage(client, key)

    if name == SCRAPY:
        in_memory = RFPDupeFilter.from_crawler(crawler)
        return Contender(in_memory, lambda: 0, lambda: _size(in_memory._fingerprints))
    if name == SET:
        return Contender(SetDupeFilter.from_spider(spider), _calls(client, "sadd"), stored)
    if name == FORK:
        with contextlib.redirect_stdout(sys.stderr):  # it prints its parameters
            fork = ForkDupeFilter.from_spider(spider)
        return Contender(fork, _calls(client, "getbit", "setbit"), stored)
    ours = BloomRFPDupeFilter.from_spider(spider)
    return Contender(ours, lambda: ours.filter.counters.round_trips, stored)


def _size(fingerprints: set[bytes]) -> int:
    return sys.getsizeof(fingerprints) + sum(map(sys.getsizeof, fingerprints))


def _calls(client: redis.Redis, *commands: str) -> Callable[[], int]:
    """Counts from now on how often the server carries out commands."""

    def total() -> int:
        found = client.info("commandstats")
        return sum(int(found.get(f"cmdstat_{command}", {"calls": 0})["calls"]) for command in commands)

    before = total()
    return lambda: total() - before
