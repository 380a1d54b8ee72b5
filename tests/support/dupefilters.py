"""Dupefilters with real crawlers, built in every possible way, and their stored data."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy.settings import BaseSettings, Settings

from scrapy_bloom import BloomRFPDupeFilter
from tests.support.in_process import start
from tests.support.servers import Server

KEY = "SCHEDULER_DUPEFILTER_KEY"

Way = Callable[[Any], BloomRFPDupeFilter]

BY_CRAWLER: dict[str, Way] = {
    "from_spider": lambda crawler: BloomRFPDupeFilter.from_spider(crawler.spider),
    "from_crawler": BloomRFPDupeFilter.from_crawler,
}
WAYS: dict[str, Way] = {
    **BY_CRAWLER,
    "from_settings": lambda crawler: BloomRFPDupeFilter.from_settings(
        with_key(crawler.settings, getattr(crawler.spider, "key", None) or crawler.settings[KEY])
    ),
}
by_crawler = pytest.mark.parametrize("way", BY_CRAWLER.values(), ids=BY_CRAWLER)
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def with_key(settings: BaseSettings, key: str | None) -> BaseSettings:
    """Return settings that name the filter's key itself, and so a shared filter."""
    named = Settings()
    named.update(settings)
    named.set(KEY, key, "cmdline")
    return named


def crawler_of(server: Server, *, spider_name: str = "shop", **settings: Any) -> Any:
    """A real crawler with a spider, as it is when its scheduler is opened. Its key is an attribute of the spider."""
    key = settings.pop(KEY, None)
    given = {
        "REDIS_URL": server.url,
        "BLOOMFILTER_CAPACITY": 1000,
        **settings,
        **({KEY: key if "%" in key else "%(key)s"} if key else {}),
    }
    crawler = start(given, spider_name)
    crawler.spider.key = key
    return crawler


def build(server: Server, key: str, **settings: Any) -> BloomRFPDupeFilter:
    """Return the dupefilter that scrapy-redis's Scheduler would build."""
    return BloomRFPDupeFilter.from_spider(crawler_of(server, **{KEY: key}, **settings).spider)


def page(number: int) -> Request:
    """A page of the shop."""
    return Request(f"http://shop.test/{number}")


def seen(dupefilter: BloomRFPDupeFilter, *numbers: int) -> list[bool]:
    """Ask for pages of the shop."""
    return [dupefilter.request_seen(page(number)) for number in numbers]


def keys_of(client: redis.Redis, key: str) -> list[str]:
    """List the stored keys of a filter."""
    return sorted(each.decode() for each in client.scan_iter(match=f"*{key}*", count=10_000))


def parameters_of(client: redis.Redis, key: str) -> dict[str, Any]:
    """Return the stored parameters of a filter."""
    return dict(json.loads(client.hget(key, "parameters") or ""))


def lose(client: redis.Redis, key: str) -> None:
    """Delete a filter's keys, as FLUSHDB would."""
    client.unlink(*keys_of(client, key))


def said(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """Return this package's log lines of a level or above."""
    ours = [record for record in caplog.records if record.name.startswith("scrapy_bloom")]
    return [record.getMessage() for record in ours if record.levelno >= level]
