"""Forget pages: the filter takes each for new again, and one worker fetches it.

Workers may crawl meanwhile. The command itself fetches nothing: a forgotten page is fetched when a link to it is met
again, also in later runs. The exit code is 0 if the filter had all pages, and 1 otherwise.

for example:
  scrapy bloom forget news https://example.com/a
  scrapy bloom forget news https://example.com/search --method POST --body q=bloom
  scrapy bloom forget news --from-file failed.txt
  scrapy bloom forget --key news:dupefilter --redis-url redis://localhost:6379 --from-file - < failed.txt
"""

import argparse
import sys
from io import BufferedReader
from pathlib import Path
from typing import cast

from scrapy.settings import Settings

from scrapy_bloom.cli import console, requests
from scrapy_bloom.cli.target import CrawlTarget, add_target_options, by_partition
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.bloom_filter import BloomFilter
from scrapy_bloom.text import plural

# Of these an interrupt may leave some forgotten.
_BATCH = 500
_TEXTS = {"forgotten": "forgotten", "absent": "not in the filter"}
_ADVICE = "A forgotten page is fetched when a fetched page links to it, in this run or a later one."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] URL [URL ...]\n       %(prog)s [options] [SPIDER] --from-file FILE"
    requests.add_url_options(parser, nargs="*")
    add_target_options(parser, spider=False)
    file = "a file of URLs or fingerprints, one per line; - for the standard input"
    parser.add_argument("--from-file", metavar="FILE", help=file)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    urls, name = requests.split_urls(options), options.from_file
    if bool(urls) == bool(name):
        raise ConfigError("give URLs, or --from-file FILE")
    lines = [(url.encode(), True) for url in urls]
    if name:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            lines = [*requests.read_lines(name, cast(BufferedReader, file))]
    target = CrawlTarget(options, settings, waits=True)
    parts = [(part, part.require_filter()) for part in target.partitions]
    items = [text for text, _ in lines]
    if any(is_url for _, is_url in lines):
        item_of = requests.item_maker(target, parts[0][1], options)
        items = [item_of(text.decode())[0] if is_url else text for text, is_url in lines]
    found = set[bytes]()
    with (
        console.advise_on_ctrl_c("some pages may be forgotten; run it again"),
        console.progress("forgetting", len(items), " pages") as advance,
    ):
        for (part, stored), each in zip(parts, by_partition(dict.fromkeys(items), len(parts)), strict=True):
            others = {"cache_size": 0, "retry_timeout": target.wait, "must_exist": True}
            bloom = BloomFilter.with_parameters(part.client, part.key, stored.parameters, **others)
            for start in range(0, len(each), _BATCH):
                batch = each[start : start + _BATCH]
                found.update(item for item, was_in in zip(batch, bloom.forget_many(batch), strict=True) if was_in)
                advance(len(batch))
            bloom.close()
    states = ["forgotten" if item in found else "absent" for item in items]
    numbers = {state: states.count(state) for state in _TEXTS}
    texts = [f"{url}: {_TEXTS[state]}" for url, state in zip(urls, states, strict=False)]
    texts += [f"{plural(number, 'page')} {_TEXTS[state]}" for state, number in numbers.items() if number and not urls]
    texts += [_ADVICE] if numbers["forgotten"] else []
    told = [{"url": url, "state": state} for url, state in zip(urls, states, strict=False)]
    report = {"server": target.server, "key": target.key, **numbers, "requests": told}
    return console.report(options, report, "\n".join(texts), answer=not numbers["absent"])
