"""Fixtures: a proxy that fails on purpose, and a filter behind it."""

from collections.abc import Iterator

import pytest

from devtools.proxy.faults import FaultProxy, proxying
from scrapy_bloom import BloomFilter
from tests.support.retries import filter_at
from tests.support.servers import Server


@pytest.fixture
def proxy(valkey: Server) -> Iterator[FaultProxy]:
    """A proxy whose faults hit the commands that add to filters or read them."""
    with proxying(valkey.port, "BITFIELD", "BITFIELD_RO", "SADD") as proxy:
        yield proxy


@pytest.fixture
def bloom(proxy: FaultProxy, key: str) -> Iterator[BloomFilter]:
    """A filter behind the proxy."""
    with filter_at(proxy.port, key) as bloom:
        yield bloom
