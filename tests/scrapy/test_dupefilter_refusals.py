"""A dupefilter's refusals at the start, the deletions of a flush, and the effect of settings."""

import contextlib
import re

import pytest
import redis

from scrapy_bloom import ConfigError, WrongTypeError
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.settings import BloomSettings
from tests.support.dupefilters import KEY, Way, build, crawler_of, every_way, keys_of, parameters_of, said, seen
from tests.support.servers import Server, running


@every_way
def test_set_of_scrapy_redis_is_refused(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """A SET at the key is refused at the start, with advice to import it."""
    client.sadd(key, *range(1234))
    with pytest.raises(WrongTypeError) as refusal:
        way(crawler_of(server, **{KEY: key}))
    assert all(part in str(refusal.value) for part in (repr(key), "holds a SET", "scrapy bloom import"))
    assert client.scard(key) == 1234


@pytest.mark.parametrize("field", ["id", "parameters"])
def test_foreign_hash(client: redis.Redis, server: Server, key: str, field: str) -> None:
    """A foreign hash with one of our fields is refused at the start and stays, unless the crawl is to start over."""
    client.hset(key, field, "x")
    with pytest.raises(WrongTypeError, match=re.escape(repr(key))):
        build(server, key)
    assert keys_of(client, key) == [key]
    assert client.hgetall(key) == {field.encode(): b"x"}
    assert seen(build(server, key, SCHEDULER_FLUSH_ON_START=True), 1, 1) == [False, True]


@every_way
def test_flush_on_start_deletes_other_parameters(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """With SCHEDULER_FLUSH_ON_START a filter of other parameters is replaced with all its layers."""
    seen(build(server, key, BLOOMFILTER_CAPACITY=20), *range(100))
    layers = {each for each in keys_of(client, key) if each != key and ":call:" not in each}
    assert len(layers) > 2
    dupefilter = way(crawler_of(server, SCHEDULER_FLUSH_ON_START=True, **{KEY: key}))
    assert parameters_of(client, key)["capacity"] == 1000
    assert layers.isdisjoint(keys_of(client, key))
    assert seen(dupefilter, 1) == [False]


@every_way
def test_settings_are_checked(valkey: Server, key: str, way: Way) -> None:
    """An invalid setting is refused before the first write."""
    with valkey.client() as client, pytest.raises(ConfigError, match=r"\(BLOOMFILTER_CAPACITY\) = 'many'"):
        way(crawler_of(valkey, BLOOMFILTER_CAPACITY="many", **{KEY: key}))
    assert keys_of(client, key) == []


def test_settings_arrive(valkey: Server, key: str) -> None:
    """The filter is created with the parameters of the settings."""
    settings = {"CAPACITY": "5e3", "ERROR_RATE": "0.01", "EXPANSION": "3", "TTL": "60"}
    build(valkey, key, **{f"BLOOMFILTER_{name}": value for name, value in settings.items()})
    with valkey.client() as client:
        stored = parameters_of(client, key)
    assert (stored["capacity"], stored["error_rate"], stored["expansion"], stored["ttl"]) == (5000, 0.01, 3, 60.0)


def test_settings_of_the_process_arrive(valkey: Server, key: str) -> None:
    """The settings set a worker's cache size and timeouts, which may differ between workers."""
    assert seen(build(valkey, key, BLOOMFILTER_CACHE_SIZE=5), 1) == [False]
    dupefilter = build(valkey, key, BLOOMFILTER_CACHE_SIZE="0", BLOOMFILTER_RETRY_TIMEOUT="7")
    assert dupefilter.filter.retry_timeout == 7
    seen(dupefilter, 1)
    before = dupefilter.filter.counters.round_trips
    assert seen(dupefilter, 1, 1, 1) == [True] * 3
    assert dupefilter.filter.counters.round_trips == before + 3


def test_filter_larger_than_maxmemory_is_warned_about(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl whose filter exceeds `maxmemory` logs both sizes at its start."""
    # The server may refuse writes after the warning.
    with running("valkey", "--maxmemory", "3mb") as server, contextlib.suppress(RefusedError):
        build(server, key, BLOOMFILTER_CAPACITY=1_000_000)
    needed = BloomSettings(capacity=1_000_000).parameters().sizes()[0].memory_bytes
    assert needed > 3 * 2**20
    assert [each for each in said(caplog) if f"{needed:,}" in each and f"{3 * 2**20:,}" in each]
