"""Forget pages: the filter takes each for new once more, and one worker fetches it.

Workers may crawl meanwhile. The command itself fetches nothing: a forgotten page is fetched when a link to it is met
again, also in later runs. The exit code is 0 if the filter had all pages, and 1 otherwise.
"""

import argparse
import sys
import time
from pathlib import Path

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import plural
from scrapy_bloom.cli import _console, _items
from scrapy_bloom.cli._exit_codes import ExitCode, advise_on_ctrl_c
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.cli.importing.file_import import FINGERPRINTS, kind_of_lines
from scrapy_bloom.cli.importing.file_lines import Line, read_lines
from scrapy_bloom.filter.events import LoggedEvents
from scrapy_bloom.filter.forgetting import forget
from scrapy_bloom.filter.layer_stack import LayerStack
from scrapy_bloom.filter.opening import Opening
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.filter.stored_filter import StoredFilter, foreign_set, inspect_forgotten

EXAMPLES = """\
examples:
  scrapy bloom forget news https://example.com/a
  scrapy bloom forget news https://example.com/search --method POST --body q=bloom
  scrapy bloom forget news --from-file failed.txt
  scrapy bloom forget --key news:dupefilter --redis-url redis://localhost:6379 --from-file - < failed.txt
"""

_STDIN = "-"
# The items between two lines of progress.
_BATCH = 10_000
_FORGOTTEN, _ABSENT = "forgotten", "absent"
_TEXTS = {_FORGOTTEN: "forgotten", _ABSENT: "not in the filter"}
_ADVICE = "A forgotten page is fetched when a fetched page links to it, in this run or a later one."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] URL [URL ...]\n       %(prog)s [options] [SPIDER] --from-file FILE"
    _items.add_url_options(parser, nargs="*")
    add_target_options(parser, spider=False)
    parser.add_argument(
        "--from-file", metavar="FILE", help="a file of URLs or fingerprints, one per line; - for the standard input"
    )
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    urls = _items.split_urls(options)
    if bool(urls) == bool(options.from_file):
        raise UsageError("give URLs, or --from-file FILE", print_help=False)
    lines = _read(options.from_file) if options.from_file else []
    has_fingerprints = bool(options.from_file) and kind_of_lines(options.from_file, lines) == FINGERPRINTS
    target = CrawlTarget.of(options, settings, wait=True)
    stored = target.require_filter()
    stored.require_finished()
    items = [line.text.lower() for line in lines]
    if not has_fingerprints:
        made = map(_items.item_maker(target, stored, options), urls or [line.text.decode() for line in lines])
        items = [item for item, _ in made]
    found = _forget(target, stored, items)
    states = [_FORGOTTEN if item in found else _ABSENT for item in items]
    numbers = {state: states.count(state) for state in _TEXTS}
    texts = [f"{url}: {_TEXTS[state]}" for url, state in zip(urls, states, strict=False)]
    texts += [f"{plural(number, 'page')} {_TEXTS[state]}" for state, number in numbers.items() if number and lines]
    texts += [_ADVICE] if numbers[_FORGOTTEN] else []
    requests = [{"url": url, "state": state} for url, state in zip(urls, states, strict=False)]
    report = {"server": target.server, "key": stored.key, **numbers, "requests": requests}
    _console.print_report(options, report, "\n".join(texts))
    return ExitCode.DONE if numbers[_FORGOTTEN] == len(items) else ExitCode.NO


def _read(name: str) -> list[Line]:
    """Return the lines of a file, which may be a pipe."""
    if name == _STDIN:
        return list(read_lines(name, sys.stdin.buffer))
    with Path(name).open("rb") as file:
        return list(read_lines(name, file))


def _forget(target: CrawlTarget, stored: StoredFilter, items: list[bytes]) -> set[bytes]:
    """Forget items, and return the known ones. Unlike a `BloomFilter`, this never creates a filter."""
    present, _ = target.run_steps(inspect_forgotten(stored))
    if present.is_foreign:
        raise foreign_set(stored.key)
    protocol = FilterProtocol(Opening(LayerStack(stored.key, stored.parameters, time.monotonic), LoggedEvents()))
    found: set[bytes] = set()
    advice = advise_on_ctrl_c("some pages may be forgotten; run it again")
    with advice, _console.progress("forgetting", len(items), " pages") as advance:
        for start in range(0, len(items), _BATCH):
            batch = items[start : start + _BATCH]
            found |= target.run_steps(forget(protocol, list(dict.fromkeys(batch))))
            advance(len(batch))
    return found
