"""Real crawlers in this process, in the state in which their schedulers are opened."""

import asyncio
from collections.abc import Coroutine
from functools import wraps
from typing import Any, TypeVar

import scrapy_redis.connection
from scrapy import Spider, signals
from scrapy.utils.reactor import install_reactor, is_reactor_installed
from scrapy.utils.test import get_crawler

import scrapy_bloom.transport.connect
from scrapy_bloom.transport.connect import disconnect
from tests.support import crawling
from tests.support.sockets import lasting

T = TypeVar("T")

_clients: list[Any] = []


def _note_clients(module: Any, name: str) -> None:
    """Note the clients that a function makes by settings."""
    make = getattr(module, name)

    @wraps(make)
    def make_noted(settings: Any) -> Any:
        _clients.append(make(settings))
        return _clients[-1]

    setattr(module, name, make_noted)


_note_clients(scrapy_bloom.transport.connect, "get_redis_from_settings")
_note_clients(scrapy_redis.connection, "from_settings")


def close_clients() -> None:
    """Close the clients of crawlers and commands in this process, as the end of theirs would."""
    while _clients:
        disconnect(_clients.pop())


class ShopSpider(Spider):
    name = "shop"


def crawl_settings(url: str, key: str) -> dict[str, Any]:
    """The settings of a crawl by BloomScheduler, whose queue and filter are in one slot of a cluster."""
    return {
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "REDIS_URL": url,
        "SCHEDULER_QUEUE_KEY": f"{{{key}}}:queue",
        # With the spider's name, so that the end of a crawl deletes the filter.
        "SCHEDULER_DUPEFILTER_KEY": f"{{{key}}}:%(spider)s",
        "BLOOMFILTER_CAPACITY": 1000,
        "BLOOMFILTER_ERROR_RATE": 1e-12,
    }


def start(settings: dict[str, Any], spider_name: str = "shop", spidercls: type[Spider] = ShopSpider) -> Any:
    """A crawler with these settings alone, a spider and stats."""
    if not is_reactor_installed():  # required by older versions of Scrapy
        with lasting():
            install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    crawler = get_crawler(spidercls, settings)
    crawler.spider = spidercls.from_crawler(crawler, name=spider_name)
    return crawler


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine beside the reactor's event loop: `asyncio.run` would drop that one unclosed."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)


def end(crawler: Any, reason: str = "finished") -> None:
    """Send the signal by which the engine ends a crawl."""
    crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason=reason)
