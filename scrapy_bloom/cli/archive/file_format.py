"""Read and write the file of a filter, format 1 or 2, as a stream.

A line with the format, records, and the SHA-256 of both. A record is a letter, the length of its content (32 bits, big
endian), and the content:

- `H`, first: JSON of the filter before its bits were read.
- `P`, any number: a chunk of a shard. Layer (64 bits), shard (32 bits) and first byte (64 bits), then the bytes of the
  chunk, compressed by zlib. The header of a shard is not in the file.
- `F`, any number, in format 2: a forgotten item. The newest layer that held it (64 bits), and its bytes.
- `T`, last: JSON of the filter after its bits were read.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from scrapy_bloom.errors import BloomError, ConfigError, MismatchError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.layer import DAMAGED, Layer
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.counters import granted_of
from scrapy_bloom.storage.shard_header import HEADER_BYTES

Advance = Callable[[int], object]

# A filter in which nothing was forgotten has format 1, which earlier releases restore.
FORMATS = (1, 2)
# A server reads or writes so many bytes in a millisecond.
MAX_PIECE_BYTES = 1024 * 1024

_MAGIC = b"scrapy-bloom export "
_HEADER, _PIECE, _FORGOTTEN, _TRAILER = b"H", b"P", b"F", b"T"
_RECORD = struct.Struct(">cI")
_PIECE_HEADER, _FORGOTTEN_HEADER = struct.Struct(">QIQ"), struct.Struct(">Q")
_DIGEST_BYTES = hashlib.sha256().digest_size
# Longer than any record, so that a damaged length allocates no gigabytes.
_MAX_RECORD_BYTES = 16 * MAX_PIECE_BYTES
# Bits of a full layer are incompressible, and sparse bits compress well at the lowest level.
_COMPRESSION_LEVEL = 1


class Piece(NamedTuple):
    """A chunk of a shard from the byte `start` on."""

    layer: int
    shard: int
    start: int
    data: bytes


def piece_ranges(layer: Layer) -> Iterator[tuple[int, str, int, int]]:
    """Yield the ranges of a layer's pieces: shard, its key, first byte, and the byte after the last."""
    for shard, key in enumerate(layer.shard_keys):
        for start in range(HEADER_BYTES, layer.size.shard_bytes, MAX_PIECE_BYTES):
            yield shard, key, start, min(start + MAX_PIECE_BYTES, layer.size.shard_bytes)


class ArchiveWriter:
    """Writes the header, the pieces, the forgotten items and the trailer of a filter to a file."""

    def __init__(self, file: BinaryIO, header: Mapping[str, Any], *, is_forgetful: bool) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._write(_MAGIC + b"%d\n" % FORMATS[is_forgetful])
        self._write_record(_HEADER, json.dumps(header).encode())

    def add(self, piece: Piece) -> None:
        """Write a piece of a shard."""
        header = _PIECE_HEADER.pack(piece.layer, piece.shard, piece.start)
        self._write_record(_PIECE, header + zlib.compress(piece.data, _COMPRESSION_LEVEL))

    def add_forgotten(self, item: bytes, layer: int) -> None:
        """Write a forgotten item."""
        self._write_record(_FORGOTTEN, _FORGOTTEN_HEADER.pack(layer) + item)

    def end(self, trailer: Mapping[str, Any]) -> None:
        """Write the trailer and the checksum."""
        self._write_record(_TRAILER, json.dumps(trailer).encode())
        self._file.write(self._digest.digest())

    def _write_record(self, kind: bytes, content: bytes) -> None:
        self._write(_RECORD.pack(kind, len(content)) + content)

    def _write(self, content: bytes) -> None:
        self._digest.update(content)
        self._file.write(content)


class Archive:
    """A file of `ArchiveWriter`, open for reading; errors name its `path`.

    Attributes:
        header: the filter before its bits were read; empty before `verify`.
        trailer: the filter after its bits were read; empty before `verify`.

    Raises:
        ConfigError: the file is another program's, or has a newer format.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._require_format()
        self._start = file.tell()
        self.header: Mapping[str, Any] = {}
        self.trailer: Mapping[str, Any] = {}

    def verify(self, advance: Advance) -> None:
        """Verify the checksum, and read the header and the trailer; `advance` is called with the bytes of each record.

        Raises:
            ConfigError: the file was truncated or altered, or describes no filter.
        """
        self._file.seek(0)
        digest = hashlib.sha256(self._file.read(self._start))
        first, last = None, (b"", b"")
        for kind, content in self._records():
            digest.update(_RECORD.pack(kind, len(content)) + content)
            advance(len(content))
            last = kind, content
            first = first or last
            if kind == _TRAILER:
                break
        if self._file.read(_DIGEST_BYTES + 1) != digest.digest():
            raise self._damaged()
        self.header, self.trailer = self._object(first, _HEADER), self._object(last, _TRAILER)

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in the order of the file."""
        self._file.seek(self._start)
        for kind, content in self._records():
            if kind == _PIECE:
                yield self._piece(content)
            elif kind == _TRAILER:
                return

    def forgotten(self) -> Iterator[tuple[bytes, int]]:
        """Yield the forgotten items, each with the newest layer that held it."""
        self._file.seek(self._start)
        for kind, content in self._records():
            if kind == _FORGOTTEN:
                if len(content) < _FORGOTTEN_HEADER.size:
                    raise self.impossible()
                yield content[_FORGOTTEN_HEADER.size :], *_FORGOTTEN_HEADER.unpack_from(content)
            elif kind == _TRAILER:
                return

    def impossible(self) -> ConfigError:
        """Return the error of a file with a valid checksum that describes no filter."""
        return ConfigError(
            f"{self._path}: describes no filter, though its checksum is valid; nothing was written. Export the filter "
            "again by `scrapy bloom export`"
        )

    def _damaged(self) -> ConfigError:
        return ConfigError(
            f"{self._path}: was truncated or altered; nothing was written. Copy the original file again, or export the "
            "filter again"
        )

    def _require_format(self) -> None:
        line = self._file.readline(len(_MAGIC) + 10)
        number = line.removeprefix(_MAGIC).strip()
        if not line.startswith(_MAGIC) or not line.endswith(b"\n") or not number.isdigit():
            raise ConfigError(f"{self._path}: must be a file of `scrapy bloom export`; give the path of one")
        if int(number) not in FORMATS:
            raise ConfigError(
                f"{self._path}: has format {int(number)}, but this scrapy-bloom reads the formats up to {FORMATS[-1]}: "
                "upgrade scrapy-bloom"
            )

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        while start := self._file.read(_RECORD.size):
            if len(start) < _RECORD.size:
                raise self._damaged()
            kind, length = _RECORD.unpack(start)
            content = self._file.read(length) if length <= _MAX_RECORD_BYTES else b""
            if len(content) < length or kind not in (_HEADER, _PIECE, _FORGOTTEN, _TRAILER):
                raise self._damaged()
            yield kind, content

    def _object(self, record: tuple[bytes, bytes] | None, kind: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(record[1]) if record is not None and record[0] == kind else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self.impossible()
        return found

    def _piece(self, content: bytes) -> Piece:
        try:
            layer, shard, start = _PIECE_HEADER.unpack_from(content)
            data = zlib.decompressobj().decompress(content[_PIECE_HEADER.size :], MAX_PIECE_BYTES + 1)
        except (struct.error, zlib.error):
            raise self.impossible() from None
        return Piece(layer, shard, start, data)


@dataclass(frozen=True)
class SavedFilter:
    """The filter in a verified file; its fields include the counters."""

    archive: Archive
    filter: StoredFilter

    def counter(self, index: int) -> str | None:
        """Return the text of a layer's counter, or None in format 1."""
        return self.filter.fields.get(filter_keys.credit_field(index, self.filter.identity.epoch))

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of the complete layers."""
        indexes = {layer.index for layer in self.filter.layers}
        return (piece for piece in self.archive.pieces() if piece.layer in indexes)


def read(archive: Archive, advance: Advance = lambda _: None) -> SavedFilter:
    """Verify a file and return its filter.

    Raises:
        ConfigError: the file was truncated or altered, or describes no filter.
        MismatchError: the filter has a newer format.
    """
    archive.verify(advance)
    try:
        saved = SavedFilter(archive, _filter_of(archive))
    except MismatchError:
        raise
    except (BloomError, *DAMAGED):
        raise archive.impossible() from None
    expected = (
        (layer.index, shard, start, end)
        for layer in saved.filter.layers
        for shard, _, start, end in piece_ranges(layer)
    )
    for piece in saved.pieces():
        if (piece.layer, piece.shard, piece.start, piece.start + len(piece.data)) != next(expected, None):
            raise archive.impossible()
    if next(expected, None) is not None:
        raise archive.impossible()
    for _ in archive.forgotten():
        pass
    return saved


def _filter_of(archive: Archive) -> StoredFilter:
    header, counters = archive.header, archive.trailer["counters"]
    key, text = str(header["key"]), header["filter"]
    # The fields of the counters have the epoch in their names.
    bare = stored_filter.of_fields(key, text, {}, now=0.0)
    fields = {filter_keys.FILTER_FIELD: text}
    for index, counter in counters.items():
        fields[filter_keys.layer_field(int(index))] = header["layers"][index]
        if counter is not None:
            granted_of(counter)
            fields[filter_keys.credit_field(int(index), bare.identity.epoch)] = counter
    found = stored_filter.of_fields(key, text, fields, now=0.0)
    if len(found.layers) != len(counters):
        raise ValueError("a layer belongs to another filter")
    return found
