"""Show whether requests would be dropped as repeats, and why. Nothing is added to the filter.

The exit code is 0 if all of them would be dropped, and 1 otherwise. With two URLs the output shows whether the filter
takes them for the same request, and if not, how their canonical forms differ.
"""

import argparse
from dataclasses import asdict, dataclass
from functools import partial
from urllib.parse import parse_qsl, urlsplit

from scrapy.exceptions import UsageError
from scrapy.settings import Settings
from w3lib.url import canonicalize_url

from scrapy_bloom.cli import _console, _items
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.filter.stored import Place, look_up

EXAMPLES = """\
examples:
  scrapy bloom check news https://example.com/a
  scrapy bloom check news 'https://example.com/?a=1&b=2' 'https://example.com/?b=2&a=1'
  scrapy bloom check news https://example.com/search --method POST --body q=bloom
  scrapy bloom check --key news:dupefilter https://example.com/a
"""


@dataclass(frozen=True)
class _CheckedRequest:
    """A request, its fingerprint and its place in each layer."""

    url: str
    canonical_url: str
    fingerprint: str
    is_always_new: bool
    is_forgotten: bool
    places: list[Place]

    @property
    def is_seen(self) -> bool:
        is_new = self.is_always_new or self.is_forgotten
        return not is_new and any(place.is_seen for place in self.places)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] URL [URL ...]"
    _items.add_url_options(parser, nargs="+")
    add_target_options(parser, spider=False)
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    urls = _items.split_urls(options)
    if not urls:
        raise UsageError("give a URL", print_help=False)
    target = CrawlTarget(options, settings)
    stored = target.require_filter()
    item_of = _items.item_maker(target, stored, options)
    checked = []
    for url in urls:
        item, request = item_of(url)
        places, is_forgotten = target.retry(partial(look_up, target.client, stored, item))
        is_always_new = target.dupefilter.is_always_new(request)
        canonical_url, fingerprint = canonicalize_url(request.url), item.decode(errors="replace")
        checked.append(_CheckedRequest(url, canonical_url, fingerprint, is_always_new, is_forgotten, places))
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


def _text(checked: _CheckedRequest) -> str:
    answer = "new: it would be fetched"
    if checked.is_seen:
        answer = "seen: it would be dropped, unless it has dont_filter"
    if checked.is_forgotten:
        answer = "forgotten: it would be new, and fetched once more"
    if checked.is_always_new:
        answer = "fetched in each run: its URL matches BLOOMFILTER_ALWAYS"
    rows = [
        ("request", checked.url),
        ("canonical", checked.canonical_url),
        ("fingerprint", checked.fingerprint),
        ("answer", answer),
    ]
    for place in checked.places:
        state = "all bits are set" if place.is_seen else "not in this layer"
        if place.is_lost:
            state = "LOST: the shard is gone"
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
