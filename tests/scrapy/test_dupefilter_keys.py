"""Building a dupefilter: the key of its filter, and how long the filter is kept."""

import re
import time
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomRFPDupeFilter, ConfigError, WrongTypeError
from scrapy_bloom.settings import BloomSettings
from tests.support.dupefilters import (
    KEY,
    WAYS,
    Way,
    build,
    by_crawler,
    crawler_of,
    every_way,
    keys_of,
    page,
    parameters_of,
    spider_of,
)
from tests.support.servers import Server


@every_way
def test_key_is_the_setting(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """Once built, the filter is at SCHEDULER_DUPEFILTER_KEY, with all its keys below that one."""
    dupefilter = way(crawler_of(server, **{KEY: key}))
    assert dupefilter.key == key
    assert client.type(key) == b"hash"
    assert keys_of(client, key) == [key]
    assert not dupefilter.request_seen(page(1))
    assert keys_of(client, key) == [key, f"{key}:0:0"]


@by_crawler
def test_key_names_the_spider(valkey: Server, key: str, way: Way) -> None:
    """`%(spider)s` in the key is the spider's name."""
    dupefilter = way(crawler_of(valkey, **{KEY: f"{key}:%(spider)s:seen"}))
    assert dupefilter.key == f"{key}:shop:seen"


def test_key_before_there_is_a_spider(valkey: Server, key: str) -> None:
    """A crawler without a spider instance takes the name from the class."""
    crawler = crawler_of(valkey, **{KEY: f"{key}:%(spider)s"})
    crawler.spider = None
    assert BloomRFPDupeFilter.from_crawler(crawler).key == f"{key}:shop"


def test_key_of_from_settings_names_no_spider(valkey: Server, key: str) -> None:
    """`from_settings` refuses a key with the spider's name, which it does not know."""
    template = f"{key}:%(spider)s"
    with pytest.raises(ConfigError) as refusal:
        BloomRFPDupeFilter.from_settings(crawler_of(valkey, **{KEY: template}).settings)
    assert f"{KEY} = {template!r}" in str(refusal.value)


def test_default_key_of_from_spider(valkey: Server, key: str) -> None:
    """Without the setting, `from_spider` uses scrapy-redis's key."""
    crawler = crawler_of(valkey, spider_name=key)
    assert BloomRFPDupeFilter.from_spider(spider_of(crawler)).key == f"{key}:dupefilter"


@pytest.mark.parametrize("way", [WAYS["from_crawler"], WAYS["from_settings"]], ids=["from_crawler", "from_settings"])
def test_unique_key(valkey: Server, way: Way) -> None:
    """Without the setting each crawl has a unique key with its start time, even within one second."""
    while True:
        before = int(time.time())
        keys = [way(crawler_of(valkey)).key for _ in range(2)]
        seconds = [re.match(r"dupefilter:(\d+)", key) for key in keys]
        assert all(second is not None and before <= int(second[1]) <= time.time() for second in seconds)
        if int(time.time()) == before:
            break
    assert len(set(keys)) == 2


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("way", [WAYS["from_crawler"], WAYS["from_settings"]], ids=["from_crawler", "from_settings"])
def test_close_deletes_a_unique_key(server: Server, client: redis.Redis, way: Way, persist: bool) -> None:
    """A unique key, which no later crawl can find, is deleted at the end."""
    dupefilter = way(crawler_of(server, SCHEDULER_PERSIST=persist))
    dupefilter.request_seen(page(1))
    assert keys_of(client, dupefilter.key)
    dupefilter.close("finished")
    assert keys_of(client, dupefilter.key) == []


# The filters that are kept.


@by_crawler
def test_close_keeps(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """With SCHEDULER_PERSIST the filter stays, and the next crawl continues with it."""
    settings: dict[str, Any] = {KEY: key, "SCHEDULER_PERSIST": True}
    first = way(crawler_of(server, **settings))
    assert not first.request_seen(page(1))
    before = keys_of(client, key)
    first.close("finished")
    assert keys_of(client, key) == before
    second = way(crawler_of(server, **settings))
    assert second.request_seen(page(1))
    assert not second.request_seen(page(2))


@by_crawler
def test_close_deletes(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """Without SCHEDULER_PERSIST all layers of the filter are deleted."""
    dupefilter = way(crawler_of(server, BLOOMFILTER_CAPACITY=20, **{KEY: key}))
    for number in range(100):
        dupefilter.request_seen(page(number))
    assert len(keys_of(client, key)) > 3
    dupefilter.close("finished")
    assert keys_of(client, key) == []


def test_clear_begins_anew(server: Server, client: redis.Redis, key: str) -> None:
    """After `clear`, which scrapy-redis's Scheduler calls, every request is new again."""
    dupefilter = build(server, key)
    dupefilter.request_seen(page(1))
    dupefilter.clear()
    assert keys_of(client, key) == []
    assert not dupefilter.request_seen(page(1))
    assert dupefilter.request_seen(page(1))


def test_is_true(valkey: Server, key: str) -> None:
    """scrapy-redis's Scheduler tests `if not self.df`: the filter is always true, empty or unopened."""
    with valkey.client() as client:
        assert bool(BloomRFPDupeFilter(client, key)) is True
    assert bool(build(valkey, key)) is True


# Built directly.


def test_constructor_has_the_defaults(client: redis.Redis, key: str) -> None:
    """Built like scrapy-redis's dupefilter, it has the defaults and its attributes."""
    dupefilter = BloomRFPDupeFilter(client, key)
    assert (dupefilter.server, dupefilter.key, dupefilter.debug) == (client, key, False)
    assert dupefilter.config == BloomSettings()
    assert BloomRFPDupeFilter(client, key, True).debug is True
    assert BloomRFPDupeFilter(server=client, key=key, debug=True).debug is True


def test_constructor_opens_lazily(client: redis.Redis, key: str) -> None:
    """Built directly, it connects at its first use and not before; then it filters."""
    dupefilter = BloomRFPDupeFilter(client, key)
    dupefilter.open()
    assert keys_of(client, key) == []
    assert not dupefilter.request_seen(page(1))
    assert dupefilter.request_seen(page(1))
    stored = parameters_of(client, key)
    assert (stored["capacity"], stored["error_rate"], stored["expansion"], stored["ttl"]) == (1_000_000, 1e-6, 2, None)
    dupefilter.close()
    assert keys_of(client, key) == []


def test_constructor_over_a_set(client: redis.Redis, key: str) -> None:
    """Built directly over a SET, it raises at its first use and drops no requests."""
    client.sadd(key, "a")
    dupefilter = BloomRFPDupeFilter(client, key)
    with pytest.raises(WrongTypeError):
        dupefilter.request_seen(page(1))
