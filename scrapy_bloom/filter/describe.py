"""Describe a filter: its size, its fill, and this process's work with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scrapy_bloom.filter.layer import NO_IDENTITY, Layer, sample_bits, sampled_fill
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.filter.sizing import count_of_fill, error_rate_of_fill
from scrapy_bloom.storage import shard_header
from scrapy_bloom.storage.operation import Steps
from scrapy_bloom.storage.shard_header import HEADER_BYTES
from scrapy_bloom.storage.shards import ReadPiece


@dataclass(frozen=True)
class LayerInfo:
    """The size of a layer, and estimates from its bits.

    Attributes:
        capacity: items for which it is sized.
        error_rate: share of new items reported as seen at that number, from 0 to 1.
        shards: strings with its bits.
        lost_shards: missing shards; their items count as new.
        bits: bits of all shards together (m).
        hashes: bits set by an item (k).
        memory_bytes: bytes that the server allocates for all shards.
        fill_ratio: share of ones among its bits, from 0 to 1.
        estimated_count: items, estimated from its bits.
        estimated_error_rate: current share of new items reported as seen, estimated from its bits,
            from 0 to 1.
        created: Unix time in seconds.

    Example:
        >>> layer = MemoryBloomFilter(capacity=1000, error_rate=1e-3).info().by_layer[0]
        >>> layer.capacity, layer.estimated_count, layer.fill_ratio
        (1000, 0, 0.0)
    """

    capacity: int
    error_rate: float
    shards: int
    lost_shards: int
    bits: int
    hashes: int
    memory_bytes: int
    fill_ratio: float
    estimated_count: int
    estimated_error_rate: float
    created: float


@dataclass(frozen=True)
class FilterInfo:
    """The promise and the size of a filter, and estimates from its bits.

    Attributes:
        capacity: items for which it was sized.
        error_rate: promised share of new items reported as seen over the whole filter, from 0 to 1.
        layers: number of layers.
        shards: strings of all layers.
        lost_shards: missing shards.
        bits: bits of all layers.
        hashes: bits set by an item in the newest layer.
        memory_bytes: bytes that the server allocates for all layers.
        fill_ratio: share of ones among all bits, from 0 to 1.
        estimated_count: items, estimated from its bits.
        estimated_error_rate: current share of new items reported as seen, estimated from its bits,
            from 0 to 1.
        by_layer: a `LayerInfo` for each layer, oldest first.

    Example:
        >>> bloom = MemoryBloomFilter(capacity=1000, error_rate=1e-3)
        >>> _ = bloom.add_many(["a", "b"])
        >>> info = bloom.info()
        >>> info.capacity, info.layers, info.estimated_count
        (1000, 1, 2)
    """

    capacity: int
    error_rate: float
    layers: int
    shards: int
    lost_shards: int
    bits: int
    hashes: int
    memory_bytes: int
    fill_ratio: float
    estimated_count: int
    estimated_error_rate: float
    by_layer: tuple[LayerInfo, ...]


@dataclass
class Counters:
    """Counts of this process's work with a filter.

    Attributes:
        added: new items.
        ambiguous: items taken for new although their bits were set, as after an interrupted call.
        cache_hits: repeats found in the process's cache.
        round_trips: round trips to the store.
        expected_false_positives: new items probably reported as seen: the error rate summed over
            the additions.
    """

    added: int = 0
    ambiguous: int = 0
    cache_hits: int = 0
    round_trips: int = 0
    expected_false_positives: float = 0.0


def describe(protocol: FilterProtocol) -> Steps[FilterInfo]:
    """Return the size and the fill of a filter.

    For an empty filter, the size that the first addition will allocate.
    """
    yield from protocol.lifecycle.rotate(adds=False)
    stack = protocol.stack
    return (yield from describe_layers(stack.parameters, stack.layers, stack.is_made))


def describe_layers(
    parameters: FilterParameters, layers: Sequence[Layer], is_made: Callable[[Layer], bool]
) -> Steps[FilterInfo]:
    """Return the size and the fill of a filter with these layers.

    Without layers, the size that the first addition will allocate. A missing shard counts as lost
    if the layer `is_made`; else a worker may be about to create it.
    """
    by_layer = []
    for layer in layers:
        samples = sample_bits(layer)
        headers = [ReadPiece(key, 0, HEADER_BYTES - 1) for key in layer.shard_keys]
        replies = yield [*samples, *headers]
        ones, starts = replies[: len(samples)], replies[len(samples) :]
        lost = sum(not _is_of(start, layer) for start in starts) if is_made(layer) else 0
        by_layer.append(_describe_layer(layer, sampled_fill(samples, ones), lost))
    if not by_layer:
        by_layer = [_describe_layer(parameters.first_layer("", NO_IDENTITY, 0, 0.0), 0.0, 0)]
    return _sum_up(parameters, by_layer)


def _is_of(start: bytes, layer: Layer) -> bool:
    """Return whether a string begins with the header of a shard of this layer."""
    header = int.from_bytes(start.ljust(HEADER_BYTES, b"\0"), "big")
    return shard_header.is_of(shard_header.identity(header), layer.identity.epoch)


def _sum_up(parameters: FilterParameters, by_layer: Sequence[LayerInfo]) -> FilterInfo:
    bits = sum(layer.bits for layer in by_layer)
    return FilterInfo(
        capacity=parameters.capacity,
        error_rate=parameters.error_rate,
        layers=len(by_layer),
        shards=sum(layer.shards for layer in by_layer),
        lost_shards=sum(layer.lost_shards for layer in by_layer),
        bits=bits,
        hashes=by_layer[-1].hashes,
        memory_bytes=sum(layer.memory_bytes for layer in by_layer),
        fill_ratio=sum(layer.fill_ratio * layer.bits for layer in by_layer) / bits,
        estimated_count=sum(layer.estimated_count for layer in by_layer),
        estimated_error_rate=sum(layer.estimated_error_rate for layer in by_layer),
        by_layer=tuple(by_layer),
    )


def _describe_layer(layer: Layer, fill: float, lost: int) -> LayerInfo:
    size = layer.size
    return LayerInfo(
        capacity=layer.capacity,
        error_rate=layer.error_rate,
        shards=size.shards,
        lost_shards=lost,
        bits=size.bits,
        hashes=size.hashes,
        memory_bytes=size.memory_bytes,
        fill_ratio=fill,
        estimated_count=count_of_fill(fill, size),
        estimated_error_rate=error_rate_of_fill(fill, size.hashes),
        created=layer.created,
    )
