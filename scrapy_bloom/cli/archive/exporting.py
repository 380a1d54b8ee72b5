"""Export a filter to a file while crawls use it; the file gets its name once it is complete on disk.

A living layer only ever sets bits, so the file has all additions made before the export began. The counters are read
after the last bit, so they cover all bits in the file.

The forgotten items are read after the last bit as well. So an item that is forgotten meanwhile is new to the restored
filter, and an item whose bits are not in the file is new there in any case.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from scrapy_bloom.cli.archive.file_format import Advance, ArchiveWriter, Piece, piece_ranges
from scrapy_bloom.errors import ConfigError, MismatchError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.stored_filter import StoredFilter, inspect_forgotten, read_forgotten
from scrapy_bloom.storage import forgotten, shard_header
from scrapy_bloom.storage.counters import granted_of
from scrapy_bloom.storage.operation import Store
from scrapy_bloom.storage.shard_header import HEADER_BYTES
from scrapy_bloom.storage.shards import Inspection, InspectShard, ReadPiece
from scrapy_bloom.storage.stores import run_steps

# The file holds the filter's secret seed.
_PRIVATE = 0o600


@contextlib.contextmanager
def atomic_file(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a private file for writing; it is named `<path>.part` until the block ends.

    An error deletes the part. A killed process leaves it to the next one.

    Raises:
        ConfigError: the file exists and may not be overwritten, or another process is writing it.
    """
    _refuse_existing(path, overwrite)
    part = path.with_name(f"{path.name}.part")
    with os.fdopen(_open_locked(part), "wb") as file:
        try:
            file.truncate()
            yield file
            file.flush()
            os.fsync(file.fileno())
            _refuse_existing(path, overwrite)
            part.rename(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    _sync_directory(path.parent)


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if not overwrite and path.exists():
        raise ConfigError(f"{path}: must not exist; give another path, or --overwrite")


def _open_locked(part: Path) -> int:
    """Open and lock a file; retry if another process has renamed it meanwhile."""
    import fcntl  # noqa: PLC0415  # Windows has none, and needs it here only

    while True:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, _PRIVATE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, _PRIVATE)
            if os.path.samestat(os.fstat(descriptor), part.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(f"{part}: another process is writing it; wait for it, or give another path") from None
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LostShardError(MismatchError):
    """Raised when a shard is missing or belongs to another filter."""


@dataclass(frozen=True)
class Exported:
    """The outcome of an export.

    Attributes:
        layers: number of layers in the file.
        read: bytes of bits.
        granted: credit granted to workers, in items.
        forgotten: number of forgotten items.
        file_bytes: size of the file.
    """

    layers: int
    read: int
    granted: int
    forgotten: int
    file_bytes: int


def export(
    store: Store, found: StoredFilter, path: Path, *, overwrite: bool = False, advance: Advance = lambda _: None
) -> Exported:
    """Export a filter to a file.

    Args:
        store: the store of the filter.
        found: the stored filter.
        path: the path of the file.
        overwrite: whether to replace an existing file.
        advance: called with the number of bytes of each piece.

    Returns:
        The outcome.

    Raises:
        ConfigError: the file exists and may not be overwritten.
        MismatchError: the filter lost a shard, or was replaced meanwhile.
        WrongTypeError: the filter is incomplete.
        OSError: the file cannot be written.
    """
    found.require_finished()
    layers = [layer for layer in found.layers if not _is_being_created(store, found, layer)]
    version = _version(store, found)
    header = {
        "key": found.key,
        "filter": found.text,
        "layers": {str(layer.index): found.fields[layer.field] for layer in layers},
        "began": found.now,
    }
    with atomic_file(path, overwrite=overwrite) as file:
        writer = ArchiveWriter(file, header, is_forgetful=version is not None)
        complete = [layer for layer in layers if _write_layer(store, found, layer, writer, advance)]
        after = _reread(store, found)
        number = _write_forgotten(store, found, writer, version)
        counters = {str(layer.index): after.fields.get(layer.credit_field) for layer in complete}
        writer.end({"counters": counters, "ended": after.now})
    return Exported(
        layers=len(complete),
        read=sum(layer.size.bits // 8 for layer in complete),
        granted=sum(granted_of(text) for text in counters.values() if text is not None),
        forgotten=number,
        file_bytes=path.stat().st_size,
    )


def _read_bits(store: Store, layer: Layer, key: str, start: int, end: int) -> bytes:
    """Return bytes of a shard.

    Raises:
        LostShardError: the shard is missing or belongs to another filter.
    """
    # The header is read last: if it is the filter's then, the bits were the filter's before.
    data: bytes
    data, header = store.execute([ReadPiece(key, start, end - 1), ReadPiece(key, 0, HEADER_BYTES - 1)])
    identity = shard_header.identity(int.from_bytes(header, "big"))
    if len(data) != end - start or not shard_header.is_of(identity, layer.identity.epoch):
        raise LostShardError(
            f"the filter at {layer.key!r} has lost its shard {key!r} (cleared, evicted or flushed?) and its requests: "
            "a complete export is impossible. A running crawl creates the shard again, empty"
        )
    return data


def _is_being_created(store: Store, found: StoredFilter, layer: Layer) -> bool:
    """Return whether a worker is creating the last layer, which has no additions yet."""
    if layer != found.layers[-1] or layer.credit_field in found.fields:
        return False
    inspections: list[Inspection] = store.execute([InspectShard(key) for key in layer.shard_keys])
    return not all(shard_header.is_of(each.identity, layer.identity.epoch) for each in inspections)


def _write_layer(store: Store, found: StoredFilter, layer: Layer, writer: ArchiveWriter, advance: Advance) -> bool:
    """Write the bits of a layer; return False if it expired meanwhile."""
    try:
        for shard, key, start, end in piece_ranges(layer):
            writer.add(Piece(layer.index, shard, start, _read_bits(store, layer, key, start, end)))
            advance(end - start)
    except LostShardError:
        if layer not in _reread(store, found).layers:
            return False
        raise
    return True


def _version(store: Store, found: StoredFilter, *before: int) -> int | None:
    """Return the version of a filter's forgotten items, or None; `before` is that of an earlier reading.

    Raises:
        MismatchError: the set of the items was lost.
    """
    items, is_lost = run_steps(inspect_forgotten(found), store.execute)
    if is_lost or items.was_lost(before):
        raise MismatchError(
            f"the filter at {found.key!r} has lost its forgotten items (evicted or deleted?), and the file would call "
            "them seen: a complete export is impossible. A running crawl begins the filter anew"
        )
    return items.version


def _write_forgotten(store: Store, found: StoredFilter, writer: ArchiveWriter, before: int | None) -> int:
    """Write the forgotten items and return their number; `before` is their version before the bits were read."""
    if before is None:
        if _version(store, found) is not None:
            raise MismatchError(f"items of the filter at {found.key!r} were first forgotten meanwhile: run it again")
        return 0
    members = run_steps(read_forgotten(found.key), store.execute)
    # Without the set by now, it may have been lost before it was read.
    _version(store, found, before)
    start = forgotten.member(found.identity.epoch, b"")
    items = [name for name in members if name.startswith(start)]
    for name in items:
        writer.add_forgotten(name.removeprefix(start), members[name])
    return len(items)


def _reread(store: Store, found: StoredFilter) -> StoredFilter:
    """Read a filter again; refuse another filter in its place."""
    now = run_steps(stored_filter.read(found.key), store.execute)
    if now is None or now.text != found.text:
        raise MismatchError(
            f"the filter at {found.key!r} was replaced or cleared while it was read; run it again for the present one"
        )
    now.require_finished()
    return now
