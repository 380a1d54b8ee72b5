"""Errors of a filter name its arguments and the settings of a crawl, and never a password."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomError, BloomFilter
from tests.support.servers import running

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of no server

Made = tuple[redis.Redis, dict[str, Any]]


def port_of(client: redis.Redis) -> int:
    return int(client.get_connection_kwargs()["port"])


def other_parameters(client: redis.Redis, key: str) -> Made:
    BloomFilter(client, key, capacity=77)
    return client, {}


def full(client: redis.Redis, key: str) -> Made:
    BloomFilter(client, key).add("b")
    client.config_set("maxmemory", 1)
    return client, {}


# A client and arguments, and the text of the refusal.
REFUSED: dict[str, tuple[Callable[[redis.Redis, str], Made], str]] = {
    "away": (lambda *_: (redis.Redis(port=1), {"retry_timeout": 0}), "(BLOOMFILTER_RETRY_TIMEOUT) = 0: Redis"),
    "login": (
        lambda client, _: (redis.Redis(port=port_of(client), username="x", password=PASSWORD), {}),
        "the password of the client",
    ),
    "a SET": (lambda client, key: (client.sadd(key, "a"), (client, {}))[1], "use another key (SCHEDULER_"),
    "other parameters": (other_parameters, "start anew with flush=True (SCHEDULER_FLUSH_ON_START = True)"),
    "full": (full, "raise the server's maxmemory, or set a smaller capacity"),
    "a pipeline": (lambda client, _: (client.pipeline(), {}), "pass a redis.Redis or redis.RedisCluster"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_names(name: str, key: str) -> None:
    """An error names the argument and the setting."""
    act, text = REFUSED[name]
    with running("valkey") as server, server.client() as client:
        given, options = act(client, key)
        with pytest.raises(BloomError) as refusal:
            BloomFilter(given, key, **options).add("a")
    assert text in str(refusal.value)
    assert PASSWORD not in str(refusal.value)
