"""Import a file of fingerprints or URLs into a filter that workers may use meanwhile.

The whole file is validated before anything is added. Adding a line again changes nothing, so an interrupted import
starts again at the first line.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from w3lib.url import canonicalize_url

from scrapy_bloom._format import plural
from scrapy_bloom.cli.importing.file_lines import FINGERPRINT, SEEN_FILE, Line, read_lines
from scrapy_bloom.cli.importing.import_state import ImportReport, Progress
from scrapy_bloom.cli.importing.passes import SCAN_BATCH
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.bloom_filter import BloomFilter

FINGERPRINTS, URLS = "fingerprints", "URLs"
# The scheme of the fingerprints in `SEEN_FILE`.
SCHEME_OF_SEEN_FILES = "scrapy.utils.request.RequestFingerprinter"

_MAX_SHOWN = 60
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_ALLOWED = "a fingerprint of 40 hexadecimal digits, or a URL with its scheme, such as https://example.com/"


def require_seen_scheme(path: Path, scheme: str) -> None:
    """Raise a ConfigError for Scrapy's file if the project's fingerprints are not Scrapy's."""
    if path.name == SEEN_FILE and scheme != SCHEME_OF_SEEN_FILES:
        raise ConfigError(
            f"--from-file {path}: {SEEN_FILE} has Scrapy's fingerprints, but this project makes those of {scheme!r} "
            f"and would find none of them. Set REQUEST_FINGERPRINTER_CLASS = {SCHEME_OF_SEEN_FILES!r}"
        )


def kind_of(path: Path) -> str:
    """Return the kind of a file's lines, `FINGERPRINTS` or `URLS`.

    Raises:
        ConfigError: the file is missing or empty, or has lines of other or several kinds.
    """
    if not path.exists():
        raise ConfigError(f"--from-file {path}: there is no such file")
    if not path.is_file():
        raise ConfigError(
            f"--from-file {path}: must be a regular file, because it is read twice; write a pipe to a file first"
        )
    return kind_of_lines(str(path), _lines(path, warns=True))


def kind_of_lines(name: str, lines: Iterable[Line]) -> str:
    """Return the kind of all lines of the file of this name. Raises a ConfigError as `kind_of` does."""
    kind = None
    for line in lines:
        kind = kind or _first_kind(name, line)
        if not _IS[kind](line.text):
            raise ConfigError(
                f"--from-file {name}: line {line.number} is {_shown(line.text)}, but the file begins with {kind}: each "
                f"line must be of the same kind, {_ALLOWED}. Nothing was changed"
            )
    if kind is None:
        raise ConfigError(f"--from-file {name}: the file is empty; each line must be {_ALLOWED}")
    return kind


def import_file(
    path: Path, open_filter: Callable[[], BloomFilter], item_of_url: Callable[[str], bytes], progress: Progress
) -> ImportReport:
    """Validate a file, open the filter and add the lines.

    Args:
        path: the file.
        open_filter: opens the filter.
        item_of_url: returns the fingerprint of a URL.
        progress: shows the progress in bytes.

    Returns:
        The report.

    Raises:
        ConfigError: a line is not allowed; nothing was added.
    """
    started = time.monotonic()
    is_url = kind_of(path) == URLS
    bloom = open_filter()
    progress.begin(path.name, path.stat().st_size)
    number = added = end = 0
    lines = _lines(path, warns=False)  # the first reading has warned
    while batch := list(islice(lines, SCAN_BATCH)):
        items = [item_of_url(line.text.decode()) if is_url else line.text.lower() for line in batch]
        added += sum(bloom.add_many(items))
        progress.advance(batch[-1].end - end)
        number, end = number + len(batch), batch[-1].end
    bloom.close()
    seconds = time.monotonic() - started
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


def _lines(path: Path, *, warns: bool) -> Iterator[Line]:
    with path.open("rb") as file:
        yield from read_lines(str(path), file, warns=warns)


def _first_kind(name: str, line: Line) -> str:
    for kind, is_one in _IS.items():
        if is_one(line.text):
            return kind
    raise ConfigError(f"--from-file {name}: line {line.number} is {_shown(line.text)}; it must be {_ALLOWED}")


def _is_fingerprint(text: bytes) -> bool:
    return FINGERPRINT.fullmatch(text) is not None


def _is_url(text: bytes) -> bool:
    """Return whether a line is a URL that Scrapy makes a request of."""
    try:
        canonicalize_url(url := text.decode())
        urlsplit(url).port  # noqa: B018  # w3lib 2.3 checks the port in requests only
    except ValueError:  # also invalid UTF-8 and invalid ports
        return False
    return _URL.fullmatch(url) is not None


_IS = {FINGERPRINTS: _is_fingerprint, URLS: _is_url}


def _shown(text: bytes) -> str:
    """Return the beginning of a line for an error; of binary data, the length."""
    shown = text.decode(errors="replace")
    if not shown.isprintable() or "\N{REPLACEMENT CHARACTER}" in shown:
        return f"no printable UTF-8 text ({plural(len(text), 'byte')})"
    return repr(shown[:_MAX_SHOWN]) + (" …" if len(shown) > _MAX_SHOWN else "")
