"""The requests of a command line and of files, and the items that stand for them in a stored filter.

A file has a line for each fingerprint or URL, or it is Scrapy's `requests.seen`. Scrapy 2.13 writes a line of
hexadecimal digits for each fingerprint there, and newer versions its length in two bytes, and its bytes. A killed crawl
may leave the last one incomplete: Scrapy ignores it, and so does `read_lines`.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from io import BufferedReader
from itertools import chain
from urllib.parse import urlsplit

from scrapy import Request
from w3lib.url import canonicalize_url

from scrapy_bloom.cli.target import CrawlTarget
from scrapy_bloom.errors import ConfigError, MismatchError
from scrapy_bloom.filter.info import StoredFilter
from scrapy_bloom.settings import ITEM_KEY
from scrapy_bloom.text import get_logger

logger = get_logger(__name__)

# The file of Scrapy's own dupefilter, and the scheme of its fingerprints.
SEEN_FILE, SCRAPYS_SCHEME = "requests.seen", "scrapy.utils.request.RequestFingerprinter"
FINGERPRINT = re.compile(rb"[0-9a-fA-F]{40}")

_INCOMPLETE = re.compile(rb"[0-9a-fA-F]{1,39}")
_CUT = "--from-file %s: the last fingerprint is incomplete (bytes: %d), as after a kill; it is ignored, as Scrapy does"
_ALLOWED = "a fingerprint of 40 hexadecimal digits, or a URL with its scheme, such as https://example.com/"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
# A file without line ends is not read into memory as a whole.
_MAX_LINE_BYTES = 1 << 20
_LENGTH_BYTES, _FINGERPRINT_BYTES = 2, 20
_RECORD_BYTES = _LENGTH_BYTES + _FINGERPRINT_BYTES


def add_url_options(parser: argparse.ArgumentParser, *, nargs: str) -> None:
    """Add the arguments and options that name requests."""
    parser.add_argument("urls", nargs=nargs, metavar="URL", help="the URLs; the name of a spider may come first")
    parser.add_argument("--method", default="GET", help="the method of the requests (default GET)")
    parser.add_argument("--body", default="", help="the body of the requests")


def split_urls(options: argparse.Namespace) -> list[str]:
    """Return the URLs of the command line, and set the option `spider` to the name before them, or to None."""
    has_spider = bool(options.urls) and "://" not in options.urls[0]
    options.spider = options.urls[0] if has_spider else None
    return list(options.urls[has_spider:])


ItemMaker = Callable[[str], tuple[bytes, Request]]


def item_maker(target: CrawlTarget, stored: StoredFilter, options: argparse.Namespace) -> ItemMaker:
    """Return the function that turns a URL into the filter's item and the request.

    Raises:
        MismatchError: the filter has other fingerprints than the spider.
    """
    scheme = stored.parameters.fingerprint
    is_plain = scheme == "bytes"  # a filter of plain strings
    if scheme.startswith(ITEM_KEY):
        action = f"to let all items pass again, run `scrapy bloom clear --key {stored.key} --yes`"
        raise MismatchError(f"the filter at {stored.key!r} holds items ({scheme}), which no URL names; {action}")
    # Import a known class only: with write access to Redis, an attacker could name any class.
    if not target.has_spider and scheme == SCRAPYS_SCHEME:
        target.settings.set("REQUEST_FINGERPRINTER_CLASS", scheme, priority="cmdline")
    if not is_plain and (ours := target.dupefilter.fingerprint_scheme()) != scheme:
        fault = f"the filter at {stored.key!r} holds fingerprints of {scheme!r}, but these settings make {ours!r}"
        action = "set REQUEST_FINGERPRINTER_CLASS or DUPEFILTER_CLASS, outside a project by -s"
        raise MismatchError(f"{fault}, and workers with them would be refused: {action}")

    def item_of(url: str) -> tuple[bytes, Request]:
        try:
            request = Request(url, method=options.method, body=options.body)
        except ValueError as error:
            raise ConfigError(f"{url!r}: {error}") from None
        return url.encode() if is_plain else target.dupefilter.fingerprint_of(request), request

    return item_of


# A fingerprint as hexadecimal digits, or a URL, and whether it is one.
Line = tuple[bytes, bool]


def read_lines(name: str, file: BufferedReader) -> Iterator[Line]:
    """Yield the fingerprints and URLs of a file, which may be a pipe.

    Args:
        name: the name of the file in messages.
        file: a file at its beginning.

    Raises:
        ConfigError: a line is neither, or the file is empty.
    """
    # The first byte of a record's length; no text begins with it.
    lines = (_records if file.peek(1)[:1] == b"\0" else _lines)(name, file)
    if (first := next(lines, None)) is None:
        raise ConfigError(f"--from-file {name}: the file is empty; each line must be {_ALLOWED}")
    yield from chain([first], lines)


def _lines(name: str, file: BufferedReader) -> Iterator[Line]:
    """Yield the lines that are not empty."""
    was_fingerprint = False
    for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
        text = line.strip()
        if is_fingerprint := FINGERPRINT.fullmatch(text) is not None:
            yield text.lower(), False
        elif was_fingerprint and not line.endswith(b"\n") and _INCOMPLETE.fullmatch(text):
            logger.warning(_CUT, name, len(text))
        elif _is_url(text):
            yield text, True
        elif text:
            fault = f"--from-file {name}: line {number} is {text[:60]!r}"
            raise ConfigError(f"{fault}, but must be {_ALLOWED}; correct it, and run this again")
        was_fingerprint = is_fingerprint


def _records(name: str, file: BufferedReader) -> Iterator[Line]:
    """Yield the fingerprints."""
    for number, record in enumerate(iter(lambda: file.read(_RECORD_BYTES), b"")):
        length = int.from_bytes(record[:_LENGTH_BYTES], "big")
        if len(record) >= _LENGTH_BYTES and length != _FINGERPRINT_BYTES:
            fault = f"--from-file {name}: the file is binary, and record {number + 1} has {length:,} bytes"
            action = f"to use those before it, keep the first {number * _RECORD_BYTES} bytes of the file"
            raise ConfigError(f"{fault}, but must have {_FINGERPRINT_BYTES}, as Scrapy writes {SEEN_FILE}: {action}")
        if len(record) < _RECORD_BYTES:
            logger.warning(_CUT, name, len(record))
        else:
            yield record[_LENGTH_BYTES:].hex().encode(), False


def _is_url(text: bytes) -> bool:
    """Return whether a line is a URL that Scrapy makes a request of."""
    try:
        canonicalize_url(url := text.decode())
        urlsplit(url).port  # noqa: B018  # w3lib 2.3 checks the port in requests only
    except ValueError:  # also invalid UTF-8 and invalid ports
        return False
    return _URL.fullmatch(url) is not None
