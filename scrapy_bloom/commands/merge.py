"""Put what is in some filters into one of them, the first; the others stay as they are.

All must have the same settings, shape and hash key. --like makes an empty filter that can be merged with another one,
before its crawl begins. Crawls may go on meanwhile. All that was in the others before this began is in the first after
it. What is added to them later is not: it may be run again for that, and so it may where it was stopped.
"""

import argparse
from dataclasses import asdict

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom.admin.merging.like import make_like
from scrapy_bloom.admin.merging.merge import Merged, merge
from scrapy_bloom.admin.merging.mergeable import require_same_slots
from scrapy_bloom.admin.occupants import require
from scrapy_bloom.commands import _output
from scrapy_bloom.commands._ending import ExitCode, stopped
from scrapy_bloom.commands._progress import progress_of
from scrapy_bloom.commands._target import Target
from scrapy_bloom.commands._target import add_options as add_target
from scrapy_bloom.errors import ConfigError

EXAMPLES = """\
examples:
  scrapy bloom merge news sports weather          the filters of sports and weather into that of news
  scrapy bloom merge news --source-key old:dupefilter
  scrapy bloom merge --key all:dupefilter --source-key a:dupefilter --source-key b:dupefilter
  scrapy bloom merge news --like sports           an empty filter for news, to be merged with that of sports
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target(parser)
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="a spider whose filter is put into the first")
    parser.add_argument("--source-key", action="append", default=[], metavar="KEY", help="the key of such a filter")
    parser.add_argument("--like", metavar="SPIDER", help="make an empty filter with the hash key of this spider's")
    parser.add_argument("--like-key", metavar="KEY", help="make one with the hash key of the filter at this key")
    _output.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    target = Target.of(options, settings, wait=True)
    likes = [*([options.like] if options.like else []), *([options.like_key] if options.like_key else [])]
    if bool(likes) == bool(options.sources or options.source_key) or len(likes) > 1:
        raise UsageError(
            "give filters to merge, SOURCE or --source-key, or one of --like, --like-key", print_help=False
        )
    if likes:
        return _make_like(target, options, settings)
    sources = [*(_key_of(name, target, options, settings) for name in options.sources), *options.source_key]
    if hasattr(target.client, "keyslot"):
        require_same_slots([target.key, *sources])
    with stopped("run it again; what is there already stays"):
        found = [require(target.store, key) for key in sources]
        total = sum(layer.size.shard_bytes * layer.size.shards for each in found for layer in each.layers)
        with progress_of("merging", total) as advance:
            done = merge(target.store, target.key, sources, advance)
    if options.json:
        _output.print_json({"server": target.server, "key": target.key, "sources": sources, **asdict(done)})
    else:
        _tell(target, sources, done)
    target.tell_of_waiting(dict.fromkeys(user for each in found for user in each.users))
    return ExitCode.DONE


def _make_like(target: Target, options: argparse.Namespace, settings: Settings) -> int:
    key = options.like_key or _key_of(options.like, target, options, settings)
    other = require(target.store, key)
    make_like(target.store, target.key, target.parameters if target.has_spider else other.parameters, other)
    if options.json:
        _output.print_json({"server": target.server, "key": target.key, "like": key})
    else:
        print(
            f"made an empty filter at {target.key!r} on {target.server}, which can be merged with the one at {key!r}. "
            "A crawl that begins with SCHEDULER_FLUSH_ON_START = True would replace it"
        )
    return ExitCode.DONE


def _key_of(name: str, target: Target, options: argparse.Namespace, settings: Settings) -> str:
    """Return the key of the filter of another spider, which has to be on the same server."""
    place = argparse.Namespace(spider=name, key=None, queue=None, redis_url=options.redis_url)
    other = Target.of(place, settings)
    if other.server != target.server:
        raise ConfigError(
            f"{name}: its filter is on {other.server}, and that of the first on {target.server}; export it there, "
            "restore it here at a key of its own, and merge that by --source-key"
        )
    return other.key


def _tell(target: Target, sources: list[str], done: Merged) -> None:
    print(
        f"merged {', '.join(map(repr, sources))} into the filter at {target.key!r} on {target.server}: {done.shards} "
        f"shard(s), {done.charged:,} more requests at most"
    )
    if done.late:
        print(f"up to {done.late:,} more were added to them meanwhile: some of those may be in it, and others not")
