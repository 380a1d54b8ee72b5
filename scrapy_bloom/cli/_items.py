"""Turn the URLs of a command line into requests, and into the items of a stored filter."""

import argparse
from collections.abc import Callable

from scrapy import Request
from scrapy.exceptions import UsageError

from scrapy_bloom.cli._target import CrawlTarget
from scrapy_bloom.errors import MismatchError
from scrapy_bloom.filter.stored import StoredFilter

# The scheme of a filter of plain strings.
_BYTES_SCHEME = "bytes"
_SCRAPY_SCHEME = "scrapy.utils.request.RequestFingerprinter"


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


def item_maker(
    target: CrawlTarget, stored: StoredFilter, options: argparse.Namespace
) -> Callable[[str], tuple[bytes, Request]]:
    """Return the function that turns a URL into the filter's item and the request.

    Raises:
        MismatchError: the filter has other fingerprints than the spider.
    """
    is_plain = stored.parameters.fingerprint == _BYTES_SCHEME
    if not is_plain:
        _require_scheme(target, stored)

    def item_of(url: str) -> tuple[bytes, Request]:
        try:
            request = Request(url, method=options.method, body=options.body)
        except ValueError as error:
            raise UsageError(f"{url!r}: {error}", print_help=False) from None
        return url.encode() if is_plain else target.dupefilter.fingerprint_of(request), request

    return item_of


def _require_scheme(target: CrawlTarget, stored: StoredFilter) -> None:
    """Require that the settings make the filter's fingerprints."""
    scheme = stored.parameters.fingerprint
    # Import a known class only: with write access to Redis, an attacker could name any class.
    if not target.has_spider and scheme == _SCRAPY_SCHEME:
        target.settings.set("REQUEST_FINGERPRINTER_CLASS", scheme, priority="cmdline")
    ours = target.dupefilter.fingerprint_scheme()
    if ours != scheme:
        raise MismatchError(
            f"the filter at {stored.key!r} holds fingerprints of {scheme!r}, but these settings make those of "
            f"{ours!r}, and workers with them would be refused: set REQUEST_FINGERPRINTER_CLASS or DUPEFILTER_CLASS, "
            "outside a project by -s"
        )
