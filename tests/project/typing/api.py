"""The public API as a user writes it, never run: mypy and pyright check each promised type.

An `ignore` marks an expected error; both checkers report unneeded ones.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from typing import assert_type

import redis
from redis.cluster import RedisCluster
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

import scrapy_bloom
from scrapy_bloom import (
    Addon,
    BloomError,
    BloomFilter,
    BloomRFPDupeFilter,
    BloomScheduler,
    ConfigError,
    FilterInfo,
    LayerInfo,
    MismatchError,
    RedisCrawlSpider,
    RedisPipeline,
    RedisSpider,
    RefusedError,
    UnavailableError,
    WrongTypeError,
)


def filter_in_redis(client: redis.Redis, cluster: RedisCluster) -> BloomFilter:
    seen = BloomFilter(client, "shop:seen", capacity=1_000_000, error_rate=1e-6, expansion=2, ttl=3600.0, flush=True)
    assert_type(seen.add("https://example.com/"), bool)
    assert_type(seen.add(b"\x00\x01"), bool)
    assert_type(seen.add_many(["a", b"b"]), list[bool])
    assert_type(seen.contains_many(("a", b"b")), list[bool])
    assert_type("a" in seen, bool)
    assert_type(seen.key, str)
    assert_type(seen.retry_timeout, float)
    seen.retry_timeout = 5
    assert_type(seen.info(), FilterInfo)
    assert_type(seen.info().by_layer, tuple[LayerInfo, ...])
    assert_type(seen.info().current_error_rate, float)
    assert_type(seen.info().count, int)
    assert_type(seen.info().by_layer[0].created, float)
    assert_type(seen.counters.round_trips, int)
    assert_type(BloomFilter.with_parameters(client, "shop:copy", seen.parameters), BloomFilter)
    assert_type(seen.clear(), None)
    return BloomFilter(cluster, b"shop:other", fingerprint="sku", cache_size=0, retry_timeout=0)


def filter_of_a_crawl(settings: BaseSettings, spider: Spider, client: redis.Redis) -> None:
    dupefilter = BloomRFPDupeFilter(client, "shop:dupefilter", debug=True)
    assert_type(BloomRFPDupeFilter.from_settings(settings), BloomRFPDupeFilter)
    assert_type(BloomRFPDupeFilter.from_crawler(spider.crawler), BloomRFPDupeFilter)
    assert_type(dupefilter.request_seen(Request("https://example.com/")), bool)
    assert_type(dupefilter.request_fingerprint(Request("https://example.com/")), str)
    assert_type(dupefilter.filter, BloomFilter)


def scheduler_of_a_crawl(settings: BaseSettings, spider: Spider) -> Request | None:
    scheduler = BloomScheduler.from_settings(settings)
    assert_type(scheduler, BloomScheduler)
    scheduler.open(spider)
    assert_type(scheduler.enqueue_request(Request("https://example.com/")), bool)
    return scheduler.next_request()


def addon_of_a_crawl(crawler: Crawler, settings: BaseSettings) -> None:
    addon = Addon.from_crawler(crawler)
    assert_type(addon, Addon)
    assert_type(addon.update_settings(settings), None)


class OwnDupeFilter(BloomRFPDupeFilter):
    """Both classes can be subclassed."""

    def request_fingerprint(self, request: Request) -> str:
        return request.url


class OwnScheduler(BloomScheduler):
    def has_pending_requests(self) -> bool:
        return super().has_pending_requests()


class FedSpider(RedisSpider):
    name = "fed"
    redis_key = "fed:start_urls"


class FedCrawlSpider(RedisCrawlSpider):
    redis_batch_size = 8


class OwnPipeline(RedisPipeline):
    def item_key(self, item: object, spider: Spider) -> str:
        return super().item_key(item, spider) + ":own"


def start_urls_of_a_crawl(scheduler: BloomScheduler, spider: FedSpider) -> None:
    scheduler.when_queued(lambda: None)
    assert_type(scheduler.worker_name, str)
    assert_type(scheduler.ask_redis(lambda: 1), int)
    assert_type(spider.spider_idle(), None)


def every_error() -> tuple[type[BloomError], ...]:
    return ConfigError, MismatchError, RefusedError, UnavailableError, WrongTypeError


def wrong_value() -> ValueError:
    return ConfigError("capacity = 0: must be at least 1")


def cause_of(error: UnavailableError) -> str:
    return error.cause


def refused(client: redis.Redis) -> None:
    BloomFilter(client, "key", 1000)  # type: ignore[call-arg]
    BloomFilter(client, 7)  # type: ignore[arg-type]
    BloomFilter("redis://localhost", "key")  # type: ignore[arg-type]
    BloomFilter(client, "key", ttl="1h")  # type: ignore[arg-type]
    BloomFilter(client, "key").add(7)  # type: ignore[arg-type]
    BloomFilter(client, "key").info().layers = 2  # type: ignore[misc]
    _ = scrapy_bloom.BloomFilters  # type: ignore[attr-defined]
