"""Estimates of how full a layer is: which part of its bits to count, and what that says of all."""

from collections.abc import Sequence

from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.sizing import count_of_fill
from scrapy_bloom.storage.bits import CountBits
from scrapy_bloom.storage.layout import HEADER_BYTES

# 64 KB are counted in 0.1 to 0.2 ms, and give the number of items within 0.2 % at half full (one standard deviation).
_SAMPLE_BYTES = 64 * 1024


def samples(layer: Layer) -> list[CountBits]:
    """Return the operations that count the ones at the start of each shard."""
    end = min(HEADER_BYTES + _SAMPLE_BYTES, layer.size.shard_bytes) - 1
    return [CountBits(key, HEADER_BYTES, end) for key in layer.shard_keys]


def fill(operations: Sequence[CountBits], ones: Sequence[int]) -> float:
    """Return the fill ratio that samples show."""
    counted = sum(8 * (sample.end - sample.start + 1) for sample in operations)
    return sum(ones) / counted


def count(layer: Layer, operations: Sequence[CountBits], ones: Sequence[int]) -> int:
    """Return the number of items that samples of a layer show."""
    return count_of_fill(fill(operations, ones), layer.size)
