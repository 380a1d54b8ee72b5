"""Restoring a filter from a file, as a whole: the last look before, the writing, the comparison after it."""

from dataclasses import dataclass
from typing import Any

from scrapy_bloom.admin import occupants
from scrapy_bloom.admin.archive.exporting import Advance
from scrapy_bloom.admin.archive.restoring import ACTION, Restoring, no_room
from scrapy_bloom.admin.archive.saved import Saved
from scrapy_bloom.admin.occupants import Occupant
from scrapy_bloom.errors import ConfigError, WrongTypeError
from scrapy_bloom.filter.opening import foreign_string
from scrapy_bloom.storage import shards
from scrapy_bloom.storage.base import Store
from scrapy_bloom.storage.shards import InspectShard
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.server_info import evicts, is_cluster, nodes


@dataclass(frozen=True)
class Restored:
    """The outcome of a restore.

    Attributes:
        layers: restored layers.
        left_out: layers of the file that have ended.
        written: bytes of bits.
        granted: items that the layers have given room for.
    """

    layers: int
    left_out: int
    written: int
    granted: int


def restore(
    store: Store,
    client: Any,
    key: str,
    saved: Saved,
    *,
    overwrite: bool,
    advance: Advance = lambda _: None,
) -> Restored:
    """Make the filter at a key that was saved in a file, and compare its bytes with those of the file.

    `advance` is called with the bytes that were written, and with those that were compared. A restore that was stopped
    can be run again: workers refuse the unfinished filter.

    Raises:
        ConfigError: something is there, and it shall not be overwritten.
        MismatchError: the bytes are not those of the file, or somebody made a filter there meanwhile.
        RefusedError: there is no room for the filter.
        WrongTypeError: something foreign is there.
    """
    there = occupants.look(store, key)
    restoring = Restoring(store, key, saved, there.now, advance)
    _make_way(store, client, there, saved, restoring, overwrite)
    restoring.write()
    restoring.compare()
    restoring.finish()
    return Restored(len(restoring.layers), restoring.left_out, restoring.bits_bytes, restoring.granted)


def _make_way(  # noqa: PLR0917  # all that is compared
    store: Store, client: Any, there: Occupant, saved: Saved, restoring: Restoring, overwrite: bool
) -> None:
    """Delete what is at the key, where it may be deleted, or refuse; what an unfinished restore left may be."""
    is_empty = _is_empty(store, there, restoring)
    if not is_empty and not overwrite and not _is_left_over(there, saved):
        raise ConfigError(
            f"the key {there.key!r} holds {there.description}: give another by --key, or --overwrite, which deletes "
            "that first"
        )
    if there.kind == occupants.SET:
        raise WrongTypeError(
            f"the key {there.key!r} holds a SET of {there.members:,} members, as scrapy-redis leaves it: use another "
            "key, move it by `scrapy bloom import`, or delete it by `scrapy bloom clear`"
        )
    freed = sum(layer.size.memory_bytes for layer in there.filter.layers) if there.filter else 0
    needed = sum(layer.size.memory_bytes for layer in restoring.layers) - freed
    lacking = _missing_room(client, needed)
    if lacking is not None:
        raise no_room(there.key, needed, *lacking)
    if not is_empty and not occupants.delete(store, there):
        raise ConfigError(
            f"at the key {there.key!r} is something else by now, which stays: give another by --key, or run this again "
            "to overwrite that"
        )


def _missing_room(client: Any, needed: int) -> tuple[int, int] | None:
    """Return the used bytes and the limit of a server that has no room for `needed` more, or None.

    A cluster, and a server that denies INFO, count as having room.
    """
    if is_cluster(client):
        return None
    try:
        ((_, info),) = nodes(client)
    except (*FAULTS, OSError):
        return None
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    is_full = limit > 0 and not evicts(info, expires=False) and used + needed > limit
    return (used, limit) if is_full else None


def _is_empty(store: Store, there: Occupant, restoring: Restoring) -> bool:
    """Return whether nothing is there that is deleted; raises a WrongTypeError where something foreign is."""
    wanted = [key for layer in restoring.layers for key in layer.shard_keys]
    kinds = [look.kind for look in store.execute([InspectShard(key) for key in wanted])]
    for key, kind in zip(wanted, kinds, strict=True):
        if kind == shards.FOREIGN:
            raise foreign_string(key)
    return there.kind == occupants.NOTHING and shards.SHARD not in kinds


def _is_left_over(there: Occupant, saved: Saved) -> bool:
    """Return whether an earlier restore of the same filter was stopped: nobody has used what is there."""
    found = there.filter
    same_key = found is not None and found.identity.hash_key == saved.filter.identity.hash_key
    return found is not None and found.unfinished == ACTION and same_key
