"""Fixtures: a proxy that fails on purpose, and a filter behind it."""

from collections.abc import Iterator

import pytest

from scrapy_bloom import BloomFilter
from tests.support.faults import FaultProxy, proxying
from tests.support.retries import filter_at
from tests.support.servers import Server


@pytest.fixture
def proxy(valkey: Server) -> Iterator[FaultProxy]:
    """A proxy whose faults hit the scripts of filters, and scrapy-redis's dupefilter."""
    with proxying(valkey.port, "EVAL", "EVALSHA", "SADD") as proxy:
        yield proxy


@pytest.fixture
def bloom(proxy: FaultProxy, key: str) -> Iterator[BloomFilter]:
    """A filter behind the proxy, which has numbered a call."""
    with filter_at(proxy.port, key) as bloom:
        bloom.add("first")
        yield bloom
