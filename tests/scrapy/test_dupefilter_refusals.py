"""A dupefilter's refusals at the start, the deletions of a flush, and the effect of settings."""

import contextlib
import re
from typing import Any

import pytest
import redis

from scrapy_bloom import ConfigError, WrongTypeError
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.settings import BloomSettings
from tests.support.dupefilters import (
    KEY,
    Way,
    build,
    crawler_of,
    every_way,
    id_of,
    keys_of,
    page,
    parameters_of,
    warnings_in,
)
from tests.support.servers import Server, running


@every_way
def test_set_of_scrapy_redis_is_refused(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """A SET at the key is refused at the start, with advice to import it."""
    client.sadd(key, *range(1234))
    with pytest.raises(WrongTypeError) as refusal:
        way(crawler_of(server, **{KEY: key}))
    text = str(refusal.value)
    assert repr(key) in text
    assert "holds a SET" in text
    assert "scrapy bloom import" in text
    assert client.scard(key) == 1234


@pytest.mark.parametrize("field", ["id", "parameters"])
def test_foreign_hash(client: redis.Redis, server: Server, key: str, field: str) -> None:
    """A foreign hash with one of our fields is refused at the start and stays, unless the crawl is to start over."""
    client.hset(key, field, "x")
    with pytest.raises(WrongTypeError, match=re.escape(repr(key))):
        build(server, key)
    assert keys_of(client, key) == [key]
    assert client.hgetall(key) == {field.encode(): b"x"}
    dupefilter = build(server, key, SCHEDULER_FLUSH_ON_START=True)
    assert not dupefilter.request_seen(page(1))
    assert dupefilter.request_seen(page(1))


def test_cache_size_may_differ(valkey: Server, key: str) -> None:
    """The cache size may differ between workers."""
    assert not build(valkey, key, BLOOMFILTER_CACHE_SIZE=5).request_seen(page(1))
    assert build(valkey, key, BLOOMFILTER_CACHE_SIZE=0).request_seen(page(1))


@every_way
def test_flush_on_start_deletes_other_parameters(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """With SCHEDULER_FLUSH_ON_START a filter of other parameters is replaced with all its layers."""
    other = build(server, key, BLOOMFILTER_CAPACITY=20)
    for number in range(100):
        other.request_seen(page(number))
    name = id_of(client, key)
    assert len([each for each in keys_of(client, key) if name in each]) > 2
    dupefilter = way(crawler_of(server, SCHEDULER_FLUSH_ON_START=True, **{KEY: key}))
    assert parameters_of(client, key)["capacity"] == 1000
    assert not [each for each in keys_of(client, key) if name in each]
    assert not dupefilter.request_seen(page(1))


@every_way
def test_settings_are_checked(valkey: Server, key: str, way: Way) -> None:
    """An invalid setting is refused before the first write."""
    with valkey.client() as client, pytest.raises(ConfigError, match=r"BLOOMFILTER_CAPACITY = 'many'"):
        way(crawler_of(valkey, BLOOMFILTER_CAPACITY="many", **{KEY: key}))
    assert keys_of(client, key) == []


def test_settings_arrive(valkey: Server, key: str) -> None:
    """The filter is created with the parameters of the settings."""
    settings: dict[str, Any] = {"CAPACITY": "5e3", "ERROR_RATE": "0.01", "EXPANSION": "3", "TTL": "60"}
    build(valkey, key, **{f"BLOOMFILTER_{name}": value for name, value in settings.items()})
    with valkey.client() as client:
        stored = parameters_of(client, key)
    assert (stored["capacity"], stored["error_rate"], stored["expansion"], stored["ttl"]) == (5000, 0.01, 3, 60.0)


def test_settings_of_the_process_arrive(valkey: Server, key: str) -> None:
    """The settings set a worker's cache size and timeouts."""
    dupefilter = build(valkey, key, BLOOMFILTER_CACHE_SIZE="0", BLOOMFILTER_RETRY_TIMEOUT="7")
    assert dupefilter.filter.retry_timeout == 7
    dupefilter.request_seen(page(1))
    before = dupefilter.filter.counters.round_trips
    assert [dupefilter.request_seen(page(1)) for _ in range(3)] == [True] * 3
    assert dupefilter.filter.counters.round_trips == before + 3


def test_filter_larger_than_maxmemory_is_warned_about(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl whose filter exceeds `maxmemory` logs both sizes at its start."""
    # The server may refuse writes after the warning.
    with running("valkey", "--maxmemory", "3mb") as server, contextlib.suppress(RefusedError):
        build(server, key, BLOOMFILTER_CAPACITY=1_000_000)
    needed = BloomSettings(capacity=1_000_000).parameters().sizes()[0].memory_bytes
    assert needed > 3 * 2**20
    assert [each for each in warnings_in(caplog) if f"{needed:,}" in each and f"{3 * 2**20:,}" in each]
