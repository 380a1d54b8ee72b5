"""The import of a file of fingerprints, or of URLs, into a filter that crawlers may use meanwhile.

The file is read through before anything is written: what is wrong in its last line is said at once. Adding a line again
changes nothing, so that an import that was ended is run again from the first line.
"""

import re
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from w3lib.url import canonicalize_url

from scrapy_bloom.cli.importing.import_state import ImportReport, Progress
from scrapy_bloom.cli.importing.passes import BATCH
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.bloom_filter import BloomFilter

FINGERPRINTS, URLS = "fingerprints", "URLs"
# The file in which Scrapy's own dupefilter keeps its fingerprints, and the scheme of those.
SEEN_FILE = "requests.seen"
SCHEME_OF_SEEN_FILES = "scrapy.utils.request.RequestFingerprinter"

# No line is longer: one that is not ended is not read into memory as a whole.
_MAX_LENGTH = 1 << 20
_FINGERPRINT, _URL = re.compile(rb"[0-9a-fA-F]{40}"), re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_ALLOWED = "a fingerprint of 40 hexadecimal digits, or a URL with its scheme, such as https://example.com/"


class Line(NamedTuple):
    """A line of a file that is not empty: its number, from 1 on, its text, and its bytes with those before it."""

    number: int
    text: bytes
    end: int


def refuse_seen_file(path: Path, scheme: str) -> None:
    """Refuse Scrapy's file where requests get other fingerprints than Scrapy's."""
    if path.name == SEEN_FILE and scheme != SCHEME_OF_SEEN_FILES:
        raise ConfigError(
            f"--from-file {path}: {SEEN_FILE} has Scrapy's fingerprints, and the requests of this project get those of "
            f"{scheme!r}: none would be found again. Set REQUEST_FINGERPRINTER_CLASS = {SCHEME_OF_SEEN_FILES!r}"
        )


def kind_of(path: Path) -> str:
    """Return what the lines of a file are.

    Raises:
        ConfigError: a line is something else than the first one, or the file is empty.
    """
    if not path.exists():
        raise ConfigError(f"--from-file {path}: there is no such file")
    if not path.is_file():
        raise ConfigError(f"--from-file {path}: must be a file, which is read twice; write a pipe to one first")
    kind = None
    for line in _lines(path):
        kind = kind or _first_kind(path, line)
        if not _IS[kind](line.text):
            raise ConfigError(
                f"--from-file {path}: line {line.number} is {_shown(line.text)}, and the first line is one of {kind}: "
                f"each line must be of the same kind, {_ALLOWED}. Nothing was added"
            )
    if kind is None:
        raise ConfigError(f"--from-file {path}: the file is empty; each line must be {_ALLOWED}")
    return kind


def import_file(
    path: Path, open_filter: Callable[[], BloomFilter], item_of_url: Callable[[str], bytes], progress: Progress
) -> ImportReport:
    """Add the lines of a file to a filter, which is opened when all of them are known to be allowed.

    URLs become items by `item_of_url`.

    Raises:
        ConfigError: the file has a line that is not allowed; nothing was added.
    """
    began = time.monotonic()
    make = _lower if kind_of(path) == FINGERPRINTS else _by_url(item_of_url)
    bloom = open_filter()
    progress.begin(path.name, path.stat().st_size)
    number = added = end = 0
    lines = _lines(path)
    while batch := list(islice(lines, BATCH)):
        added += sum(bloom.add_many([make(line.text) for line in batch]))
        progress.advance(batch[-1].end - end)
        number, end = number + len(batch), batch[-1].end
    bloom.close()
    seconds = time.monotonic() - began
    return ImportReport(
        key=bloom.key,
        source=str(path),
        members=number,
        added=added,
        already_known=number - added,
        caught_up=0,
        checked=0,
        seconds=round(seconds, 3),
        members_a_second=round(number / seconds, 1),
    )


def _lines(path: Path) -> Iterator[Line]:
    """Yield the lines that are not empty."""
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LENGTH), b""), start=1):
            end += len(line)
            if line.strip():
                yield Line(number, line.strip(), end)


def _first_kind(path: Path, line: Line) -> str:
    for kind, is_one in _IS.items():
        if is_one(line.text):
            return kind
    raise ConfigError(f"--from-file {path}: line {line.number} is {_shown(line.text)}; it must be {_ALLOWED}")


def _is_fingerprint(text: bytes) -> bool:
    return _FINGERPRINT.fullmatch(text) is not None


def _is_url(text: bytes) -> bool:
    """Return whether a line is a URL of which a request can be made."""
    try:
        canonicalize_url(url := text.decode())
        urlsplit(url).port  # noqa: B018  # w3lib 2.3 looks at it in requests only
    except ValueError:  # also one that is not UTF-8, or has a port that is none
        return False
    return _URL.fullmatch(url) is not None


_IS = {FINGERPRINTS: _is_fingerprint, URLS: _is_url}


def _shown(text: bytes) -> str:
    """Return a line as an error shows it: the begin is enough to find it."""
    most = 60
    return repr(text[:most].decode(errors="replace")) + (" …" if len(text) > most else "")


def _lower(text: bytes) -> bytes:
    return text.lower()


def _by_url(item_of_url: Callable[[str], bytes]) -> Callable[[bytes], bytes]:
    return lambda text: item_of_url(text.decode())
