"""The file of a filter, format 1: a line of its own, then records, then the SHA-256 of all that. Streamed both ways.

A record is a letter, the number of bytes that follow (32 bits, big endian), and these bytes:

- `H`, the first: JSON of the filter, as it was before its bits were read.
- `P`, any number: a piece of a shard. Layer (64 bits), shard (32) and first byte (64) stand before its bytes, which are
  compressed by zlib. The header of the shard is not among them.
- `T`, the last: JSON of the filter, as it was after that.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from scrapy_bloom.errors import ConfigError

FORMAT = 1
# No piece has more bytes: a server answers for so many in a millisecond.
PIECE_BYTES = 1024 * 1024

_MAGIC = b"scrapy-bloom export "
_HEADER, _PIECE, _TRAILER = b"H", b"P", b"T"
_RECORD = struct.Struct(">cI")
_PLACE = struct.Struct(">QIQ")
_DIGEST_BYTES = hashlib.sha256().digest_size
# More than any record has: a damaged length must not ask for gigabytes.
_MAX_RECORD_BYTES = 16 * PIECE_BYTES
# Bits of which half are set cannot be compressed, and sparse ones are at the lowest level, too.
_LEVEL = 1


class Piece(NamedTuple):
    """Bytes of a shard from the byte `start` on."""

    layer: int
    shard: int
    start: int
    data: bytes


class ArchiveWriter:
    """Writes the records of a filter to a file."""

    def __init__(self, file: BinaryIO, described: Mapping[str, Any]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._write(_MAGIC + b"%d\n" % FORMAT)
        self._write_record(_HEADER, json.dumps(described).encode())

    def add(self, piece: Piece) -> None:
        """Write a piece of a shard."""
        place = _PLACE.pack(piece.layer, piece.shard, piece.start)
        self._write_record(_PIECE, place + zlib.compress(piece.data, _LEVEL))

    def end(self, described: Mapping[str, Any]) -> None:
        """Write what ends the file."""
        self._write_record(_TRAILER, json.dumps(described).encode())
        self._file.write(self._digest.digest())

    def _write_record(self, kind: bytes, content: bytes) -> None:
        self._write(_RECORD.pack(kind, len(content)) + content)

    def _write(self, content: bytes) -> None:
        self._digest.update(content)
        self._file.write(content)


class Archive:
    """A file that `ArchiveWriter` wrote, open for reading; `path` is for the refusals.

    Attributes:
        header: the filter before its bits were read; empty before `verify`, as is the trailer.
        trailer: the filter after that.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._require_format()
        self._start = file.tell()
        self.header: Mapping[str, Any] = {}
        self.trailer: Mapping[str, Any] = {}

    def verify(self, advance: Callable[[int], object]) -> None:
        """Read the whole file, and refuse one that is not as it was written; `advance` is told the bytes of pieces.

        Raises:
            ConfigError: it was cut off or altered, or its first and last records are no filter's.
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
        """Yield the pieces in the order in which they were written."""
        self._file.seek(self._start)
        for kind, content in self._records():
            if kind == _PIECE:
                yield self._piece(content)
            elif kind == _TRAILER:
                return

    def impossible(self) -> ConfigError:
        """Return the error of a file that `scrapy bloom export` has not written, though its checksum is right."""
        return ConfigError(
            f"{self._path}: its content is no filter's, though its checksum is right; nothing was written. Export the "
            "filter again by `scrapy bloom export`"
        )

    def _damaged(self) -> ConfigError:
        """Return the error of a file that is not as it was written."""
        return ConfigError(
            f"{self._path}: was cut off or altered; nothing was written. Copy it again from where it was made, or "
            "export the filter again"
        )

    def _require_format(self) -> None:
        line = self._file.readline(len(_MAGIC) + 10)
        number = line.removeprefix(_MAGIC).strip()
        if not line.startswith(_MAGIC) or not line.endswith(b"\n") or not number.isdigit():
            raise ConfigError(f"{self._path}: must be a file that `scrapy bloom export` wrote; give the path of one")
        if int(number) != FORMAT:
            raise ConfigError(
                f"{self._path}: has format {int(number)}, and this scrapy-bloom reads format {FORMAT}; upgrade "
                "scrapy-bloom here"
            )

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        while start := self._file.read(_RECORD.size):
            if len(start) < _RECORD.size:
                raise self._damaged()
            kind, length = _RECORD.unpack(start)
            content = self._file.read(length) if length <= _MAX_RECORD_BYTES else b""
            if len(content) < length or kind not in (_HEADER, _PIECE, _TRAILER):
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
            layer, shard, start = _PLACE.unpack_from(content)
            data = zlib.decompressobj().decompress(content[_PLACE.size :], PIECE_BYTES + 1)
        except (struct.error, zlib.error):
            raise self.impossible() from None
        return Piece(layer, shard, start, data)
