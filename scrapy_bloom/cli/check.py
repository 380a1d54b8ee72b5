"""Show whether requests would be dropped as repeats, and why. Nothing is added to the filter.

The exit code is 0 if all of them would be dropped, and 1 otherwise. URLs with the same fingerprint are the same page to
the filter.

for example:
  scrapy bloom check news https://example.com/a
  scrapy bloom check news 'https://example.com/?a=1&b=2' 'https://example.com/?b=2&a=1'
  scrapy bloom check news https://example.com/search --method POST --body q=bloom
  scrapy bloom check --key news:dupefilter https://example.com/a
"""

import argparse
from functools import partial
from typing import Any

from scrapy.settings import Settings
from w3lib.url import canonicalize_url

from scrapy_bloom.cli import console, requests
from scrapy_bloom.cli.target import CrawlTarget, add_target_options
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.info import look_up
from scrapy_bloom.queue.keys import partition_of

# The answer for each state; in any other the request is new.
_ANSWERS = {
    "is_seen": "seen, or a false positive: dropped, unless it has dont_filter",
    "is_always_new": "fetched in each run: its URL matches BLOOMFILTER_ALWAYS",
    "is_forgotten": "forgotten: it would be new, and fetched again",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] URL [URL ...]"
    requests.add_url_options(parser, nargs="+")
    add_target_options(parser, spider=False)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    urls = requests.split_urls(options)
    if not urls:
        raise ConfigError("give a URL")
    target = CrawlTarget(options, settings)
    parts = [(part, part.require_filter()) for part in target.partitions]
    item_of, checked = requests.item_maker(target, parts[0][1], options), []
    for url in urls:
        item, request = item_of(url)
        part, stored = parts[partition_of(item, len(parts))]
        places, is_forgotten = part.retry(partial(look_up, target.client, stored, item))
        is_new = target.dupefilter.mark_of.is_always_new(request)
        is_seen = any(place["is_seen"] for place in places) and not (is_new or is_forgotten)
        canonical, fingerprint = canonicalize_url(request.url), item.decode(errors="replace")
        found = {"url": url, "canonical_url": canonical, "fingerprint": fingerprint, "is_seen": is_seen}
        found |= {"is_always_new": is_new, "is_forgotten": is_forgotten, "places": places}
        checked.append(found)
    all_seen = all(each["is_seen"] for each in checked)
    report = {"key": target.key, "all_seen": all_seen, "requests": checked}
    return console.report(options, report, "\n\n".join(map(_text, checked)), answer=all_seen)


def _text(checked: dict[str, Any]) -> str:
    answer = next((text for state, text in _ANSWERS.items() if checked[state]), "new: it would be fetched")
    names = ("url", "canonical_url", "fingerprint")
    rows = [(name.partition("_")[0], checked[name]) for name in names] + [("answer", answer)]
    for place in checked["places"]:
        state = "all bits are set" if place["is_seen"] else "not in this layer"
        state = "LOST: the shard is gone" if place["is_lost"] else state
        rows.append((f"layer {place['layer']}", f"{state}, in {place['key']}"))
    return console.pairs(rows)
