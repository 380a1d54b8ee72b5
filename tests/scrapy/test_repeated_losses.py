"""Repeated losses of a crawl's data, and a loss after its end: the log lines."""

from collections.abc import Callable, Iterator

import pytest
import redis
from scrapy import Request, signals

from scrapy_bloom import BloomScheduler
from tests.support import crawling
from tests.support.dupefilters import warnings_in
from tests.support.in_process import start
from tests.support.scenario import keys_of
from tests.support.servers import Server

Opened = Callable[[], BloomScheduler]
LOSSES = 20


@pytest.fixture
def opened(valkey: Server, key: str) -> Opened:
    """Opens schedulers of one crawl."""
    settings = {
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "REDIS_URL": valkey.url,
        "SCHEDULER_DUPEFILTER_KEY": key,
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
        "BLOOMFILTER_CAPACITY": 1000,
        "BLOOMFILTER_ERROR_RATE": 1e-12,
    }

    def open_one() -> BloomScheduler:
        crawler = start(settings)
        scheduler: BloomScheduler = BloomScheduler.from_crawler(crawler)
        assert crawler.spider is not None
        scheduler.open(crawler.spider)
        return scheduler

    return open_one


@pytest.fixture
def client(valkey: Server) -> Iterator[redis.Redis]:
    """A client that deletes the crawl's data."""
    with valkey.client() as client:
        yield client


def crawl(scheduler: BloomScheduler, number: int) -> None:
    """Crawl one page."""
    assert scheduler.enqueue_request(Request(f"https://example.com/{number}"))
    while scheduler.next_request() is not None:
        pass
    scheduler.deliver()


def end(scheduler: BloomScheduler) -> None:
    """Send `spider_closed`, as the engine does after closing the scheduler."""
    spider = scheduler.spider
    spider.crawler.signals.send_catch_log(signals.spider_closed, spider=spider, reason="finished")


def test_eviction_that_goes_on(opened: Opened, client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each kind of loss is logged once at once, and once at the end with the number of the others."""
    scheduler = opened()
    for number in range(LOSSES):
        crawl(scheduler, number)
        client.unlink(*keys_of(client, key))
    crawl(scheduler, LOSSES)
    replaced, expired = ("was replaced", "No worker was registered")
    assert [sum(text in line for line in warnings_in(caplog)) for text in (replaced, expired)] == [1, 1]
    scheduler.close("finished")
    end(scheduler)
    told = [line for line in warnings_in(caplog) if replaced in line or expired in line]
    assert sorted("x since the last such line" in line for line in told) == [False, False, True, True]


def test_worker_that_has_ended(opened: Opened, client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that leaves before the last one, which deletes the filter, logs no loss."""
    first, last = opened(), opened()
    for number in range(5):
        crawl(first, number)
        crawl(last, 10 + number)
    first.close("finished")
    last.close("finished")
    caplog.set_level("INFO")
    for scheduler in (first, last):
        end(scheduler)
    assert warnings_in(caplog) == []
    holdings = [line for line in caplog.messages if "It holds about" in line]
    assert ["It holds about 10 requests" in line for line in holdings] == [True, True]
    assert keys_of(client, key) == set()
