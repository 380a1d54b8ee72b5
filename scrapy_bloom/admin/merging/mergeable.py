"""The filters that can be merged, and the room that it takes."""

import math
from collections.abc import Mapping, Sequence

from redis.crc import key_slot

from scrapy_bloom.admin.archive.exporting import require_finished
from scrapy_bloom.admin.shapes import setting_differences
from scrapy_bloom.errors import ConfigError, MismatchError
from scrapy_bloom.filter import sampling
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.storage import keys
from scrapy_bloom.storage.base import Store
from scrapy_bloom.storage.counters import granted_of


def require_mergeable(target: StoredFilter, others: Sequence[StoredFilter]) -> None:
    """Refuse filters of which one cannot be put into the other.

    Raises:
        ConfigError: one is named twice.
        MismatchError: parameters, hash keys or shapes are not equal, or it forgets with time.
        WrongTypeError: one is not complete.
    """
    named = [target.key, *(other.key for other in others)]
    for key in named:
        if named.count(key) > 1:
            raise ConfigError(f"{key!r}: must be named once, since a filter cannot be merged with itself; leave it out")
    for found in (target, *others):
        require_finished(found)
    if target.parameters.ttl:
        raise MismatchError(
            f"the filter at {target.key!r} has BLOOMFILTER_TTL = {target.parameters.ttl:g}: each such filter ends and "
            "begins its layers at times of its own, and none has the place of another's; merge filters without a TTL"
        )
    for other in others:
        _require_equal(target, other)


def require_same_slots(filters: Sequence[str]) -> None:
    """Refuse filters that a cluster has on several nodes: none can set bits by those of another.

    Raises:
        ConfigError: a shard of one is in another slot than that of the first.
    """
    slots = {key_slot(keys.shard_key(key, 0, shard).encode()) for key in filters for shard in range(2)}
    if len(slots) > 1:
        raise ConfigError(
            f"{', '.join(map(repr, filters))}: must be in one slot of the cluster to be merged; use keys with the same "
            "name in braces, such as '{crawl}:a' and '{crawl}:b'"
        )


def require_room(store: Store, target: StoredFilter, others: Sequence[StoredFilter]) -> dict[tuple[str, int], int]:
    """Return how many items are in each layer of the sources, by its key and index.

    What was merged before takes no room again.

    Raises:
        MismatchError: with them the target would not keep its error rate.
    """
    counts = {(other.key, layer.index): items_in(store, other, layer) for other in others for layer in other.layers}
    layers = target.layers or (first_layer(target),)
    before = {layer.index: items_in(store, target, layer) if target.layers else 0 for layer in layers}
    more = dict.fromkeys(before, 0)
    for other in others:
        for layer in other.layers:
            told = target.fields.get(keys.merged_field(layer.index, layer.identity.epoch), 0)
            more[layer.index] += max(0, counts[other.key, layer.index] - int(told))
    after = {index: before[index] + more[index] for index in before}
    crowded = [layer for layer in layers if more[layer.index] and after[layer.index] > limit_of(target, layer)]
    is_kept = not target.parameters.expansion or _error_bound(layers, after) <= target.parameters.error_rate
    if crowded or (any(more.values()) and not is_kept):
        layer = (*crowded, layers[-1])[0]
        raise MismatchError(
            f"layer {layer.index} of the filter at {target.key!r} would hold {after[layer.index]:,} items, and keeps "
            f"its error rate with {limit_of(target, layer):,}: filters that are to be merged need "
            f"BLOOMFILTER_CAPACITY = {sum(after.values())} or more from their beginning"
        )
    return counts


def limit_of(target: StoredFilter, layer: Layer) -> int:
    """Return how many items a layer may hold so that the promise of the filter is kept."""
    return layer.most_items if target.parameters.expansion else layer.capacity


def items_in(store: Store, found: StoredFilter, layer: Layer) -> int:
    """Return how many items a layer may hold: those that its counter gave room for, or that its bits show."""
    samples = sampling.samples(layer)
    counter = found.fields.get(layer.credit_field)
    shown = sampling.count(layer, samples, list(store.execute(samples)))
    return shown if counter is None else max(granted_of(counter), _certain(shown))


def first_layer(found: StoredFilter) -> Layer:
    """Return the layer that the first addition to an empty filter makes."""
    return found.parameters.first_layer(found.key, found.identity, 0, found.now)


def _certain(shown: int) -> int:
    """Return how many items are in a layer that shows so many, by five standard deviations of a sample."""
    return math.floor(shown * 0.99)


def _error_bound(layers: Sequence[Layer], counts: Mapping[int, int]) -> float:
    """Return the most that the error rate of a filter becomes when its newest layer is full, too."""
    *sealed, newest = layers
    return sum(layer.error_bound(counts[layer.index]) for layer in sealed) + newest.error_rate


def _require_equal(target: StoredFilter, other: StoredFilter) -> None:
    both = f"the filters at {target.key!r} and {other.key!r}"
    differing = setting_differences(target.parameters, other.parameters, f"in {other.key!r}")
    if differing:
        raise MismatchError(f"{both} cannot be merged: {'; '.join(differing)}")
    if target.identity.hash_key != other.identity.hash_key:
        raise MismatchError(
            f"{both} have different hash keys, so that their bits mean different things: a filter that can be merged "
            "with another is made by `scrapy bloom merge SPIDER --like OTHER`, before its crawl begins"
        )
    shapes = {layer.index: layer.size for layer in target.layers or (first_layer(target),)}
    for layer in other.layers:
        if shapes.get(layer.index) != layer.size:
            raise MismatchError(
                f"{both} cannot be merged: layer {layer.index} of the second is not of the shape that the first has "
                "there, since one has grown and the other has not, or at another time; merge the smaller one into the "
                "one that has grown, or give both a larger BLOOMFILTER_CAPACITY from their beginning"
            )
