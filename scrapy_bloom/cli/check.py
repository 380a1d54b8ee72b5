"""Show whether requests would be dropped as repeats, and why. Nothing is added to the filter.

The exit code is 0 if all of them would be dropped, and 1 otherwise. With two URLs the output shows whether the filter
takes them for the same request, and if not, how their canonical forms differ.

for example:
  scrapy bloom check news https://example.com/a
  scrapy bloom check news 'https://example.com/?a=1&b=2' 'https://example.com/?b=2&a=1'
  scrapy bloom check news https://example.com/search --method POST --body q=bloom
  scrapy bloom check --key news:dupefilter https://example.com/a
"""

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from scrapy.exceptions import UsageError
from scrapy.settings import Settings
from w3lib.url import canonicalize_url

from scrapy_bloom.cli import _console, _requests
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.filter.stored import look_up


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] URL [URL ...]"
    _requests.add_url_options(parser, nargs="+")
    add_target_options(parser, spider=False)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    urls = _requests.split_urls(options)
    if not urls:
        raise UsageError("give a URL", print_help=False)
    target = CrawlTarget(options, settings)
    stored = target.require_filter()
    item_of = _requests.item_maker(target, stored, options)
    checked = []
    for url in urls:
        item, request = item_of(url)
        places, is_forgotten = target.retry(partial(look_up, target.client, stored, item))
        is_new = target.dupefilter.is_always_new(request)
        found = {
            "url": url,
            "canonical_url": canonicalize_url(request.url),
            "fingerprint": item.decode(errors="replace"),
            "is_seen": any(place.is_seen for place in places) and not (is_new or is_forgotten),
            "is_always_new": is_new,
            "is_forgotten": is_forgotten,
            "places": [asdict(place) for place in places],
        }
        checked.append(found)
    all_seen = all(each["is_seen"] for each in checked)
    fingerprints = {each["fingerprint"] for each in checked}
    report = {
        "key": stored.key,
        "all_seen": all_seen,
        "same": len(fingerprints) == 1 if len(checked) > 1 else None,
        "requests": checked,
    }
    texts = [_text(each) for each in checked]
    if len(checked) == 2:  # noqa: PLR2004  # a pair is compared
        texts.append(_comparison(*checked))
    return _console.report(options, report, "\n\n".join(texts), answer=all_seen)


def _text(checked: dict[str, Any]) -> str:
    answer = "new: it would be fetched"
    if checked["is_always_new"]:
        answer = "fetched in each run: its URL matches BLOOMFILTER_ALWAYS"
    elif checked["is_forgotten"]:
        answer = "forgotten: it would be new, and fetched once more"
    elif checked["is_seen"]:
        answer = "seen: it would be dropped, unless it has dont_filter"
    rows = [
        ("request", checked["url"]),
        ("canonical", checked["canonical_url"]),
        ("fingerprint", checked["fingerprint"]),
        ("answer", answer),
    ]
    for place in checked["places"]:
        state = "all bits are set" if place["is_seen"] else "not in this layer"
        if place["is_lost"]:
            state = "LOST: the shard is gone"
        rows.append((f"layer {place['layer']}", f"{state}, in {place['key']}"))
    return _console.pairs(rows)


def _comparison(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Compare two requests: if they differ, name each differing part of their URLs, with both values."""
    if first["fingerprint"] == second["fingerprint"]:
        return "The filter takes both for the same request."
    one, other = (urlsplit(each["canonical_url"]) for each in (first, second))
    parts = [("scheme", one.scheme, other.scheme), ("host", one.netloc, other.netloc), ("path", one.path, other.path)]
    queries = [parse_qsl(url.query, keep_blank_values=True) for url in (one, other)]
    for name in dict.fromkeys(name for query in queries for name, _ in query):
        # `?a=` and no `a` at all are different URLs.
        mine, theirs = (", ".join(value or "''" for key, value in query if key == name) for query in queries)
        parts.append((f"argument {name}", mine, theirs))
    lines = [f"  {name}: {mine or 'none'} and {theirs or 'none'}" for name, mine, theirs in parts if mine != theirs]
    if not lines:
        return "The filter takes them for different requests, though their canonical forms are equal."
    return "\n".join(["The filter takes them for different requests. Their canonical forms differ in", *lines])
