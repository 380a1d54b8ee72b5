"""Bits that a filter needs for an item: lower bounds, and figures that other projects publish."""

import math
from typing import NamedTuple


def static_bound(error_rate: float) -> float:
    """Return the fewest bits an item of any filter that is built once: log2(1/p).

    Source: Carter, Floyd, Gill, Markowsky and Wegman, "Exact and Approximate Membership Testers", 1978.
    """
    return -math.log2(error_rate)


def dynamic_bound(error_rate: float) -> float:
    """Return the fewest bits an item of a filter that takes items one by one: log2(1/p) + log2(e).

    Source: Kuszmaul and Walzer, "Space Lower Bounds for Dynamic Filters and Value-Dynamic Retrieval", 2024.
    """
    return static_bound(error_rate) + math.log2(math.e)


def bloom_bits(error_rate: float) -> float:
    """Return the bits an item of a Bloom filter: log2(e) log2(1/p), 1.44 times the static bound (Bloom 1970)."""
    return static_bound(error_rate) * math.log2(math.e)


class Published(NamedTuple):
    """A figure that a project publishes: its items, its error rate, its bytes, and the source."""

    project: str
    items: int
    error_rate: float
    total_bytes: float
    source: str

    @property
    def bits(self) -> float:
        """Bits an item."""
        return 8 * self.total_bytes / self.items


# Heritrix gives 1 in 2^22 for its 22 hash functions; feapder gives 285 MB, and 1e-5 as the default rate.
PUBLISHED = (
    Published(
        "Heritrix, BloomUriUniqFilter",
        125_000_000,
        2.0**-22,
        495e6,
        "https://archive-crawler.sourceforge.net/apidocs/org/archive/crawler/util/BloomUriUniqFilter.html",
    ),
    Published(
        "feapder, BloomFilter",
        100_000_000,
        1e-5,
        285e6,
        "https://github.com/Boris-code/feapder/blob/master/docs/source_code/dedup.md",
    ),
    Published(
        "RedisBloom 1.1.0, a user's filter",
        597_453_122,
        1e-6,
        2_147_483_648,
        "https://github.com/RedisBloom/RedisBloom/issues/28",
    ),
)
