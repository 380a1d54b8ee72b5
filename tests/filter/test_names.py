"""Errors of a plain filter name its arguments, and those of a crawl its settings."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from scrapy.settings import Settings

from scrapy_bloom import BloomError, BloomFilter, BloomRFPDupeFilter
from tests.support.dupefilters import KEY
from tests.support.servers import running

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of no server
# That of a dupefilter's fingerprints.
SCHEME = "scrapy-redis"
SETTING = re.compile(r"\b(?:BLOOMFILTER|SCHEDULER|REDIS)_[A-Z_]+")

Act = Callable[[redis.Redis, str], tuple[redis.Redis, dict[str, Any]]]


def port_of(client: redis.Redis) -> int:
    return int(client.get_connection_kwargs()["port"])


def away(_: redis.Redis, __: str) -> tuple[redis.Redis, dict[str, Any]]:
    return redis.Redis(port=1), {"retry_timeout": 0}


def login(client: redis.Redis, _: str) -> tuple[redis.Redis, dict[str, Any]]:
    return redis.Redis(port=port_of(client), username="x", password=PASSWORD), {}


def string_at_the_bits(client: redis.Redis, key: str) -> tuple[redis.Redis, dict[str, Any]]:
    client.set(f"{key}:0:0", "somebody's text")
    return client, {}


def set_at_the_key(client: redis.Redis, key: str) -> tuple[redis.Redis, dict[str, Any]]:
    client.sadd(key, "a")
    return client, {}


def other_parameters(client: redis.Redis, key: str) -> tuple[redis.Redis, dict[str, Any]]:
    BloomFilter(client, key, capacity=77)
    return client, {}


def no_room(client: redis.Redis, key: str) -> tuple[redis.Redis, dict[str, Any]]:
    BloomFilter(client, key, capacity=10_000_000, fingerprint=SCHEME)
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 1_000_000)
    return client, {"capacity": 10_000_000}


def full(client: redis.Redis, key: str) -> tuple[redis.Redis, dict[str, Any]]:
    BloomFilter(client, key, fingerprint=SCHEME).add("b")
    client.config_set("maxmemory", 1)
    return client, {}


def encoding(client: redis.Redis, _: str) -> tuple[redis.Redis, dict[str, Any]]:
    return redis.Redis(port=port_of(client), encoding="utf-16", decode_responses=True), {}


def pipeline(client: redis.Redis, _: str) -> tuple[redis.Redis, dict[str, Any]]:
    return client.pipeline(), {}


# The errors of a plain filter, and of a crawl.
SAID: dict[Act, tuple[str, str]] = {
    away: ("retry_timeout = 0: Redis was unreachable", "BLOOMFILTER_RETRY_TIMEOUT = 0: Redis was unreachable"),
    login: ("the password of the client", "the password in REDIS_URL or REDIS_PARAMS"),
    string_at_the_bits: ("use another key for the filter (key)", "(SCHEDULER_DUPEFILTER_KEY)"),
    set_at_the_key: ("begin anew with flush=True", "begin anew with SCHEDULER_FLUSH_ON_START = True"),
    other_parameters: ("start anew with flush=True", "start anew with SCHEDULER_FLUSH_ON_START = True"),
    no_room: ("set a smaller capacity or a larger error_rate", "a smaller BLOOMFILTER_CAPACITY or a larger BLOOM"),
    full: ("set a smaller capacity", "set a smaller BLOOMFILTER_CAPACITY"),
    encoding: ("decode_responses=False to the client", "REDIS_DECODE_RESPONSES"),
    pipeline: ("pass a redis.Redis or redis.RedisCluster", "REDIS_PARAMS = {'redis_cls': 'redis.Redis'}"),
}


@pytest.mark.parametrize("act", SAID, ids=lambda act: act.__name__)
def test_names(act: Act, key: str) -> None:
    """A plain filter's errors name arguments alone; a crawl's name the corresponding settings."""
    plain, crawls = SAID[act]
    with running("valkey") as server, server.client() as client:
        given, options = act(client, key)
        with pytest.raises(BloomError) as refusal:
            BloomFilter(given, key, fingerprint=SCHEME, **options).add("a")
        assert plain in str(refusal.value)
        assert SETTING.findall(str(refusal.value)) == []
        settings = {f"BLOOMFILTER_{name.upper()}": value for name, value in options.items()}
        dupefilter = BloomRFPDupeFilter.unopened(Settings({KEY: key, **settings}), key, None)
        dupefilter.server = given
        with pytest.raises(BloomError) as refusal:
            dupefilter.filter.add("a")
        assert crawls in str(refusal.value)


def test_nearly_full(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The warning of a filter without growth names its argument, too."""
    with running("valkey") as server, server.client() as client:
        bloom = BloomFilter(client, key, capacity=20, expansion=0)
        bloom.add_many([str(number) for number in range(40)])
    assert "(expansion = 0)" in caplog.text
    assert SETTING.findall(caplog.text) == []
