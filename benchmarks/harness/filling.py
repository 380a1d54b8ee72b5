"""Items that cost next to nothing to make, and a filter that other processes open, too."""

import itertools
from typing import NamedTuple

import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters


def counters(start: int, end: int) -> list[bytes]:
    """Return the numbers from `start` up to `end` as items of 8 bytes."""
    return [number.to_bytes(8, "little") for number in range(start, end)]


class Place(NamedTuple):
    """A filter on a server: its address, its key, its parameters."""

    url: str
    key: str
    parameters: FilterParameters

    def open(self) -> BloomFilter:
        """Open the filter with a client of its own."""
        return BloomFilter.with_parameters(redis.Redis.from_url(self.url), self.key, self.parameters)


def shares(begin: int, end: int, workers: int) -> list[range]:
    """Split the items from `begin` to `end` evenly between workers."""
    bounds = [begin + (end - begin) * number // workers for number in range(workers + 1)]
    return [range(*pair) for pair in itertools.pairwise(bounds)]
