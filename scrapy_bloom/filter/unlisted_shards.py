"""Find the shards that no hash describes.

The hash of a filter may be evicted or deleted, a worker may die before it has appended a layer, and strings may be
prepared for another size of a layer. Only the hash says whether the shards of a layer spread over a cluster, and how
many they are. Therefore the search tries the names of all numbers of shards, from the first shard on.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple, Self

from scrapy_bloom.filter.layer import MAX_SHARDS, Layer
from scrapy_bloom.storage import filter_keys, shards
from scrapy_bloom.storage.operation import Steps
from scrapy_bloom.storage.shards import Inspection, InspectShard

_PLAIN = range(1)
_SPREAD = range(1, MAX_SHARDS + 1)


class _Place(NamedTuple):
    """A place where a shard may be: its name is the same for each number of shards in `spread_over`."""

    name: str
    layer: int
    shard: int
    spread_over: range

    @classmethod
    def all_of(cls, key: str, layer: int, shard: int, spread_over: range) -> Iterator[Self]:
        """Yield the places of a shard, one for each slot."""
        if spread_over == _PLAIN:
            yield cls(filter_keys.shard_key(key, layer, shard), layer, shard, _PLAIN)
            return
        for numbers in filter_keys.of_same_slot(shard, spread_over):
            yield cls(filter_keys.shard_key(key, layer, shard, numbers.start), layer, shard, numbers)

    def following(self, key: str) -> Iterator[Self]:
        """Yield the places of the next shard."""
        return self.all_of(key, self.layer, self.shard + 1, self.spread_over)


def find(key: str, known: Collection[Layer]) -> Steps[dict[str, Inspection]]:
    """Return the shards at `key` that are not those of its `known` layers.

    The search ends at the first layer without a first shard, and in a layer at the first missing shard.
    """
    found: dict[str, Inspection] = {}
    listed = {name for layer in known for name in layer.shard_keys}
    following = max((layer.index for layer in known), default=-1) + 1
    places = [place for index in {*(layer.index for layer in known), following} for place in _first(key, index)]
    while places:
        unlisted = [place.name for place in places if place.name not in listed]
        inspections = (yield [InspectShard(name) for name in unlisted]) if unlisted else []
        found |= {name: each for name, each in zip(unlisted, inspections, strict=True) if each.kind == shards.SHARD}
        present = [place for place in places if place.name in found or place.name in listed]
        places = [after for place in present for after in place.following(key)]
        if any(place.layer == following for place in present):
            following += 1
            places += _first(key, following)
    return found


def _first(key: str, layer: int) -> list[_Place]:
    return [place for numbers in (_PLAIN, _SPREAD) for place in _Place.all_of(key, layer, 0, numbers)]
