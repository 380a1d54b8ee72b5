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


def filters(client: redis.Redis, cluster: RedisCluster) -> BloomFilter:
    seen = BloomFilter(client, "shop:seen", capacity=1_000_000, error_rate=1e-6, expansion=2, ttl=3600.0, flush=True)
    assert_type(seen.add("https://example.com/"), bool)
    assert_type(seen.add_many(["a", b"b"]), list[bool])
    assert_type(seen.contains_many(("a", b"b")), list[bool])
    assert_type("a" in seen, bool)
    seen.retry_timeout = 5
    assert_type(seen.info(), FilterInfo)
    assert_type(seen.info().by_layer, tuple[LayerInfo, ...])
    assert_type(BloomFilter.with_parameters(client, "shop:copy", seen.parameters), BloomFilter)
    return BloomFilter(cluster, b"shop:other", fingerprint="sku", cache_size=0, retry_timeout=0)


def crawl(client: redis.Redis, crawler: Crawler, settings: BaseSettings) -> None:
    assert_type(Addon.from_crawler(crawler).update_settings(settings), None)
    assert_type(BloomRFPDupeFilter(client, "shop:dupefilter").request_seen(Request("https://example.com/")), bool)
    assert_type(BloomRFPDupeFilter.from_crawler(crawler).filter, BloomFilter)
    scheduler = BloomScheduler.from_settings(settings)
    assert_type(scheduler.enqueue_request(Request("https://example.com/")), bool)
    assert_type(scheduler.next_request(), Request | None)


class OwnDupeFilter(BloomRFPDupeFilter):
    def request_fingerprint(self, request: Request) -> str:
        return request.url


class FedSpider(RedisSpider):
    redis_key = "fed:start_urls"


class FedCrawlSpider(RedisCrawlSpider):
    redis_batch_size = 8


class OwnPipeline(RedisPipeline):
    def item_key(self, item: object, spider: Spider) -> str:
        return super().item_key(item, spider) + ":own"


def errors(error: UnavailableError) -> tuple[str, tuple[type[BloomError], ...], ValueError]:
    every = ConfigError, MismatchError, RefusedError, UnavailableError, WrongTypeError
    return error.cause, every, ConfigError("capacity = 0: must be at least 1")


def refused(client: redis.Redis) -> None:
    BloomFilter(client, "key", 1000)  # type: ignore[call-arg]
    BloomFilter("redis://localhost", "key")  # type: ignore[arg-type]
    _ = scrapy_bloom.BloomFilters  # type: ignore[attr-defined]
