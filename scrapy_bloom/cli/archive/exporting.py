"""Export a filter to a file while crawls use it; the file gets its name once all of it is on disk.

Bits are only ever set while a layer lives. So the file has all that was in the filter before its first bit was read.
The counters are read after the last one, and cover all that was read.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from scrapy_bloom.cli.archive.file_format import PIECE_BYTES, ArchiveWriter, Piece
from scrapy_bloom.errors import ConfigError, MismatchError, WrongTypeError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import shard_header
from scrapy_bloom.storage.chunks import ReadPiece
from scrapy_bloom.storage.counters import granted_of
from scrapy_bloom.storage.operation import Store, run_steps
from scrapy_bloom.storage.shard_header import HEADER_BYTES
from scrapy_bloom.storage.shards import InspectShard

# Nobody else may read it: what it is written for is secret.
_PRIVATE = 0o600


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Give a private file to write to, which is `path` when the block has ended; until then it has `.part` behind that.

    An error deletes the part. A process that is killed leaves it, and the next one takes it.

    Raises:
        ConfigError: there is a file, and it shall not be overwritten; or another process writes it.
    """
    _refuse_existing(path, overwrite)
    part = path.with_name(f"{path.name}.part")
    with os.fdopen(_open_alone(part), "wb") as file:
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


def _open_alone(part: Path) -> int:
    """Return the descriptor of a file that no other process has, and that was not renamed meanwhile."""
    import fcntl  # noqa: PLC0415  # not on Windows, where the rest works

    while True:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, _PRIVATE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, _PRIVATE)
            if os.path.samestat(os.fstat(descriptor), part.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(f"{part}: another process writes it; wait for that, or give another path") from None
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Advance = Callable[[int], object]


class LostShardError(MismatchError):
    """Raised when a shard of a filter is not there, or is another filter's."""


@dataclass(frozen=True)
class Exported:
    """The outcome of an export.

    Attributes:
        layers: layers in the file.
        read: bytes of their bits.
        granted: items that they have given room for.
        file_bytes: bytes of the file.
    """

    layers: int
    read: int
    granted: int
    file_bytes: int


def export(
    store: Store, found: StoredFilter, path: Path, *, overwrite: bool = False, advance: Advance = lambda _: None
) -> Exported:
    """Write a filter to a file; `advance` is told the bytes that were read.

    Raises:
        ConfigError: there is such a file, and it shall not be overwritten.
        MismatchError: the filter lost a shard, or was replaced meanwhile.
        WrongTypeError: it is not complete.
        OSError: the file cannot be written.
    """
    _require_finished(found)
    layers = _complete_layers(store, found)
    described = {
        "key": found.key,
        "filter": found.text,
        "layers": {str(layer.index): found.fields[layer.field] for layer in layers},
        "began": found.now,
    }
    with new_file(path, overwrite=overwrite) as file:
        writer = ArchiveWriter(file, described)
        whole = [layer for layer in layers if _write_layer(store, found, layer, writer, advance)]
        after = _again(store, found)
        counters = {layer.index: after.fields.get(layer.credit_field) for layer in whole}
        writer.end({"counters": {str(index): text for index, text in counters.items()}, "ended": after.now})
    return Exported(
        layers=len(whole),
        read=sum(layer.size.bits // 8 for layer in whole),
        granted=sum(granted_of(text) for text in counters.values() if text is not None),
        file_bytes=path.stat().st_size,
    )


def _require_finished(found: StoredFilter) -> None:
    """Refuse a filter that an action is filling.

    Raises:
        WrongTypeError: it is one.
    """
    if found.unfinished is not None:
        raise WrongTypeError(
            f"the filter at {found.key!r} is not complete: `scrapy bloom {found.unfinished}` is filling it, or was "
            "stopped. Wait for it, or run it again"
        )


def bits_of(layer: Layer) -> Iterator[tuple[int, str, int, int]]:
    """Yield the shard, its key, and the first byte and the one behind the last, of each piece of a layer."""
    for shard, key in enumerate(layer.shard_keys):
        for start in range(HEADER_BYTES, layer.size.shard_bytes, PIECE_BYTES):
            yield shard, key, start, min(start + PIECE_BYTES, layer.size.shard_bytes)


def read_bits(store: Store, layer: Layer, key: str, start: int, end: int) -> bytes:
    """Return bytes of a shard.

    Raises:
        LostShardError: the shard is not there, or is another filter's.
    """
    # Its header comes last: whoever has it then had it when the bits were read.
    data: bytes
    data, header = store.execute([ReadPiece(key, start, end - 1), ReadPiece(key, 0, HEADER_BYTES - 1)])
    identity = shard_header.identity(int.from_bytes(header, "big"))
    if len(data) != end - start or not shard_header.is_of(identity, layer.identity.epoch):
        raise LostShardError(
            f"the filter at {layer.key!r} has lost its shard {key!r} (cleared, evicted or flushed?), and what that "
            "knew: nothing that is complete can be made of it. A crawl that goes on with it makes the shard anew"
        )
    return data


def _complete_layers(store: Store, found: StoredFilter) -> list[Layer]:
    """Return the layers of a filter, but for one that is just being made: nobody has added to it."""
    return [layer for layer in found.layers if not _is_being_made(store, found, layer)]


def _is_being_made(store: Store, found: StoredFilter, layer: Layer) -> bool:
    if layer != found.layers[-1] or layer.credit_field in found.fields:
        return False
    looks: list[Any] = store.execute([InspectShard(key) for key in layer.shard_keys])
    return not all(shard_header.is_of(look.identity, layer.identity.epoch) for look in looks)


def _write_layer(store: Store, found: StoredFilter, layer: Layer, writer: ArchiveWriter, advance: Advance) -> bool:
    """Write the bits of a layer, and return whether it was there until the end: with a TTL it may be over."""
    try:
        for shard, key, start, end in bits_of(layer):
            writer.add(Piece(layer.index, shard, start, read_bits(store, layer, key, start, end)))
            advance(end - start)
    except LostShardError:
        if layer not in _again(store, found).layers:
            return False
        raise
    return True


def _again(store: Store, found: StoredFilter) -> StoredFilter:
    """Look at a filter again, and refuse another one that has taken its place."""
    now = run_steps(stored_filter.read(found.key), store.execute)
    if now is None or now.text != found.text:
        raise MismatchError(
            f"the filter at {found.key!r} was replaced or cleared while it was read; run it again for the one that is "
            "there now"
        )
    _require_finished(now)
    return now
