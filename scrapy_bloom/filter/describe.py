"""Describe a filter: its size, its fill, and this process's work with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.sizing import LayerSize


@dataclass(frozen=True)
class LayerInfo:
    """The size of a layer, and its items.

    Attributes:
        capacity: items for which it is sized.
        error_rate: share of new items reported as seen at that number, from 0 to 1.
        shards: strings with its bits.
        bits: bits of all shards together (m).
        hashes: bits set by an item (k).
        memory_bytes: bytes that the server allocates for all shards.
        fill_ratio: expected share of ones among its bits, from 0 to 1.
        count: items that were new when they were added.
        current_error_rate: share of new items reported as seen now, from 0 to 1.
        created: Unix time in seconds; 0 in a filter without a TTL.

    Example:
        >>> layer = MemoryBloomFilter(capacity=1000, error_rate=1e-3).info().by_layer[0]
        >>> layer.capacity, layer.count, layer.fill_ratio
        (1000, 0, 0.0)
    """

    capacity: int
    error_rate: float
    shards: int
    bits: int
    hashes: int
    memory_bytes: int
    fill_ratio: float
    count: int
    current_error_rate: float
    created: float


@dataclass(frozen=True)
class FilterInfo:
    """The promise and the size of a filter, and its items.

    Attributes:
        capacity: items for which it was sized.
        error_rate: promised share of new items reported as seen over the whole filter, from 0 to 1.
        layers: number of layers.
        shards: strings of all layers.
        lost_shards: shards that were lost and replaced since the filter was created.
        forgotten: items that are forgotten and were not added again.
        users: names of its users, such as the queues that share it.
        bits: bits of all layers.
        hashes: bits set by an item in the newest layer.
        memory_bytes: bytes that the server allocates for all layers.
        fill_ratio: expected share of ones among all bits, from 0 to 1.
        count: items that were new when they were added, exactly.
        current_error_rate: share of new items reported as seen now, from 0 to 1.
        by_layer: a `LayerInfo` for each layer, oldest first.

    Example:
        >>> bloom = MemoryBloomFilter(capacity=1000, error_rate=1e-3)
        >>> _ = bloom.add_many(["a", "b"])
        >>> info = bloom.info()
        >>> info.capacity, info.layers, info.count
        (1000, 1, 2)
    """

    capacity: int
    error_rate: float
    layers: int
    shards: int
    lost_shards: int
    forgotten: int
    users: tuple[str, ...]
    bits: int
    hashes: int
    memory_bytes: int
    fill_ratio: float
    count: int
    current_error_rate: float
    by_layer: tuple[LayerInfo, ...]


@dataclass
class Counters:
    """Counts of this process's work with a filter.

    Attributes:
        added: new items.
        cache_hits: repeats found in the process's cache.
        round_trips: calls of the server, without repeated ones.
        losses: losses of the filter, of shards, or of the server's last writes.
    """

    added: int = 0
    cache_hits: int = 0
    round_trips: int = 0
    losses: int = 0


def describe_reply(parameters: FilterParameters, reply: Sequence[Any]) -> FilterInfo:
    """Return the description of a stored filter, from the reply of `info.lua` behind its status.

    An empty filter has the sizes that its first addition allocates.
    """
    sizes, lost, layers, forgotten, users = reply
    first = LayerSize(*map(int, sizes.split(b";")[0].split()))
    stored = [(LayerSize(*size), items, created / 1000) for *size, items, created in layers]
    names = sorted(user.decode(errors="backslashreplace") for user in users)
    return describe(parameters, stored or [(first, 0, 0.0)], lost, forgotten, names)


def describe(
    parameters: FilterParameters,
    layers: Sequence[tuple[LayerSize, int, float]],
    lost: int,
    forgotten: int,
    users: Sequence[str] = (),
) -> FilterInfo:
    """Return the description of a filter; `layers` has size, items and Unix time of each layer, at least of one."""
    by_layer = tuple(_describe_layer(parameters, *layer) for layer in layers)
    bits = sum(layer.bits for layer in by_layer)
    return FilterInfo(
        capacity=parameters.capacity,
        error_rate=parameters.error_rate,
        layers=len(by_layer),
        shards=sum(layer.shards for layer in by_layer),
        lost_shards=lost,
        forgotten=forgotten,
        users=tuple(users),
        bits=bits,
        hashes=by_layer[-1].hashes,
        memory_bytes=sum(layer.memory_bytes for layer in by_layer),
        fill_ratio=sum(layer.fill_ratio * layer.bits for layer in by_layer) / bits,
        count=sum(layer.count for layer in by_layer),
        current_error_rate=sum(layer.current_error_rate for layer in by_layer),
        by_layer=by_layer,
    )


def sum_of(infos: Sequence[FilterInfo]) -> FilterInfo:
    """Return the sum of the filters of a crawl's partitions; an item is in one of them."""
    if len(infos) == 1:
        return infos[0]
    layers = tuple(layer for info in infos for layer in info.by_layer)
    counts = ("capacity", "shards", "lost_shards", "forgotten", "bits", "memory_bytes", "count")
    bits = sum(info.bits for info in infos)
    return replace(
        infos[0],
        layers=max(info.layers for info in infos),
        hashes=max(info.hashes for info in infos),
        users=tuple(sorted({user for info in infos for user in info.users})),
        fill_ratio=sum(info.fill_ratio * info.bits for info in infos) / bits,
        current_error_rate=sum(info.current_error_rate for info in infos) / len(infos),
        by_layer=layers,
        **{name: sum(getattr(info, name) for info in infos) for name in counts},
    )


def _describe_layer(parameters: FilterParameters, size: LayerSize, count: int, created: float) -> LayerInfo:
    capacity = parameters.capacity if size.room == sizing.UNLIMITED else size.room
    return LayerInfo(
        capacity=capacity,
        error_rate=sizing.error_rate(capacity / size.blocks, size.hashes)[0],
        shards=size.shards,
        bits=size.blocks * sizing.BLOCK_BITS,
        hashes=size.hashes,
        memory_bytes=size.memory_bytes,
        fill_ratio=sizing.fill_ratio(count / size.blocks, size.hashes),
        count=count,
        current_error_rate=sizing.error_rate(count / size.blocks, size.hashes)[0],
        created=created,
    )
