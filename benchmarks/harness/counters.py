"""Items that cost next to nothing to make: numbers as 8 bytes, the same in Python and in `probe.c`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.transport.client import disconnect
from scrapy_bloom.transport.from_url import FromUrl


def counters(start: int, end: int) -> list[bytes]:
    """Return the items of the numbers from `start` up to `end`."""
    return [number.to_bytes(8, "little") for number in range(start, end)]


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """A client for the address of a server or of a cluster."""
    client = (FromUrl if url.startswith("redis+") else redis.Redis).from_url(url)
    try:
        yield client
    finally:
        disconnect(client)


@dataclass(frozen=True)
class Place:
    """A filter on a server or a cluster: its address, its key, its parameters, and the maximum bytes of a shard."""

    url: str
    key: str
    parameters: FilterParameters
    shard_bytes: int | None = None

    @contextmanager
    def opened(self) -> Iterator[BloomFilter]:
        """Open the filter with a client of its own."""
        with connected(self.url) as client:
            yield BloomFilter.with_parameters(client, self.key, self.parameters, shard_bytes=self.shard_bytes)


class Share(NamedTuple):
    """Numbers to be added to a place, in batches."""

    place: int
    start: int
    end: int
    batch: int


def add_share(bloom: BloomFilter, share: Share) -> int:
    """Add the items of a share; return how many were new."""
    return sum(
        sum(bloom.add_many(counters(start, min(start + share.batch, share.end))))
        for start in range(share.start, share.end, share.batch)
    )
