"""How full a layer is by its bits: what part of them to count, and what that says of all."""

from collections.abc import Sequence

from scrapy_bloom.metadata import Layer
from scrapy_bloom.shards import Sample
from scrapy_bloom.sizing import HEADER_BYTES, count_of_fill

# 64 KB are counted in 0.1 to 0.2 ms, and give the number of items within 0.2 % at half full (one standard deviation).
_SAMPLE_BYTES = 64 * 1024


def samples(layer: Layer) -> list[Sample]:
    """The operations that count the ones at the start of each shard."""
    end = min(HEADER_BYTES + _SAMPLE_BYTES, layer.size.shard_bytes) - 1
    return [Sample(key, HEADER_BYTES, end) for key in layer.shard_keys]


def fill(taken: Sequence[Sample], ones: Sequence[int]) -> float:
    """The fill ratio that samples show."""
    counted = sum(8 * (sample.end - sample.start + 1) for sample in taken)
    return sum(ones) / counted


def count(layer: Layer, taken: Sequence[Sample], ones: Sequence[int]) -> int:
    """The number of items that samples of a layer show."""
    return count_of_fill(fill(taken, ones), layer.size)
