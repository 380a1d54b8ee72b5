"""The lines of a file of fingerprints or URLs, and the records of Scrapy's `requests.seen`, as lines, too.

Scrapy 2.13 writes a line of hexadecimal digits for each fingerprint. Newer versions write its length in two bytes, and
its bytes. A killed crawl may leave the last one incomplete: Scrapy ignores it, and so does `read_lines`.
"""

import logging
import re
from collections.abc import Generator, Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple

from scrapy_bloom._format import plural
from scrapy_bloom.errors import ConfigError

logger = logging.getLogger(__name__)

# The file of Scrapy's own dupefilter.
SEEN_FILE = "requests.seen"
FINGERPRINT = re.compile(rb"[0-9a-fA-F]{40}")

# A file without line ends is not read into memory as a whole.
_MAX_LINE_BYTES = 1 << 20
# The first byte of a record's length. No text begins with it.
_RECORD = b"\0"
_LENGTH_BYTES, _FINGERPRINT_BYTES = 2, 20
_RECORD_BYTES = _LENGTH_BYTES + _FINGERPRINT_BYTES
_INCOMPLETE = re.compile(rb"[0-9a-fA-F]{1,39}")


class Line(NamedTuple):
    """A line that is not empty: its number, from 1, its text, and the position after it in the file."""

    number: int
    text: bytes
    end: int


def read_lines(name: str, file: BinaryIO, *, warns: bool = True) -> Iterator[Line]:
    """Yield the lines that are not empty, or each record as a line of hexadecimal digits.

    Args:
        name: the name of the file in messages.
        file: a file at its beginning, which may be a pipe.
        warns: whether to log that the last fingerprint is incomplete.

    Raises:
        ConfigError: a record is not a fingerprint of 20 bytes.
    """
    start = file.read(1)
    incomplete = yield from _records(name, file) if start == _RECORD else _lines(start, file)
    if incomplete and warns:
        logger.warning(
            "--from-file %s: the last fingerprint is incomplete (%s), as a killed crawl leaves it: it is ignored, as "
            "Scrapy does",
            name,
            plural(incomplete, "byte"),
        )


def _lines(start: bytes, file: BinaryIO) -> Generator[Line, None, int]:
    """Yield the lines, and return the length of an incomplete fingerprint at the end."""
    end, previous = 0, b""
    first = start if start == b"\n" else start + file.readline(_MAX_LINE_BYTES)
    others = iter(lambda: file.readline(_MAX_LINE_BYTES), b"")
    for number, piece in enumerate(chain([first], others), start=1):
        end += len(piece)
        text = piece.strip()
        if not piece.endswith(b"\n") and FINGERPRINT.fullmatch(previous) and _INCOMPLETE.fullmatch(text):
            return len(text)
        if text:
            yield Line(number, text, end)
            previous = text
    return 0


def _records(name: str, file: BinaryIO) -> Generator[Line, None, int]:
    """Yield the records behind the first byte, and return the length of an incomplete one at the end."""
    number, record = 1, _RECORD + file.read(_RECORD_BYTES - 1)
    while record:
        length = int.from_bytes(record[:_LENGTH_BYTES], "big")
        if len(record) >= _LENGTH_BYTES and length != _FINGERPRINT_BYTES:
            advice = f". To use those before it, keep the first {(number - 1) * _RECORD_BYTES} bytes of the file"
            raise ConfigError(
                f"--from-file {name}: the file is binary, and the length of its record {number} is {length:,} bytes: "
                f"each must be a fingerprint of {_FINGERPRINT_BYTES} bytes, as Scrapy writes {SEEN_FILE}. Nothing was "
                f"changed{advice if number > 1 else ''}"
            )
        if len(record) < _RECORD_BYTES:
            return len(record)
        yield Line(number, record[_LENGTH_BYTES:].hex().encode(), number * _RECORD_BYTES)
        number, record = number + 1, file.read(_RECORD_BYTES)
    return 0
