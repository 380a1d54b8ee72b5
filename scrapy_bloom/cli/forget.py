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
import secrets
import sys
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import cast

from scrapy.settings import Settings

from scrapy_bloom.cli import _console, _requests
from scrapy_bloom.cli._requests import Line, read_lines
from scrapy_bloom.cli._target import CrawlTarget, add_target_options, by_partition
from scrapy_bloom.errors import ConfigError, WrongTypeError
from scrapy_bloom.filter.hashing import digest
from scrapy_bloom.filter.info import StoredFilter
from scrapy_bloom.queue.keys import tagged
from scrapy_bloom.text import plural
from scrapy_bloom.transport.scripts import Script

_FORGET = Script("forget", "filter", "call")
# Items in one script, which blocks the server for some 5 ms.
_BATCH = 500
_WAS_THERE = ord("1")
_TEXTS = {"forgotten": "forgotten", "absent": "not in the filter"}
_ADVICE = "A forgotten page is fetched when a fetched page links to it, in this run or a later one."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] URL [URL ...]\n       %(prog)s [options] [SPIDER] --from-file FILE"
    _requests.add_url_options(parser, nargs="*")
    add_target_options(parser, spider=False)
    file = "a file of URLs or fingerprints, one per line; - for the standard input"
    parser.add_argument("--from-file", metavar="FILE", help=file)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    urls, name = _requests.split_urls(options), options.from_file
    if bool(urls) == bool(name):
        raise ConfigError("give URLs, or --from-file FILE")
    lines = [Line(url.encode(), is_url=True, end=0) for url in urls]
    if name == "-":
        lines = list(read_lines(name, cast(BufferedReader, sys.stdin.buffer)))
    elif name:
        with Path(name).open("rb") as file:
            lines = list(read_lines(name, file))
    target = CrawlTarget(options, settings, waits=True)
    parts = [(part, part.require_filter(is_complete=True)) for part in target.partitions]
    items = [line.text for line in lines]
    if any(line.is_url for line in lines):
        item_of = _requests.item_maker(target, parts[0][1], options)
        items = [item_of(line.text.decode())[0] if line.is_url else line.text for line in lines]
    found: set[bytes] = set()
    for (part, stored), each in zip(parts, by_partition(dict.fromkeys(items), len(parts)), strict=True):
        found |= _forget(part, stored, each)
    states = ["forgotten" if item in found else "absent" for item in items]
    numbers = {state: states.count(state) for state in _TEXTS}
    texts = [f"{url}: {_TEXTS[state]}" for url, state in zip(urls, states, strict=False)]
    texts += [f"{plural(number, 'page')} {_TEXTS[state]}" for state, number in numbers.items() if number and not urls]
    texts += [_ADVICE] if numbers["forgotten"] else []
    requests = [{"url": url, "state": state} for url, state in zip(urls, states, strict=False)]
    report = {"server": target.server, "key": target.key, **numbers, "requests": requests}
    return _console.report(options, report, "\n".join(texts), answer=not numbers["absent"])


def _forget(target: CrawlTarget, stored: StoredFilter, items: list[bytes]) -> set[bytes]:
    """Forget items, and return the known ones. Unlike a `BloomFilter`, this never creates a filter."""
    # The server keeps the last reply here: a call whose reply was lost gets it again.
    record = f"{tagged(stored.key)}:call:{secrets.token_hex(8)}"
    found: set[bytes] = set()
    advice = _console.advise_on_ctrl_c("some pages may be forgotten; run it again")
    with advice, _console.progress("forgetting", len(items), " pages") as advance:
        for number, start in enumerate(range(0, len(items), _BATCH), 1):
            batch = items[start : start + _BATCH]
            digests = [digest(item, stored.secret) for item in batch]
            arguments: list[str | bytes | int] = [stored.id, number, 0, *digests]
            status, *reply = target.retry(partial(_FORGET.call, target.client, [stored.key, record], arguments))
            if status == b"GONE":
                raise WrongTypeError(f"the filter at {stored.key!r} was replaced or deleted meanwhile: run it again")
            found.update(item for item, flag in zip(batch, reply[0], strict=True) if flag == _WAS_THERE)
            advance(len(batch))
    target.send("UNLINK", record)
    return found
