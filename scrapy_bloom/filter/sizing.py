"""Formulas: the blocks and the hashes of a filter's layers, from its promise.

The bits of an item lie in one block, which the server reads and writes as a whole. Source: Putze, Sanders and Singler,
"Cache-, Hash- and Space-Efficient Bloom Filters", 2007. A block has a partition for each hash, so the bits of an item
differ, and its error rate has a closed form. The blocks' loads differ, so a blocked filter needs more bits than the
minimum of -log2(p) / ln 2 an item.
"""

import math
from bisect import bisect_left
from functools import cache
from typing import NamedTuple

BLOCK_BYTES = 256
BLOCK_BITS = 8 * BLOCK_BYTES
# Numbers of partitions of a block.
HASHES = (8, 16, 32)
# The server allocates a shard at once, and 8 MB take it some 5 ms.
MAX_SHARD_BYTES = 8 << 20
# The largest layer, 34 GB.
MAX_LAYER_BYTES = 32 << 30
# With a TTL, a generation takes items for a fifth of it, and lives for 1.25 times the TTL: at most seven live at once.
GENERATIONS, LIVE_GENERATIONS = 5, 7
# The room of a layer that never ends.
UNLIMITED = 10**12

_MAX_LAYERS = 64
# A smaller number of hashes saves time, for up to 3 % more bits.
_BITS_ALLOWANCE = 1.03
_PRECISION = 1e-4
_ROUNDING_ALLOWANCE = 1.02
# The server's overhead in a string's allocation; 64 also covers the metadata that Valkey embeds.
_STRING_OVERHEAD = 64
# An entry of the server's dictionary, and the key itself.
_KEY_OVERHEAD = 128


class LayerSize(NamedTuple):
    """The size of a layer.

    Attributes:
        room: items that it takes.
        blocks: its blocks.
        hashes: bits set by an item (k), one in each partition of its block.
        span: blocks of a shard; the last shard may have fewer.
    """

    room: int
    blocks: int
    hashes: int
    span: int

    @property
    def shards(self) -> int:
        """The number of its strings."""
        return -(-self.blocks // self.span)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the server allocates for all shards."""
        return _memory(self.blocks, self.span)


def error_rate(load: float, hashes: int) -> tuple[float, float]:
    """Return the mean error rate of blocks with a mean `load` of items, and its standard deviation over the blocks.

    The load of a block is a Poisson variable, of which the sum covers 12 standard deviations. Each of its n items sets
    one bit in each of k partitions. So the bit of a new item is set with a probability of 1 - (1 - k / 2048)^n, and
    independently in each partition: the block's rate is the k-th power of that. Source: Almeida et al., "Scalable Bloom
    Filters", 2007, section 3.1, for a filter of one block.
    """
    spread = 12 * math.sqrt(load) + 12
    first = max(0, int(load - spread))
    weight = math.exp(first * math.log(load) - load - math.lgamma(first + 1)) if load else 1.0
    mean = square = total = 0.0
    unset = math.log1p(-hashes / BLOCK_BITS)
    for items in range(first, int(load + spread) + 1):
        total += weight
        rate = (-math.expm1(items * unset)) ** hashes
        mean += weight * rate
        square += weight * rate * rate
        weight *= load / (items + 1)
    mean /= total
    return mean, math.sqrt(max(0.0, square / total - mean * mean))


def fill_ratio(load: float, hashes: int) -> float:
    """Return the expected share of ones in blocks with a mean `load` of items, which is a Poisson variable."""
    return -math.expm1(load * math.expm1(-hashes / BLOCK_BITS))


@cache
def _load(rate: float, hashes: int) -> float:
    """Return the mean load of blocks at an error rate, at most that of a filter without blocks (Bloom, 1970)."""
    before = -BLOCK_BITS / hashes * math.log1p(-(rate ** (1 / hashes)))
    error, load = math.log(error_rate(before, hashes)[0]), before * 0.7
    # By the secant method: the logarithm of the rate is almost linear in that of the load.
    while abs(load / before - 1) > _PRECISION:
        last, error = error, math.log(error_rate(load, hashes)[0])
        slope = (error - last) / math.log(load / before)
        before, load = load, load * math.exp((math.log(rate) - error) / slope)
    return load * (1 - _PRECISION)


@cache
def _hashes(rate: float) -> int:
    """Return the smallest number of hashes whose bits are within 3 % of the best."""
    loads = {hashes: _load(rate, hashes) for hashes in HASHES}
    return min(hashes for hashes, load in loads.items() if load * _BITS_ALLOWANCE >= max(loads.values()))


@cache
def layer_size(room: int, rate: float) -> LayerSize:
    """Return the size of a layer that keeps its error rate with `room` items, for any secret of its filter."""
    # Distinct items that are falsely called seen are offered, too, but set no bits. A grid of rates shares searches.
    hashes = _hashes(2.0 ** math.floor(math.log2(rate)))

    def keeps_rate(blocks: int) -> bool:
        mean, deviation = error_rate(room / blocks, hashes)
        return mean + 3 * deviation / math.sqrt(blocks) <= rate

    first = max(1, math.ceil(room / _load(rate, hashes)))
    blocks = bisect_left(range(8 * first), True, lo=first, key=keeps_rate)
    return LayerSize(room, blocks, hashes, _span(blocks))


def sizes(capacity: int, rate: float, expansion: int, ttl: float | None) -> list[LayerSize]:
    """Return the sizes of a filter's layers; the last one is that of all further layers, too.

    Layer i, from 0, takes `18 / ((i + 1) (i + 2) (i + 3) (i + 4))` of the error rate. The sum over all i is 1: the
    filter keeps its rate with any number of layers. This follows Almeida et al., "Scalable Bloom Filters", 2007, who
    halve the rate each time, which costs more bits in the first layer, and far more in the twentieth. With a TTL, each
    generation has a seventh of the rate, and a fifth of the capacity; without growth it has all of the capacity.
    """
    if ttl:
        rate /= LIVE_GENERATIONS
    if not expansion:
        return [layer_size(capacity, rate)._replace(room=UNLIMITED)]
    if ttl:
        capacity = -(-capacity // GENERATIONS)
    result: list[LayerSize] = []
    for i in range(_MAX_LAYERS):
        size = layer_size(capacity, rate * 18 / ((i + 1) * (i + 2) * (i + 3) * (i + 4)))
        if result and size.blocks * BLOCK_BYTES > MAX_LAYER_BYTES:
            break
        result.append(size)
        capacity *= expansion
    return result


def size_class(size: int) -> int:
    """Return the bytes that jemalloc allocates for `size` bytes.

    Each doubling has four classes: 128, 160, 192, 224, 256, … (source: jemalloc(3), "Size classes").
    """
    step = 1 << max(3, (size - 1).bit_length() - 3)
    return -(-size // step) * step


def _memory(blocks: int, span: int) -> int:
    full, rest = divmod(blocks, span)
    return full * _shard_memory(span) + (rest and _shard_memory(rest))


def _shard_memory(blocks: int) -> int:
    return size_class(blocks * BLOCK_BYTES + _STRING_OVERHEAD) + _KEY_OVERHEAD


def _span(blocks: int) -> int:
    """Return the blocks of a shard, for the fewest shards within 2 % of the least memory.

    A shard that ends just below a size class of the allocator wastes least.
    """
    largest = [MAX_SHARD_BYTES // 8 * eighths for eighths in (8, 7, 6, 5)]
    spans = [((size >> halvings) - _STRING_OVERHEAD) // BLOCK_BYTES for halvings in range(10) for size in largest]
    memory = {span: _memory(blocks, span) for span in (blocks, *spans) if span <= min(blocks, spans[0])}
    return max(span for span, needed in memory.items() if needed <= _ROUNDING_ALLOWANCE * min(memory.values()))
