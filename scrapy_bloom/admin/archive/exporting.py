"""Writing a filter to a file, while crawls go on with it.

Bits are only ever set while a layer lives. So the file has all that was in the filter before its first bit was read.
The counters are read after the last one, and cover all that was read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy_bloom.admin.archive.format import PIECE_BYTES, ArchiveWriter, Piece
from scrapy_bloom.admin.archive.new_file import new_file
from scrapy_bloom.errors import MismatchError, WrongTypeError
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.steps import carry_out
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.storage import layout
from scrapy_bloom.storage.base import Store
from scrapy_bloom.storage.counters import granted_of
from scrapy_bloom.storage.layout import HEADER_BYTES
from scrapy_bloom.storage.pieces import ReadPiece
from scrapy_bloom.storage.shards import InspectShard

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
    identity = layout.identity(int.from_bytes(header, "big"))
    if len(data) != end - start or not layout.is_of(identity, layer.identity.epoch):
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
    return not all(layout.is_of(look.identity, layer.identity.epoch) for look in looks)


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
    now = carry_out(stored.read(found.key), store.execute)
    if now is None or now.text != found.text:
        raise MismatchError(
            f"the filter at {found.key!r} was replaced or cleared while it was read; run it again for the one that is "
            "there now"
        )
    _require_finished(now)
    return now
