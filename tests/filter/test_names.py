"""Errors of a plain filter name its arguments, and never a password."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomError, BloomFilter
from tests.support.servers import running

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of no server

Act = Callable[[redis.Redis, str], tuple[redis.Redis, dict[str, Any]]]


def port_of(client: redis.Redis) -> int:
    return int(client.get_connection_kwargs()["port"])


def away(_: redis.Redis, __: str) -> tuple[redis.Redis, dict[str, Any]]:
    return redis.Redis(port=1), {"retry_timeout": 0}


def login(client: redis.Redis, _: str) -> tuple[redis.Redis, dict[str, Any]]:
    return redis.Redis(port=port_of(client), username="x", password=PASSWORD), {}


def set_at_the_key(client: redis.Redis, key: str) -> tuple[redis.Redis, dict[str, Any]]:
    client.sadd(key, "a")
    return client, {}


def other_parameters(client: redis.Redis, key: str) -> tuple[redis.Redis, dict[str, Any]]:
    BloomFilter(client, key, capacity=77)
    return client, {}


def full(client: redis.Redis, key: str) -> tuple[redis.Redis, dict[str, Any]]:
    BloomFilter(client, key).add("b")
    client.config_set("maxmemory", 1)
    return client, {}


def pipeline(client: redis.Redis, _: str) -> tuple[redis.Redis, dict[str, Any]]:
    return client.pipeline(), {}


SAID: dict[Act, str] = {
    away: "retry_timeout = 0: Redis was unreachable",
    login: "the password of the client",
    set_at_the_key: "use another key",
    other_parameters: "start anew with flush=True",
    full: "raise the server's maxmemory, or set a smaller capacity",
    pipeline: "pass a redis.Redis or redis.RedisCluster",
}


@pytest.mark.parametrize("act", SAID, ids=lambda act: act.__name__)
def test_names(act: Act, key: str) -> None:
    """A plain filter's errors name arguments alone."""
    with running("valkey") as server, server.client() as client:
        given, options = act(client, key)
        with pytest.raises(BloomError) as refusal:
            BloomFilter(given, key, **options).add("a")
    assert SAID[act] in str(refusal.value)
    assert PASSWORD not in str(refusal.value)
