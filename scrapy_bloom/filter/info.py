"""Descriptions of a filter and its layers, and counts of a process's own work with it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerInfo:
    """One layer: its size, and estimates from its bits.

    Attributes:
        capacity: items that it may hold.
        error_rate: share of new items taken for seen when it holds them, from 0 to 1.
        shards: strings that it is divided into.
        lost_shards: those of them that are gone; what they knew is new.
        bits: bits of all shards together (m).
        hashes: bits that an item sets (k).
        memory_bytes: bytes that the server's allocator takes for all shards.
        fill_ratio: share of the bits that are 1, from 0 to 1.
        estimated_count: items that it holds, by its bits.
        estimated_error_rate: share of new items taken for seen now, by its bits, from 0 to 1.
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
    """A filter: the promise that it was made with, its size, and estimates from its bits.

    Attributes:
        capacity: items for which it was sized.
        error_rate: share of new items that may be taken for seen over the whole filter, from 0 to 1.
        layers: layers that it has.
        shards: strings of all layers together.
        lost_shards: those of them that are gone.
        bits: bits of all layers together.
        hashes: bits that an item sets in the newest layer.
        memory_bytes: bytes that the server's allocator takes for all layers.
        fill_ratio: share of all bits that are 1, from 0 to 1.
        estimated_count: items that it holds, by its bits.
        estimated_error_rate: share of new items taken for seen now, by its bits, from 0 to 1.
        by_layer: the `LayerInfo` of each layer, oldest first.

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
    """Counts of this process's own work with a filter.

    Attributes:
        added: items that were new.
        ambiguous: those of them that were taken for new, since nobody could know.
        cache_hits: repeats that the process knew itself.
        round_trips: to the store.
        expected_false_positives: new items that it may have called seen, the sum of the error rate over the additions.
    """

    added: int = 0
    ambiguous: int = 0
    cache_hits: int = 0
    round_trips: int = 0
    expected_false_positives: float = 0.0
