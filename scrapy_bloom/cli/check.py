"""Show whether requests would be dropped as repeats, and why. Nothing is added to the filter.

The exit code is 0 if all of them would be dropped, and 1 otherwise. With two URLs the output shows whether the filter
takes them for the same request, and if not, how their canonical forms differ.
"""

import argparse
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from scrapy import Request
from scrapy.exceptions import UsageError
from scrapy.settings import Settings
from w3lib.url import canonicalize_url

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.errors import MismatchError
from scrapy_bloom.filter.stored_filter import Place, StoredFilter, look_up

EXAMPLES = """\
examples:
  scrapy bloom check news https://example.com/a
  scrapy bloom check news 'https://example.com/?a=1&b=2' 'https://example.com/?b=2&a=1'
  scrapy bloom check news https://example.com/search --method POST --body q=bloom
  scrapy bloom check --key news:dupefilter https://example.com/a
"""

# The scheme of a filter of plain strings.
_BYTES_SCHEME = "bytes"
_SCRAPY_SCHEME = "scrapy.utils.request.RequestFingerprinter"


@dataclass(frozen=True)
class _CheckedRequest:
    """A request, its fingerprint and its place in each layer."""

    url: str
    canonical_url: str
    fingerprint: str
    is_always_new: bool
    places: list[Place]

    @property
    def is_seen(self) -> bool:
        return not self.is_always_new and any(place.is_seen for place in self.places)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] URL [URL ...]"
    parser.add_argument("urls", nargs="+", metavar="URL", help="the URLs to check; the name of a spider may come first")
    add_target_options(parser, spider=False)
    parser.add_argument("--method", default="GET", help="the method of the requests (default GET)")
    parser.add_argument("--body", default="", help="the body of the requests")
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    first, *rest = options.urls
    options.spider, urls = (None, options.urls) if "://" in first else (first, rest)
    if not urls:
        raise UsageError("give a URL", print_help=False)
    target = CrawlTarget.of(options, settings)
    stored = target.require_filter()
    fingerprint_of = _fingerprinter(target, stored)
    checked = []
    for url in urls:
        try:
            request = Request(url, method=options.method, body=options.body)
        except ValueError as error:
            raise UsageError(f"{url!r}: {error}", print_help=False) from None
        item = fingerprint_of(request) if fingerprint_of else url.encode()
        places = target.run_steps(look_up(stored, item))
        is_always_new = target.dupefilter.is_always_new(request)
        canonical_url = canonicalize_url(request.url)
        checked.append(_CheckedRequest(url, canonical_url, item.decode(errors="replace"), is_always_new, places))
    all_seen = all(each.is_seen for each in checked)
    fingerprints = {each.fingerprint for each in checked}
    report = {
        "key": stored.key,
        "all_seen": all_seen,
        "same": len(fingerprints) == 1 if len(checked) > 1 else None,
        "requests": [{**asdict(each), "is_seen": each.is_seen} for each in checked],
    }
    texts = [_text(each) for each in checked]
    if len(checked) == 2:  # noqa: PLR2004  # a pair is compared
        texts.append(_comparison(*checked))
    _console.print_report(options, report, "\n\n".join(texts))
    return ExitCode.DONE if all_seen else ExitCode.NO


def _fingerprinter(target: CrawlTarget, stored: StoredFilter) -> Any:
    """Return the function that makes the filter's fingerprints, or None if its items are plain URLs."""
    scheme = stored.parameters.fingerprint
    if scheme == _BYTES_SCHEME:
        return None
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
    return target.dupefilter.fingerprint_of


def _text(checked: _CheckedRequest) -> str:
    answer = "new: it would be fetched"
    if checked.is_seen:
        answer = "seen: it would be dropped, unless it has dont_filter"
    if checked.is_always_new:
        answer = "fetched at each link: its URL matches BLOOMFILTER_ALWAYS"
    rows = [
        ("request", checked.url),
        ("canonical", checked.canonical_url),
        ("fingerprint", checked.fingerprint),
        ("answer", answer),
    ]
    for place in checked.places:
        state = "all bits are set" if place.is_seen else "not in this layer"
        if place.is_lost:
            state = "LOST: the shard is gone or belongs to another filter"
        rows.append((f"layer {place.layer}", f"{state}, in {place.key}"))
    return _console.pairs(rows)


def _comparison(first: _CheckedRequest, second: _CheckedRequest) -> str:
    if first.fingerprint == second.fingerprint:
        return "The filter takes both for the same request."
    differences = _differences(first.canonical_url, second.canonical_url)
    if not differences:
        return "The filter takes them for different requests, though their canonical forms are equal."
    lines = [f"  {name}: {one or 'none'} and {other or 'none'}" for name, one, other in differences]
    return "\n".join(["The filter takes them for different requests. Their canonical forms differ in", *lines])


def _differences(first: str, second: str) -> list[tuple[str, str, str]]:
    """Return the parts of two URLs that differ: each part's name and both values."""
    one, other = urlsplit(first), urlsplit(second)
    parts = [("scheme", one.scheme, other.scheme), ("host", one.netloc, other.netloc), ("path", one.path, other.path)]
    differing = [part for part in parts if part[1] != part[2]]
    queries = [parse_qsl(url.query, keep_blank_values=True) for url in (one, other)]
    for name in dict.fromkeys(name for query in queries for name, _ in query):
        # `?a=` and no `a` at all are different URLs.
        mine, theirs = ([value for key, value in query if key == name] for query in queries)
        if mine != theirs:
            shown = [", ".join(value or "''" for value in values) for values in (mine, theirs)]
            differing.append((f"argument {name}", shown[0], shown[1]))
    return differing
