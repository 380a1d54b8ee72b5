"""Fixtures: filters over each kind of server and connection."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from scrapy_bloom.filter.bloom_filter import BloomFilter

Make = Callable[..., BloomFilter]

CONNECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "valkey": ("valkey", {}),
    "redis": ("redis", {"protocol": 2}),
    "redis-resp3-decoded": ("redis", {"protocol": 3, "decode_responses": True}),
    "cluster": ("redis+cluster", {}),
}


@pytest.fixture(params=CONNECTIONS)
def make(request: pytest.FixtureRequest, make_client: Callable[..., redis.Redis], key: str) -> Iterator[Make]:
    """Makes filters that share only their data."""
    kind, options = CONNECTIONS[request.param]

    def make(**arguments: Any) -> BloomFilter:
        return BloomFilter(make_client(kind, **options), key, **arguments)

    yield make
    make(flush=True).clear()
