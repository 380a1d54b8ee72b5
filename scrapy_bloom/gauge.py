"""How full the layers are: estimated from samples of their bits, and carried on by what this worker adds in between."""

from collections.abc import Iterable, Sequence

from scrapy_bloom.metadata import MARGIN, Layer
from scrapy_bloom.ops import Sample
from scrapy_bloom.sizing import HEADER_BYTES, capacity_at, count_of_fill, error_rate_at

# 64 KB are counted in 0.1 to 0.2 ms, and give the number of items within 0.2 % at half full (one standard deviation).
_SAMPLE_BYTES = 64 * 1024
_SAMPLE_ERROR = 0.005
# All workers together may add this part of what still fits in before one of them looks again, but a look is not taken
# more often than after this part of the layer.
_AHEAD = 1 / 4
_CLOSEST = 1 / 4096
# What a worker takes for its share of all additions before it has seen what the others do.
_FIRST_SHARE = 1 / 32


def sample(layer: Layer, shard: int) -> Sample:
    """The operation that counts the ones at the start of a shard."""
    end = min(HEADER_BYTES + _SAMPLE_BYTES, layer.size.shard_bytes) - 1
    return Sample(layer.shard_keys[shard], HEADER_BYTES, end)


def fill(taken: Sample, ones: int) -> float:
    """The fill ratio that a sample shows."""
    return ones / (8 * (taken.end - taken.start + 1))


class Gauge:
    """The number of items in each layer as far as this worker knows, and how many it may add before it looks again.

    Several workers fill a layer. Each compares what the samples show with what it added itself, so that it looks the
    more often the smaller its share is, and none overfills the layer while it does not look.
    """

    def __init__(self) -> None:
        self.allowance = 0.0
        self._counts: dict[int, float] = {}
        self._seen = 0.0
        self._own = 0
        self._looks = 0

    def samples(self, layers: Iterable[Layer]) -> list[Sample]:
        """One sample for each layer, of another shard each time."""
        self._looks += 1
        return [sample(layer, self._looks % layer.size.shards) for layer in layers]

    def note(self, layers: Sequence[Layer], taken: Sequence[Sample], ones: Sequence[int]) -> None:
        """Take over what samples show of layers, the last of which is the newest."""
        newest = layers[-1]
        is_known = newest.index in self._counts
        for layer, each, found in zip(layers, taken, ones, strict=True):
            self._counts[layer.index] = count_of_fill(fill(each, found), layer.size)
        seen = self._counts[newest.index]
        share = _FIRST_SHARE
        if is_known and self._own:
            share = self._own / max(self._own, seen - self._seen + _SAMPLE_ERROR * seen)
        self._seen, self._own = seen, 0
        self.allowance = max(_AHEAD * share * self.room(newest), _CLOSEST * newest.capacity)

    def added(self, newest: Layer, number: int) -> None:
        """Count what this worker added to the newest layer."""
        self._counts[newest.index] += number
        self._own += number
        self.allowance -= number

    def count(self, layer: Layer) -> float:
        """Items in a layer."""
        return self._counts[layer.index]

    def room(self, layer: Layer) -> float:
        """Items that a layer still takes before its error rate is the one it may have; not above 0: it is full."""
        return capacity_at(layer.size, layer.error_rate) * (1 - MARGIN) - self._counts[layer.index]

    def error_rate(self, layers: Iterable[Layer]) -> float:
        """The error rate of these layers together, at most their sum."""
        return sum(error_rate_at(layer.size, self._counts[layer.index]) for layer in layers)
