"""Find the shards of layers that no hash describes any more.

The hash of a filter may be evicted or deleted, or a worker may die before it has appended a layer. Only the hash says
whether the shards spread over a cluster, and how many they are.
"""

from collections.abc import Collection, Iterator
from itertools import count

from scrapy_bloom.filter.layer import MAX_SHARDS, Layer
from scrapy_bloom.storage import filter_keys, shards
from scrapy_bloom.storage.operation import Steps, one
from scrapy_bloom.storage.shards import Inspection, InspectShard

# The keys that one round trip inspects for the last shard of a layer.
_KEYS_AT_ONCE = 500


def find(key: str, known: Collection[Layer]) -> Steps[dict[str, Inspection]]:
    """Return the shards at `key` after its `known` layers, up to the first layer without a first shard."""
    found: dict[str, Inspection] = {}
    for index in count(max((layer.index for layer in known), default=-1) + 1):
        plain, spread = filter_keys.shard_key(key, index, 0), filter_keys.shard_key(key, index, 0, 1)
        inspections = yield [InspectShard(plain), InspectShard(spread)]
        first = {name: each for name, each in zip((plain, spread), inspections, strict=True) if _is_shard(each)}
        if not first:
            return found
        found |= first
        if plain in first:
            found |= yield from _following(filter_keys.shard_key(key, index, shard) for shard in count(1))
        if spread in first:
            shards_of_layer = yield from _count(key, index)
            names = (filter_keys.shard_key(key, index, shard, shards_of_layer) for shard in range(1, shards_of_layer))
            found |= yield from _following(names)
    raise AssertionError


def _following(names: Iterator[str]) -> Steps[dict[str, Inspection]]:
    """Return the first ones of these keys, up to one without a shard."""
    found = {}
    for name in names:
        inspection = yield from one(InspectShard(name))
        if not _is_shard(inspection):
            break
        found[name] = inspection
    return found


def _count(key: str, index: int) -> Steps[int]:
    """Return the number of shards of a layer that is spread, or 0 if its last shard is gone.

    The last shard of fewer or more shards would be in another slot, and so at another key.
    """
    for begin in range(2, MAX_SHARDS, _KEYS_AT_ONCE):
        numbers = range(begin, begin + _KEYS_AT_ONCE)
        last = [InspectShard(filter_keys.shard_key(key, index, number - 1, number)) for number in numbers]
        inspections = yield last
        for number, inspection in zip(numbers, inspections, strict=True):
            if _is_shard(inspection):
                return number
    return 0


def _is_shard(inspection: Inspection) -> bool:
    return inspection.kind == shards.SHARD
