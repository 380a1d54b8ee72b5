"""Restore a saved filter to an empty key: with its hash key, and an epoch of its own.

Workers refuse to open it until its bytes were compared.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.archive.exporting import Advance
from scrapy_bloom.cli.archive.reader import SavedFilter
from scrapy_bloom.cli.key_contents import KeyContents
from scrapy_bloom.errors import ConfigError, MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter.layer import Identity, Layer
from scrapy_bloom.filter.opening import foreign_string
from scrapy_bloom.storage import filter_keys, shard_header, shards
from scrapy_bloom.storage.chunks import ReadPiece, WritePiece
from scrapy_bloom.storage.counters import closed, granted_of
from scrapy_bloom.storage.filter_hash import DeleteFieldFenced, Load, RestoreFields, SetFieldFenced
from scrapy_bloom.storage.operation import Store
from scrapy_bloom.storage.shard_header import HEADER_BYTES
from scrapy_bloom.storage.shards import CreateShard, Creation, InspectShard
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.server_info import evicts, is_cluster, nodes

ACTION = "restore"


class FilterWriter:
    """The way of a saved filter to a key of a store at which nothing is.

    `now` is the server's time: layers whose time is over stay away. `advance` is told the bytes of each piece that was
    written, and of each that was compared.
    """

    def __init__(
        self, store: Store, key: str, saved: SavedFilter, now: float, advance: Advance = lambda _: None
    ) -> None:
        self._store = store
        self._key = key
        self._saved = saved
        self._advance = advance
        original = saved.filter
        epoch = json.loads(original.parameters.to_json())["epoch"]
        self._text = json.dumps({**json.loads(original.text), "epoch": epoch})
        identity = Identity(epoch, original.identity.hash_key)
        self._parameters = original.parameters
        self._now = now
        self.layers = [
            replace(layer, key=key, identity=identity)
            for layer in original.layers
            if not self._parameters.has_ended(layer, now)
        ]

    @property
    def left_out(self) -> int:
        """Layers of the file whose time is over."""
        return len(self._saved.filter.layers) - len(self.layers)

    @property
    def bits_bytes(self) -> int:
        """Bytes of bits that are written."""
        return sum(layer.size.bits // 8 for layer in self.layers)

    @property
    def granted(self) -> int:
        """Items that the layers have given room for."""
        return sum(granted_of(self._saved.counter(layer.index) or closed(0)) for layer in self.layers)

    def write(self) -> None:
        """Make the filter, which is not finished by that.

        Raises:
            MismatchError: somebody else made one there meanwhile, or cleared this one.
            RefusedError: there is no room for it.
            WrongTypeError: something foreign is where its bits should be.
        """
        fields = {filter_keys.FILTER_FIELD: self._text, filter_keys.UNFINISHED_FIELD: ACTION}
        fields |= {layer.field: layer.to_json() for layer in self.layers}
        expires = self._parameters.expires_at(self.layers[-1].created if self.layers else self._now)
        making = RestoreFields(self._key, filter_keys.FILTER_FIELD, tuple(fields.items()), expires)
        is_made = self._store.execute([making])[0]
        if not is_made:
            # Unless a reply was lost and the second attempt found what the first had made.
            self._require_ours()
        for layer in self.layers:
            for key in layer.shard_keys:
                self._create(layer, key)
        self._write_bits()
        for layer in self.layers:
            self._write_counter(layer)

    def compare(self) -> None:
        """Compare the bytes on the server with those of the file.

        Raises:
            MismatchError: they are not the same.
        """
        places = self._places()
        for piece in self._saved.pieces():
            if piece.layer not in places:
                continue
            layer = places[piece.layer]
            key = layer.shard_keys[piece.shard]
            header, data = self._store.execute(
                [
                    ReadPiece(key, 0, HEADER_BYTES - 1),
                    ReadPiece(key, piece.start, piece.start + len(piece.data) - 1),
                ]
            )
            if data != piece.data or int.from_bytes(header, "big") != self._header_of(layer):
                raise MismatchError(
                    f"the bytes of {key!r} are not those of the file: somebody has written there meanwhile, perhaps "
                    "workers of the filter that was there before, or the server lost some. Stop the workers, and run "
                    "it again"
                )
            self._advance(len(piece.data))

    def finish(self) -> None:
        """Let workers open the filter.

        Raises:
            MismatchError: it is not there any more.
        """
        done = DeleteFieldFenced(self._key, filter_keys.UNFINISHED_FIELD, ACTION, self._text)
        if not self._store.execute([done])[0]:
            raise self._lost()

    def _create(self, layer: Layer, key: str) -> None:
        is_sealed, expires = layer != self.layers[-1], self._parameters.expires_at(layer.created)
        creation: Creation = self._store.execute(
            [CreateShard(key, layer.size.shard_bytes, layer.identity.epoch, is_sealed, expires)]
        )[0]
        if creation.outcome == shards.FOREIGN:
            raise foreign_string(key)
        if creation.outcome == shards.FULL:
            raise no_room(self._key, layer.size.memory_bytes, creation.used, creation.limit)

    def _write_bits(self) -> None:
        places = self._places()
        for piece in self._saved.pieces():
            if piece.layer not in places:
                continue
            layer = places[piece.layer]
            # A new shard is all zeros.
            if any(piece.data):
                write = WritePiece(layer.shard_keys[piece.shard], layer.identity.epoch, piece.start, piece.data)
                if not self._store.execute([write])[0]:
                    raise self._lost()
            self._advance(len(piece.data))

    def _write_counter(self, layer: Layer) -> None:
        """Store a layer's counter: that of the newest gives more, as far as there is room, and the others do not."""
        counter = self._saved.counter(layer.index)
        if counter is None:
            return
        granted = granted_of(counter)
        text = str(granted) if layer == self.layers[-1] else closed(granted)
        self._store.execute([SetFieldFenced(self._key, layer.credit_field, text, self._text)])

    def _places(self) -> dict[int, Layer]:
        return {layer.index: layer for layer in self.layers}

    def _header_of(self, layer: Layer) -> int:
        state = shard_header.live if layer == self.layers[-1] else shard_header.sealed
        return state(layer.identity.epoch) << shard_header.RESERVED_BITS

    def _require_ours(self) -> None:
        fields = self._store.execute([Load(self._key)])[0].fields
        if fields.get(filter_keys.FILTER_FIELD) != self._text:
            raise self._lost()

    def _lost(self) -> MismatchError:
        return MismatchError(
            f"somebody has cleared what was restored at {self._key!r}, or has made a filter there meanwhile: stop the "
            "workers of that crawl, and run it again"
        )


def no_room(key: str, needed: int, used: int, limit: int) -> RefusedError:
    """Return the error of a server that has no room for so many bytes of a filter."""
    use = f"it uses {used:,} of {limit:,} bytes" if limit else "it is full"
    return RefusedError(
        f"Redis has no room for the filter at {key!r}, which takes {needed:,} bytes more ({use}): raise its maxmemory "
        "or delete what it need not keep, and run it again"
    )


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
    saved: SavedFilter,
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
    there = key_contents.inspect_key(store, key)
    restoring = FilterWriter(store, key, saved, there.now, advance)
    _make_way(store, client, there, saved, restoring, overwrite)
    restoring.write()
    restoring.compare()
    restoring.finish()
    return Restored(len(restoring.layers), restoring.left_out, restoring.bits_bytes, restoring.granted)


def _make_way(  # noqa: PLR0917  # all that is compared
    store: Store, client: Any, there: KeyContents, saved: SavedFilter, restoring: FilterWriter, overwrite: bool
) -> None:
    """Delete what is at the key, where it may be deleted, or refuse; what an unfinished restore left may be."""
    is_empty = _is_empty(store, there, restoring)
    if not is_empty and not overwrite and not _is_left_over(there, saved):
        raise ConfigError(
            f"the key {there.key!r} holds {there.description}: give another by --key, or --overwrite, which deletes "
            "that first"
        )
    if there.kind == key_contents.SET:
        raise WrongTypeError(
            f"the key {there.key!r} holds a SET of {there.members:,} members, as scrapy-redis leaves it: use another "
            "key, move it by `scrapy bloom import`, or delete it by `scrapy bloom clear`"
        )
    freed = sum(layer.size.memory_bytes for layer in there.filter.layers) if there.filter else 0
    needed = sum(layer.size.memory_bytes for layer in restoring.layers) - freed
    lacking = _missing_room(client, needed)
    if lacking is not None:
        raise no_room(there.key, needed, *lacking)
    if not is_empty and not key_contents.delete_contents(store, there):
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


def _is_empty(store: Store, there: KeyContents, restoring: FilterWriter) -> bool:
    """Return whether nothing is there that is deleted; raises a WrongTypeError where something foreign is."""
    wanted = [key for layer in restoring.layers for key in layer.shard_keys]
    kinds = [look.kind for look in store.execute([InspectShard(key) for key in wanted])]
    for key, kind in zip(wanted, kinds, strict=True):
        if kind == shards.FOREIGN:
            raise foreign_string(key)
    return there.kind == key_contents.NOTHING and shards.SHARD not in kinds


def _is_left_over(there: KeyContents, saved: SavedFilter) -> bool:
    """Return whether an earlier restore of the same filter was stopped: nobody has used what is there."""
    found = there.filter
    same_key = found is not None and found.identity.hash_key == saved.filter.identity.hash_key
    return found is not None and found.unfinished == ACTION and same_key
