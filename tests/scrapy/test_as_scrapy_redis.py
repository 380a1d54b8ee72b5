"""Habits of scrapy-redis's users, with this package's classes: hooks and keys of instances, words, and lengths."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy_redis import spiders
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler, ConfigError, RedisCrawlSpider, RedisSpider
from tests.support.dupefilters import KEY, crawler_of, page, seen
from tests.support.servers import Server

Opened = Callable[..., Any]
every_scheduler = pytest.mark.parametrize("scheduler_class", [Scheduler, BloomScheduler])


def by_host(request: Request) -> str:
    """A fingerprint by which all pages of a site are one."""
    return request.url.split("/")[2].encode().hex()


class ByHost(BloomRFPDupeFilter):
    """Sets its fingerprint on the instance, before its parent does anything."""

    def __init__(self, server: Any, key: str, debug: bool = False) -> None:
        self.request_fingerprint = by_host  # type: ignore[method-assign]  # the point of the test
        super().__init__(server, key, debug)


# The fingerprint of an instance.


@pytest.mark.parametrize("kind", [RFPDupeFilter, BloomRFPDupeFilter, ByHost])
def test_fingerprint_of_an_instance(kind: type[RFPDupeFilter], client: redis.Redis, key: str) -> None:
    """A `request_fingerprint` that is set on an instance is used from then on, before and after the first request."""
    dupefilter = kind(client, key)
    if kind is not ByHost:
        assert seen(dupefilter, 1, 2) == [False, False]
        dupefilter.request_fingerprint = by_host
    assert seen(dupefilter, 3, 4, 5) == [False, True, True]


@every_scheduler
def test_fingerprint_of_the_instance_of_a_scheduler(scheduler_class: type[Scheduler], opened: Opened) -> None:
    """So is that of a scheduler's dupefilter, set by its class, or in a running crawl."""
    by_class = opened(scheduler_class, DUPEFILTER_CLASS=f"{__name__}.ByHost")
    assert by_class.df.fingerprint_scheme() == f"{__name__}.ByHost.request_fingerprint"
    assert [by_class.enqueue_request(page(number)) for number in (1, 2)] == [True, False]
    by_class.close("shutdown")
    later = opened(scheduler_class)
    assert later.enqueue_request(page(1))
    later.df.request_fingerprint = by_host
    assert [later.enqueue_request(page(number)) for number in (2, 3)] == [True, False]


# The key of an instance.


class Second(BloomRFPDupeFilter):
    """Chooses another key than it is given."""

    def __init__(self, server: Any, key: str, debug: bool = False) -> None:
        super().__init__(server, f"{key}:second", debug)


class Third(BloomRFPDupeFilter):
    """Chooses it behind its parent."""

    def __init__(self, server: Any, key: str, debug: bool = False) -> None:
        super().__init__(server, key, debug)
        self.key = f"{key}:second"


class Property(BloomRFPDupeFilter):
    """Has it as a property."""

    @property
    def key(self) -> str:
        return f"{self._given}:second"

    @key.setter
    def key(self, given: str) -> None:
        self._given = given


class Late(BloomRFPDupeFilter):
    """Chooses it when the filter is open."""

    @classmethod
    def from_spider(cls, spider: Any) -> Any:
        self = super().from_spider(spider)
        self.key = f"{self.key}:second"
        return self


@pytest.mark.parametrize("kind", [Second, Third, Property])
def test_key_of_a_class(kind: type[BloomRFPDupeFilter], server: Server, client: redis.Redis, key: str) -> None:
    """Under every scheduler but BloomScheduler, which refuses it, the filter is at the key that the class chooses."""
    own = f"{key}:second"
    built = {
        "from_spider": kind.from_spider(crawler_of(server, **{KEY: key}).spider),
        "from_crawler": kind.from_crawler(crawler_of(server, **{KEY: key})),
    }
    assert {way: dupefilter.key for way, dupefilter in built.items()} == dict.fromkeys(built, own)
    assert [seen(dupefilter, 1) for dupefilter in built.values()] == [[False], [True]]
    assert [client.exists(each) for each in (key, own)] == [0, 1]
    built["from_spider"].close("finished")
    assert not client.exists(own)


def test_key_of_an_instance(client: redis.Redis, key: str) -> None:
    """A dupefilter that gets another key outside a crawl continues with the filter there."""
    dupefilter = BloomRFPDupeFilter(client, key)
    assert seen(dupefilter, 1) == [False]
    dupefilter.key = f"{key}:second"
    assert seen(dupefilter, 1, 1) == [False, True]
    dupefilter.key = key
    assert seen(dupefilter, 1) == [True]


@every_scheduler
def test_key_that_comes_too_late(scheduler_class: type[Scheduler], opened: Opened, valkey: Server, key: str) -> None:
    """A key that is set while a crawl uses the filter is refused by its name."""
    refused = rf"^{KEY} = '.*': the crawl uses .* key already, and BloomRFPDupeFilter\.key cannot become 'other'"
    scheduler = opened(scheduler_class)
    with pytest.raises(ConfigError, match=refused):
        scheduler.df.key = "other"
    with pytest.raises(ConfigError, match=r"Late\.key cannot become '.*:second'"):
        Late.from_spider(crawler_of(valkey, **{KEY: key}).spider)


# The words of a log, an error, and the length of a queue.


@every_scheduler
def test_resumed_crawl(scheduler_class: type[Scheduler], opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A resumed crawl says so in scrapy-redis's words, and the length is that of the queue, also behind the end."""
    caplog.set_level(logging.DEBUG, "shop")
    first = opened(scheduler_class)
    first.persist = True
    assert (len(first), caplog.messages) == (0, [])
    for number in (1, 2):
        assert first.enqueue_request(page(number))
    assert first.has_pending_requests()
    first.close("finish")
    assert len(first) == 2
    first.open(first.spider)
    assert [line for line in caplog.messages if "esum" in line] == ["Resuming crawl (2 requests scheduled)"]
    assert len(first) == 2
    first.persist = False
    first.close("finish")
    assert len(first) == 0


@pytest.mark.parametrize("kind", [spiders.RedisSpider, RedisSpider, RedisCrawlSpider])
def test_spider_without_a_crawler(kind: type[Any]) -> None:
    """A spider that is set up too early raises scrapy-redis's error."""
    with pytest.raises(ValueError, match=r"^crawler is required$"):
        kind("early").setup_redis()
