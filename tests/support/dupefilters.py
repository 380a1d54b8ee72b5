"""Dupefilters with real crawlers, built in every possible way, and their stored data."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.statscollectors import StatsCollector

from scrapy_bloom import BloomRFPDupeFilter
from tests.support.in_process import start
from tests.support.servers import Server

KEY = "SCHEDULER_DUPEFILTER_KEY"


class PathFingerprinter:
    """Takes pages that differ in their queries for one."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("?")[0].encode()


class BuiltFromCrawler(PathFingerprinter):
    @classmethod
    def from_crawler(cls, _: Crawler) -> "BuiltFromCrawler":
        return cls()


class HostDupeFilter(BloomRFPDupeFilter):
    """Takes all pages of a host for one."""

    def request_fingerprint(self, request: Request) -> str:
        return request.url.split("/")[2]


PATH_FINGERPRINTER = f"{__name__}.{PathFingerprinter.__qualname__}"
BUILT_FROM_CRAWLER = f"{__name__}.{BuiltFromCrawler.__qualname__}"


def crawler_of(server: Server, *, spider_name: str = "shop", **settings: Any) -> Crawler:
    """A real crawler with a spider, as it is when its scheduler is opened."""
    return start({"REDIS_URL": server.url, "BLOOMFILTER_CAPACITY": 1000, **settings}, spider_name)


Way = Callable[[Crawler], BloomRFPDupeFilter]

BY_CRAWLER: dict[str, Way] = {
    "from_spider": lambda crawler: BloomRFPDupeFilter.from_spider(spider_of(crawler)),
    "from_crawler": BloomRFPDupeFilter.from_crawler,
}
WAYS: dict[str, Way] = {
    **BY_CRAWLER,
    "from_settings": lambda crawler: BloomRFPDupeFilter.from_settings(crawler.settings),
}
by_crawler = pytest.mark.parametrize("way", BY_CRAWLER.values(), ids=BY_CRAWLER)
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def build(server: Server, key: str, **settings: Any) -> BloomRFPDupeFilter:
    """Return the dupefilter that scrapy-redis's Scheduler would build."""
    return BloomRFPDupeFilter.from_spider(spider_of(crawler_of(server, **{KEY: key}, **settings)))


def spider_of(crawler: Crawler) -> Spider:
    assert crawler.spider is not None
    return crawler.spider


def stats_of(crawler: Crawler) -> StatsCollector:
    assert crawler.stats is not None
    return crawler.stats


def page(number: int) -> Request:
    return Request(f"http://shop.test/{number}")


def keys_of(client: redis.Redis, key: str) -> list[str]:
    """List the stored keys of a filter."""
    return sorted(each.decode() for each in client.scan_iter(match=f"*{key}*", count=10_000))


def parameters_of(client: redis.Redis, key: str) -> dict[str, Any]:
    """Return the stored parameters of a filter."""
    stored = client.hget(key, "parameters")
    assert isinstance(stored, bytes)
    return dict(json.loads(stored))


def id_of(client: redis.Redis, key: str) -> str:
    """Return the id of a filter, which the keys of its shards contain."""
    stored = client.hget(key, "id")
    assert isinstance(stored, bytes)
    return stored.decode()


def lose(client: redis.Redis, key: str) -> None:
    """Delete a filter's keys, as FLUSHDB would."""
    client.unlink(*keys_of(client, key))


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Return this package's log lines of a level or above."""
    ours = [record for record in caplog.records if record.name.startswith("scrapy_bloom")]
    return [record.getMessage() for record in ours if record.levelno >= level]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return said(caplog, logging.WARNING)
