"""Formulas: the size of a filter from its promise, and estimates from its bits.

Notation of the field: n items, m bits, k hashes, p the error rate, f the fill ratio (share of
ones). No I/O.
"""

import math
import sys
from dataclasses import dataclass

from scrapy_bloom.storage.shard_header import HEADER_BYTES

MAX_SHARD_BYTES = 32 * 1024 * 1024
# The largest layer: 1,024 of the largest shards, 34 GB.
MAX_LAYER_BYTES = 1024 * MAX_SHARD_BYTES

# The k with the fewest bits is about log2(1/p). A smaller k saves a third of the operations for up
# to 5 % more bits.
_BITS_ALLOWANCE = 1.05
# The server's overhead in a string's allocation; 64 also covers the metadata that Valkey embeds.
_STRING_OVERHEAD = 64
_SHARD_OVERHEAD = HEADER_BYTES + _STRING_OVERHEAD
_MIN_SIZE_CLASS = 128
# A smaller filter is not divided: rounding costs less than the overhead of more keys.
_MIN_PREFERRED_SHARD_BYTES = 64 * 1024
_MAX_PREFERRED_SHARDS = 48
_ROUNDING_ALLOWANCE = 1.02
# The precision of the number of items offered to a layer. For a layer of ones the iteration does
# not converge.
_OFFERED_WITHIN = 0.5
_MAX_ROUNDS = 50
# Up to half full, so many terms of the series of false positives give its sum within 1e-9.
_HALF_FULL = 0.5
_TERMS = 30


@dataclass(frozen=True)
class LayerSize:
    """The size of one layer.

    Attributes:
        hashes: bits set by an item (k).
        bits: bits of all shards (m).
        shards: strings of equal size.
    """

    hashes: int
    bits: int
    shards: int

    @property
    def shard_bits(self) -> int:
        """Bits of one shard."""
        return self.bits // self.shards

    @property
    def shard_bytes(self) -> int:
        """Bytes of the string of one shard, with its header."""
        return HEADER_BYTES + self.shard_bits // 8

    @property
    def memory_bytes(self) -> int:
        """Bytes that the server allocates for all shards."""
        return self.shards * size_class(self.shard_bytes + _STRING_OVERHEAD)


def size_class(size: int) -> int:
    """Return the bytes that jemalloc allocates for `size` bytes.

    Each doubling has four classes: 128, 160, 192, 224, 256, … (source: jemalloc(3), "Size
    classes"). On Redis 7.0 a string of exactly 32 MiB took 41.9 MB, a string of 33,554,000 bytes
    33.6 MB.
    """
    if size <= _MIN_SIZE_CLASS:
        return _MIN_SIZE_CLASS
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


def bits_needed(capacity: int, error_rate: float, hashes: int) -> int:
    """Return the fewest bits for an error rate: ceil(-k n / ln(1 - p^(1/k))).

    Source: Bloom (1970), solved for m with k fixed first, so that the promise is kept with a whole
    k.
    """
    return math.ceil(min(-hashes * float(capacity) / _log_of_zeros(error_rate, hashes), sys.float_info.max))


def _log_of_zeros(error_rate: float, hashes: int) -> float:
    """Return the logarithm of the share of zeros: ln(1 - p^(1/k)).

    Source of the two branches, exact for p close to 1 and close to 0: Maechler, "Computing log(1 -
    exp(-|a|))", 2012.
    """
    log_of_fill = math.log(error_rate) / hashes
    if log_of_fill > -math.log(2):
        return math.log(-math.expm1(log_of_fill))
    return math.log1p(-math.exp(log_of_fill))


def capacity_at(size: LayerSize, error_rate: float) -> float:
    """Return the items at which a layer reaches an error rate: -m / k ln(1 - p^(1/k))."""
    return -size.bits / size.hashes * _log_of_zeros(error_rate, size.hashes)


def max_items(size: LayerSize, error_rate: float) -> int:
    """Return the maximum of new items at which a layer keeps its error rate.

    The maximum holds however the bits fall.
    """
    offered = capacity_at(size, error_rate / spread_of_errors(size))
    return math.floor(offered - false_positives_while_filling(size, offered))


def false_positives_while_filling(size: LayerSize, offered: float) -> float:
    """Return the expected false positives while an empty layer is offered items.

    These items are distinct, count as seen, and set no bits. Their number is the integral of the
    error rate over the items. With f the fill at the end, it is m / k times the sum over j > k of
    f^j / j, the tail of the series of -ln(1 - f).
    """
    fill, hashes = min(fill_at(size, offered), 1 - 1 / size.bits), size.hashes
    if fill > _HALF_FULL:
        tail = -math.log1p(-fill) - sum(fill**j / j for j in range(1, hashes + 1))
    else:
        tail = sum(fill**j / j for j in range(hashes + 1, hashes + _TERMS))
    return size.bits / hashes * tail


def offered_items(size: LayerSize, new: float) -> float:
    """Return how many items were offered to a layer for this many to be new.

    The fill depends on the offered items.
    """
    offered = new
    for _ in range(_MAX_ROUNDS):
        more = new + false_positives_while_filling(size, offered)
        if more - offered < _OFFERED_WITHIN:
            break
        offered = more
    return offered


def spread_of_errors(size: LayerSize) -> float:
    """Return the margin of f^k: the factor at three standard deviations of f.

    The fill varies from bitmap to bitmap, noticeably so in small ones. The relative variance of f
    is at most 1 / (2 m), so the factor is `e^(3 k / sqrt(2 m))`. The mean of f^k exceeds the k-th
    power of the mean of f by less than that. Source: Bose et al., "On the false-positive rate of
    Bloom filters", 2008.
    """
    return math.exp(3 * size.hashes / math.sqrt(2 * size.bits))


def roomy_size(capacity: int, error_rate: float, max_shard_bytes: int = MAX_SHARD_BYTES) -> LayerSize:
    """Return the size of a layer whose `max_items` is at least `capacity`."""
    size, wanted = size_for(capacity, error_rate, max_shard_bytes), capacity
    while max_items(size, error_rate) < capacity:
        size = size_for(wanted, error_rate / spread_of_errors(size), max_shard_bytes)
        wanted += math.ceil(wanted / 100)
    return size


def error_rate_at(size: LayerSize, count: float) -> float:
    """Return the error rate with `count` items: (1 - e^(-k n / m))^k (Bloom 1970)."""
    # `fill_at` without a call: each addition comes here.
    return float((-math.expm1(-size.hashes * count / size.bits)) ** size.hashes)


def fill_at(size: LayerSize, count: float) -> float:
    """Return the expected fill ratio with `count` items: 1 - e^(-k n / m)."""
    return -math.expm1(-size.hashes * count / size.bits)


def error_rate_of_fill(fill: float, hashes: int) -> float:
    """Return the error rate at a fill ratio: f^k."""
    return float(fill**hashes)


def count_of_fill(fill: float, size: LayerSize) -> int:
    """Return the number of items at a fill ratio: -m / k ln(1 - f).

    Source: Swamidass and Baldi, 2007.
    """
    fullest = 1 - 1 / size.bits
    return round(-size.bits / size.hashes * math.log1p(-min(fill, fullest)))


def choose_hashes(capacity: int, error_rate: float) -> int:
    """Return the smallest k whose bits are within 5 % of the best k's."""
    most = max(1, math.ceil(-math.log2(error_rate))) + 1
    bits = [bits_needed(capacity, error_rate, hashes) for hashes in range(1, most + 1)]
    allowed = min(bits) * _BITS_ALLOWANCE
    return next(k for k, needed in enumerate(bits, start=1) if needed <= allowed)


def size_for(capacity: int, error_rate: float, max_shard_bytes: int = MAX_SHARD_BYTES) -> LayerSize:
    """Return the size of a layer for `capacity` items at `error_rate`.

    A shard ends just below a size class of the allocator, and no shard exceeds `max_shard_bytes`;
    rounding up adds bits. The result has the fewest shards that waste under 2 %, or else the number
    that wastes least.
    """
    hashes = choose_hashes(capacity, error_rate)
    data_bytes = -(-bits_needed(capacity, error_rate, hashes) // 8)
    fewest = -(-data_bytes // (max_shard_bytes - HEADER_BYTES - _STRING_OVERHEAD))
    while _rounded(hashes, data_bytes, fewest).shard_bytes > max_shard_bytes:
        fewest += 1
    most = max(fewest, min(_MAX_PREFERRED_SHARDS, data_bytes // _MIN_PREFERRED_SHARD_BYTES), 1)
    best = _rounded(hashes, data_bytes, fewest)
    for shards in range(fewest + 1, max(most, fewest + fewest // 2) + 1):
        if best.bits <= data_bytes * 8 * _ROUNDING_ALLOWANCE:
            break
        best = min(best, _rounded(hashes, data_bytes, shards), key=lambda size: size.bits)
    fewest_bytes = math.ceil(_min_shard_bits(capacity, error_rate, best.shards) / 8)
    if best.shard_bits >= 8 * fewest_bytes:
        return best
    largest = LayerSize(hashes, 8 * best.shards * (_largest_class(max_shard_bytes) - _SHARD_OVERHEAD), best.shards)
    return min(largest, _rounded(hashes, fewest_bytes * best.shards, best.shards), key=lambda size: size.bits)


def _min_shard_bits(capacity: int, error_rate: float, shards: int) -> float:
    """Return the shard size at which collisions of all positions are rare.

    Three words of a hash determine the positions, so an item collides with one of n others with a
    probability of n / m^3. At this size that is at most a tenth of the error rate.
    """
    return float((10 * capacity / (shards * error_rate)) ** (1 / 3))


def _rounded(hashes: int, data_bytes: int, shards: int) -> LayerSize:
    """Return the size of `data_bytes` in equal shards, rounded up to size classes."""
    bytes_a_shard = size_class(-(-data_bytes // shards) + _SHARD_OVERHEAD) - _SHARD_OVERHEAD
    return LayerSize(hashes, bytes_a_shard * shards * 8, shards)


def _largest_class(shard_bytes: int) -> int:
    """Return the largest size class of a shard up to this many bytes."""
    longest = shard_bytes + _STRING_OVERHEAD
    step = 1 << ((longest - 1).bit_length() - 3)
    return longest // step * step
