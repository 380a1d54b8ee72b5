"""Restore a saved filter to a key, with its seed and a new epoch.

Workers refuse to open it until its bytes have been compared with the file.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.archive.file_format import Advance, Piece, SavedFilter
from scrapy_bloom.cli.key_contents import KeyContents
from scrapy_bloom.errors import ConfigError, MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.opening import foreign_string
from scrapy_bloom.filter.parameters import copied
from scrapy_bloom.filter.placement import PLAIN, Placement
from scrapy_bloom.storage import filter_keys, shard_header, shards
from scrapy_bloom.storage.counters import closed, granted_of
from scrapy_bloom.storage.filter_hash import DeleteFieldFenced, Load, RestoreFields, SetFieldFenced
from scrapy_bloom.storage.forgotten import SCAN_BATCH, ForgetItems, LookUpForgotten, MarkForgotten
from scrapy_bloom.storage.operation import Store
from scrapy_bloom.storage.shard_header import HEADER_BYTES
from scrapy_bloom.storage.shards import CreateShard, Creation, InspectShard, ReadPiece, WritePiece
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.server_info import evicts, is_cluster, nodes

ACTION = "restore"


class FilterWriter:
    """Writes a saved filter to an empty key, and compares it with the file.

    Layers that have expired at the server's time `now` are skipped. `advance` is called with the bytes of each written
    piece, and of each compared one. On a cluster the `placement` may spread the shards.
    """

    def __init__(  # noqa: PLR0917  # the source, the destination, and the progress
        self,
        store: Store,
        key: str,
        saved: SavedFilter,
        now: float,
        advance: Advance = lambda _: None,
        placement: Placement = PLAIN,
    ) -> None:
        self._store = store
        self._key = key
        self._saved = saved
        self._advance = advance
        original = saved.filter
        epoch = json.loads(original.parameters.to_json())["epoch"]
        self._text = copied(original.text, epoch, is_spread=placement.is_spread)
        self._parameters = original.parameters
        identity = self._parameters.verify_stored(key, self._text)
        self._epoch = identity.epoch
        # The mark of all shards, 0 without forgotten items.
        self._mark = self._written = 0
        self._now = now
        self.layers = [
            replace(layer, key=key, identity=identity)
            for layer in original.layers
            if not self._parameters.has_ended(layer, now)
        ]

    @property
    def outcome(self) -> "Restored":
        """The outcome of a completed restore."""
        counters = [self._saved.counter(layer.index) or closed(0) for layer in self.layers]
        return Restored(
            layers=len(self.layers),
            left_out=len(self._saved.filter.layers) - len(self.layers),
            written=sum(layer.size.bits // 8 for layer in self.layers),
            granted=sum(map(granted_of, counters)),
            forgotten=self._written,
        )

    def write(self) -> None:
        """Write the filter, marked as incomplete.

        Raises:
            MismatchError: another filter was created there meanwhile, or this one was cleared.
            RefusedError: the server has no room for it.
            WrongTypeError: a shard key holds foreign data.
        """
        fields = {filter_keys.FILTER_FIELD: self._text, filter_keys.UNFINISHED_FIELD: ACTION}
        fields |= {layer.field: layer.to_json() for layer in self.layers}
        expires = self._parameters.expires_at(self.layers[-1].created if self.layers else self._now)
        creation = RestoreFields(self._key, filter_keys.FILTER_FIELD, tuple(fields.items()), expires)
        # A retry after a lost reply finds the hash of the first attempt.
        if not self._store.execute([creation])[0] and self._stored_text() != self._text:
            raise self._lost()
        for layer in self.layers:
            for key in layer.shard_keys:
                self._create_shard(layer, key)
        for layer, piece in self._pieces():
            # A new shard is all zeros.
            if any(piece.data):
                write = WritePiece(layer.shard_keys[piece.shard], layer.identity.epoch, piece.start, piece.data)
                if not self._store.execute([write])[0]:
                    raise self._lost()
            self._advance(len(piece.data))
        for layer in self.layers:
            self._write_counter(layer)
        self._write_forgotten()

    def compare(self) -> None:
        """Compare the bytes on the server with the file.

        After an interruption, as by a failover, a server may lack bytes that were compared: all are compared again.

        Raises:
            MismatchError: they differ.
        """
        while len({*self._compare_all(), *self._compare_forgotten()}) > 1:
            pass

    def _compare_all(self) -> Iterator[int]:
        """Compare each piece, and yield its `Results.contact`."""
        for layer, piece in self._pieces():
            key = layer.shard_keys[piece.shard]
            results = self._store.execute(
                [
                    ReadPiece(key, 0, HEADER_BYTES - 1),
                    ReadPiece(key, piece.start, piece.start + len(piece.data) - 1),
                ]
            )
            header, data = results
            state = shard_header.live if layer == self.layers[-1] else shard_header.sealed
            expected = state(layer.identity.epoch) << shard_header.MARK_BITS | self._mark
            if data != piece.data or int.from_bytes(header, "big") != expected:
                raise _differs(key)
            self._advance(len(piece.data))
            yield results.contact

    def _compare_forgotten(self) -> Iterator[int]:
        key = filter_keys.forgotten_key(self._key)
        for batch in self._forgotten():
            results = self._store.execute([LookUpForgotten(key, self._epoch, tuple(item for item, _ in batch))])
            if results[0] != tuple(layer for _, layer in batch):
                raise _differs(key)
            yield results.contact

    def finish(self) -> None:
        """Let workers open the filter.

        Raises:
            MismatchError: the filter is gone.
        """
        removal = DeleteFieldFenced(self._key, filter_keys.UNFINISHED_FIELD, ACTION, self._text)
        if not self._store.execute([removal])[0]:
            raise self._lost()

    def _write_forgotten(self) -> None:
        """Store the forgotten items, and then mark the shards, as a worker does."""
        key, expires = filter_keys.forgotten_key(self._key), None
        if self.layers:
            expires = self._parameters.expires_at(self.layers[-1].created)
        version: int | None = None
        for batch in self._forgotten():
            self._written += len(batch)
            version = self._store.execute([ForgetItems(key, self._epoch, tuple(batch), 0, expires)])[0]
        if version is not None:
            self._mark = 1 << shard_header.VERSION_BITS | version
            for shard in (name for layer in self.layers for name in layer.shard_keys):
                self._store.execute([MarkForgotten(shard, self._epoch, version)])

    def _forgotten(self) -> Iterator[list[tuple[bytes, int]]]:
        """Yield the forgotten items that restored layers hold, in batches."""
        oldest = min((layer.index for layer in self.layers), default=math.inf)
        items = (each for each in self._saved.archive.forgotten() if each[1] >= oldest)
        while batch := list(islice(items, SCAN_BATCH)):
            yield batch

    def _create_shard(self, layer: Layer, key: str) -> None:
        is_sealed, expires = layer != self.layers[-1], self._parameters.expires_at(layer.created)
        creation: Creation = self._store.execute(
            [CreateShard(key, layer.size.shard_bytes, layer.identity.epoch, is_sealed, expires)]
        )[0]
        if creation.outcome == shards.FOREIGN:
            raise foreign_string(key)
        if creation.outcome == shards.FULL:
            raise no_room(self._key, layer.size.memory_bytes, creation.used, creation.limit)

    def _write_counter(self, layer: Layer) -> None:
        """Store a layer's counter: open for the newest layer, closed for the others."""
        counter = self._saved.counter(layer.index)
        if counter is not None:
            granted = granted_of(counter)
            text = str(granted) if layer == self.layers[-1] else closed(granted)
            self._store.execute([SetFieldFenced(self._key, layer.credit_field, text, self._text)])

    def _pieces(self) -> Iterator[tuple[Layer, Piece]]:
        """Yield the pieces of the restored layers."""
        layers = {layer.index: layer for layer in self.layers}
        for piece in self._saved.pieces():
            if piece.layer in layers:
                yield layers[piece.layer], piece

    def _stored_text(self) -> str | None:
        fields: dict[str, str] = self._store.execute([Load(self._key)])[0].fields
        return fields.get(filter_keys.FILTER_FIELD)

    def _lost(self) -> MismatchError:
        return MismatchError(
            f"the restored filter at {self._key!r} was cleared or replaced meanwhile: stop the workers of that crawl, "
            "and run it again"
        )


def _differs(key: str) -> MismatchError:
    return MismatchError(
        f"the bytes of {key!r} differ from the file: the server lost some, or other clients write there, perhaps "
        "workers of an earlier filter. Stop the workers, and run it again"
    )


def no_room(key: str, needed: int, used: int, limit: int) -> RefusedError:
    """Return the error of a server without room for `needed` bytes."""
    use = f"it uses {used:,} of {limit:,} bytes" if limit else "it is full"
    return RefusedError(
        f"Redis has no room for the filter at {key!r}, which needs {needed:,} bytes more ({use}): raise its maxmemory "
        "or delete other data, and run it again"
    )


@dataclass(frozen=True)
class Restored:
    """The outcome of a restore.

    Attributes:
        layers: number of restored layers.
        left_out: number of expired layers in the file.
        written: bytes of bits.
        granted: credit granted to workers, in items.
        forgotten: number of forgotten items.
    """

    layers: int
    left_out: int
    written: int
    granted: int
    forgotten: int


def restore(
    store: Store,
    client: Any,
    key: str,
    saved: SavedFilter,
    *,
    overwrite: bool,
    advance: Advance = lambda _: None,
) -> Restored:
    """Restore a saved filter to a key; a stopped restore can be run again.

    Args:
        store: the store of the filter.
        client: a client of the same server.
        key: the key of the filter.
        saved: the filter in the file.
        overwrite: whether to delete an existing filter first.
        advance: called with the bytes of each written piece, and of each compared one.

    Returns:
        The outcome.

    Raises:
        ConfigError: the key is not empty, and its contents may not be overwritten.
        MismatchError: the bytes differ from the file, or the filter was replaced meanwhile.
        RefusedError: the server has no room for the filter.
        WrongTypeError: the key holds foreign data.
    """
    contents = key_contents.inspect_key(store, key)
    writer = FilterWriter(store, key, saved, contents.now, advance, Placement.on(client, key, None))
    is_empty = _is_empty(store, contents, writer)
    if not is_empty:
        _require_overwritable(contents, saved, overwrite=overwrite)
    freed = sum(layer.size.memory_bytes for layer in contents.filter.layers) if contents.filter else 0
    needed = sum(layer.size.memory_bytes for layer in writer.layers) - freed
    _require_memory(client, key, needed)
    if not is_empty and not key_contents.delete_contents(store, contents):
        raise ConfigError(
            f"the key {key!r} holds other data by now, which stays: give another key by --key, or run this again to "
            "overwrite that data"
        )
    writer.write()
    writer.compare()
    writer.finish()
    return writer.outcome


def _is_empty(store: Store, contents: KeyContents, writer: FilterWriter) -> bool:
    """Return whether nothing has to be deleted. Raises a WrongTypeError if a shard key holds foreign data."""
    keys = [key for layer in writer.layers for key in layer.shard_keys]
    is_empty = contents.kind == key_contents.NOTHING
    for key, inspection in zip(keys, store.execute([InspectShard(key) for key in keys]), strict=True):
        if inspection.kind == shards.FOREIGN:
            raise foreign_string(key)
        is_empty = is_empty and inspection.kind != shards.SHARD
    return is_empty


def _require_overwritable(contents: KeyContents, saved: SavedFilter, *, overwrite: bool) -> None:
    """Refuse to delete a SET, or without `overwrite` anything but the remains of a restore of this file."""
    found = contents.filter
    is_ours = (
        found is not None and found.unfinished == ACTION and found.identity.hash_key == saved.filter.identity.hash_key
    )
    if not overwrite and not is_ours:
        raise ConfigError(
            f"the key {contents.key!r} holds {contents.description}: give another key by --key, or --overwrite, which "
            "deletes it first"
        )
    if contents.kind == key_contents.SET:
        raise WrongTypeError(
            f"the key {contents.key!r} holds a SET of {contents.members:,} members, as scrapy-redis leaves it: use "
            "another key, import it by `scrapy bloom import`, or delete it by `scrapy bloom clear`"
        )


def _require_memory(client: Any, key: str, needed: int) -> None:
    """Refuse a server without room for `needed` bytes. A cluster, or a server that denies INFO, counts as roomy."""
    if is_cluster(client):
        return
    try:
        ((_, info),) = nodes(client)
    except (*FAULTS, OSError):
        return
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if limit > 0 and not evicts(info, expires=False) and used + needed > limit:
        raise no_room(key, needed, used, limit)
