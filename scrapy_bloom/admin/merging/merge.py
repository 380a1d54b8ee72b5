"""Merging filters of equal shape and hash key into one of them, while workers add to any of them.

Only bits are set, those of a shard all at once, and only of items that a source has. To an addition at the same time it
is as if somebody had added them just before, or just after. The room for them is taken before the bits come: taken
after them, workers could have been granted the same room meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scrapy_bloom.admin.archive.exporting import Advance
from scrapy_bloom.admin.merging.mergeable import items_in, limit_of, require_mergeable, require_room
from scrapy_bloom.admin.occupants import lifecycle_at, require
from scrapy_bloom.errors import MismatchError
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.steps import carry_out
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.storage import keys
from scrapy_bloom.storage.base import Store
from scrapy_bloom.storage.counters import UNLIMITED, ChargeMerge
from scrapy_bloom.storage.pieces import MERGED, NO_TARGET, MergeShard


@dataclass(frozen=True)
class Merged:
    """The outcome of a merge: `shards` of all sources, `charged` items, and those that came to sources meanwhile."""

    shards: int
    charged: int
    late: int


def merge(store: Store, key: str, sources: Sequence[str], advance: Advance = lambda _: None) -> Merged:
    """Put all that is in the filters at the keys `sources` into the one at `key`; they stay as they are.

    `advance` is told the bytes of each shard. Killed in the middle, it may be run again, and as often as a source has
    more. Room is taken once for each item of a source.

    Raises:
        ConfigError: a filter is named twice, or a cluster has them apart.
        MismatchError: they are not of equal shape and hash key, do not fit, or one of them was lost meanwhile.
        WrongTypeError: there is no such filter, or it is not complete.
    """
    target, others = require(store, key), [require(store, source) for source in sources]
    require_mergeable(target, others)
    counts = require_room(store, target, others)
    target = _with_layer(store, target, others)
    shards = charged = late = 0
    for other in others:
        for layer in other.layers:
            limit = limit_of(target, _own(target, layer))
            charged += _charge(store, target, layer, counts[layer.key, layer.index], limit)
        for layer in other.layers:
            shards += _merge_layer(store, target, layer, advance)
            late += _charge_late(store, target, layer)
    return Merged(shards, charged, late)


def _with_layer(store: Store, target: StoredFilter, others: Sequence[StoredFilter]) -> StoredFilter:
    """Make the layer that a target lacks to which nothing was added yet, and return how it is stored now."""
    if not any(other.layers for other in others):
        return target
    lifecycle = lifecycle_at(target.key, target.parameters)
    carry_out(lifecycle.prepare(), store.execute)
    for newest in lifecycle.stack.layers[-1:]:
        carry_out(lifecycle.complete_newest(newest), store.execute)
    now = require(store, target.key)
    if now.text != target.text or not now.layers:
        raise MismatchError(
            f"the filter at {target.key!r} was replaced meanwhile, and nothing was merged: run it again"
        )
    return now


def _charge(store: Store, target: StoredFilter, layer: Layer, items: int, limit: int) -> int:
    """Take the room for a source's layer from the counter of the target's, and return how much that was."""
    own = _own(target, layer)
    merged = keys.merged_field(layer.index, layer.identity.epoch)
    charged: int | None = store.execute([ChargeMerge(target.key, own.credit_field, merged, items, limit)])[0]
    if charged is None:
        raise MismatchError(
            f"workers have filled the filter at {target.key!r} meanwhile, so that the one at {layer.key!r} was not "
            "merged: run it again, which tells what is lacking"
        )
    return charged


def _merge_layer(store: Store, target: StoredFilter, layer: Layer, advance: Advance) -> int:
    """Merge the shards of a source's layer, and return their number."""
    own = _own(target, layer)
    for key, source in zip(own.shard_keys, layer.shard_keys, strict=True):
        merging = MergeShard(key, own.identity.epoch, source, layer.identity.epoch, own.size.shard_bytes)
        outcome = store.execute([merging])[0]
        if outcome != MERGED:
            lost, of = (key, target.key) if outcome == NO_TARGET else (source, layer.key)
            raise MismatchError(
                f"the filter at {of!r} was cleared or lost its shard {lost!r}: what was merged until then stays in "
                f"{target.key!r}, and the rest is not there; run it again when the filter is there"
            )
        advance(own.size.shard_bytes)
    return own.size.shards


def _charge_late(store: Store, target: StoredFilter, layer: Layer) -> int:
    """Take room for what workers may have added to a source since that was done before, and return how much."""
    now = carry_out(stored.read(layer.key), store.execute)
    if now is None or layer not in now.layers:
        return 0
    return _charge(store, target, layer, items_in(store, now, layer), UNLIMITED)


def _own(target: StoredFilter, layer: Layer) -> Layer:
    """Return the target's layer for one of a source."""
    return next(own for own in target.layers if own.index == layer.index)
