"""Restoring a filter from a file, as a whole: the last look before, the writing, the comparison after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scrapy_bloom.admin import occupants
from scrapy_bloom.admin.archive.exporting import Advance
from scrapy_bloom.admin.archive.restoring import ACTION, Compared, Restoring, no_room
from scrapy_bloom.admin.archive.saved import Saved
from scrapy_bloom.admin.occupants import Occupant
from scrapy_bloom.admin.servers import missing_room, replicas
from scrapy_bloom.errors import ConfigError, WrongTypeError
from scrapy_bloom.filter.opening import foreign_string
from scrapy_bloom.storage import shards
from scrapy_bloom.storage.base import Store
from scrapy_bloom.storage.shards import InspectShard


@dataclass(frozen=True)
class Restored:
    """The outcome: `layers`, those `left_out` since they are over, bytes that were `written`, room that was `granted`.

    The bytes of the server are those of the file; `replicas` says of which others they are, too.
    """

    layers: int
    left_out: int
    written: int
    granted: int
    replicas: Sequence[Compared]


def restore(
    store: Store,
    client: Any,
    key: str,
    saved: Saved,
    *,
    overwrite: bool,
    wait: float,
    advance: Advance = lambda _: None,
) -> Restored:
    """Make the filter at a key that was saved in a file, and compare its bytes on the server and its replicas.

    Replicas are waited for at most `wait` seconds. `advance` is told the bytes that were written and compared. Stopped
    in the middle, it may be run again: workers refuse what it left.

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
    restoring.compare(store)
    compared = restoring.compare_replicas(replicas(client, wait))
    restoring.finish()
    return Restored(len(restoring.layers), restoring.left_out, restoring.bits_bytes, restoring.granted, compared)


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
    lacking = missing_room(client, needed)
    if lacking is not None:
        raise no_room(there.key, needed, *lacking)
    if not is_empty and not occupants.delete(store, there):
        raise ConfigError(
            f"at the key {there.key!r} is something else by now, which stays: give another by --key, or run this again "
            "to overwrite that"
        )


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
