"""The names of a filter's keys and hash fields; no other module spells them."""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

FILTER_FIELD = "filter"
_LAYER_PREFIX = "layer:"
_CREDIT_PREFIX = "credit:"
_REFERENCE_PREFIX = "user:"
# Written by a retired command. A filter with such a field still opens, and can be cleared.
_RETIRED_PREFIX = "merged:"
# Names the command that fills an unfinished filter. Workers refuse the filter until it is done.
UNFINISHED_FIELD = "unfinished"
# The beginning of the shards' keys, if that is not the key of the hash: an import renames the hash to it.
PREFIX_FIELD = "prefix"
# The progress of an import from a SET.
IMPORT_FIELD = "import"
_GOLDEN_SECTION = round(REDIS_CLUSTER_HASH_SLOTS * (math.sqrt(5) - 1) / 2)


def layer_field(layer: int) -> str:
    """Return the field that describes a layer."""
    return f"{_LAYER_PREFIX}{layer}"


def layer_of_field(field: str) -> int | None:
    """Return the layer that a field describes, or None for other fields."""
    number = field.removeprefix(_LAYER_PREFIX)
    return int(number) if number != field and number.isdecimal() else None


def credit_field(layer: int, epoch: int) -> str:
    """Return the field that counts the granted room of a layer.

    The epoch is part of the name: a late request for the credit of a replaced filter finds no
    counter.
    """
    return f"{_CREDIT_PREFIX}{layer}:{epoch}"


def reference_field(name: str) -> str:
    """Return the field of a reference to the filter."""
    return f"{_REFERENCE_PREFIX}{name}"


def is_field(field: str) -> bool:
    """Return whether a hash with this field may be a filter's."""
    is_plain = field in (FILTER_FIELD, UNFINISHED_FIELD, PREFIX_FIELD, IMPORT_FIELD)
    is_own = is_plain or layer_of_field(field) is not None or is_credit_field(field)
    return is_own or field.startswith((_REFERENCE_PREFIX, _RETIRED_PREFIX))


def is_credit_field(field: str) -> bool:
    """Return whether a field counts the granted room of a layer."""
    return field.startswith(_CREDIT_PREFIX)


def prefix_of(key: str, fields: Mapping[str, str]) -> str:
    """Return the beginning of the shards' keys of the filter whose hash at `key` has these fields."""
    return fields.get(PREFIX_FIELD, key)


def shard_key(prefix: str, layer: int, shard: int, spread_over: int | None = None) -> str:
    """Return the key of a shard.

    The number of the layer's shards, which `spread_over` gives, spreads them over the slots of a cluster: a number in
    braces then chooses the slot of each. Without it the prefix decides.
    """
    name = f"{prefix}:{layer}:{shard}"
    return name if spread_over is None else f"{name}{{{_tags()[_slot_of(prefix, layer, shard, spread_over)]}}}"


def of_same_slot(shard: int, numbers: range) -> Iterator[range]:
    """Yield the parts of these numbers of shards that `spread_over` may be without a change of the shard's slot."""
    distance = REDIS_CLUSTER_HASH_SLOTS * shard
    begin = max(numbers.start, shard + 1)
    while begin < numbers.stop:
        slot = distance // begin
        end = min(numbers.stop, distance // slot + 1) if slot else numbers.stop
        yield range(begin, end)
        begin = end


def can_spread(prefix: str) -> bool:
    """Return whether the shards of a filter may choose their slots; a brace in the prefix may have chosen one."""
    return "{" not in prefix


def _slot_of(prefix: str, layer: int, shard: int, shards: int) -> int:
    """Return the slot of a shard. The slots of a layer have equal distances.

    A node with any share of adjacent slots then has this share of each layer's shards, rounded up or down. Each filter
    begins at the slot of its prefix, and each layer the golden ratio of all slots after the one before.
    """
    begin = int(key_slot(prefix.encode())) + _GOLDEN_SECTION * layer
    return (begin + REDIS_CLUSTER_HASH_SLOTS * shard // shards) % REDIS_CLUSTER_HASH_SLOTS


@cache
def _tags() -> list[int]:
    """Return for each slot the smallest number whose decimal digits hash to it."""
    tags = [-1] * REDIS_CLUSTER_HASH_SLOTS
    number, left = 0, REDIS_CLUSTER_HASH_SLOTS
    while left:
        slot = int(key_slot(b"%d" % number))
        if tags[slot] < 0:
            tags[slot] = number
            left -= 1
        number += 1
    return tags


def forgotten_key(filter_key: str) -> str:
    """Return the key of a filter's forgotten items."""
    return f"{filter_key}:forgotten"


def is_key_of(filter_key: str, key: str) -> bool:
    """Return whether a key is that of a filter's hash, of its forgotten items, or of one of its shards."""
    return (
        key in (filter_key, forgotten_key(filter_key))
        or re.fullmatch(rf"{re.escape(filter_key)}:\d+:\d+(\{{\d+\}})?", key) is not None
    )
