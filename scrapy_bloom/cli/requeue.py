"""Move dead letters back to the queue: requests that no worker could read, or that killed too many workers.

With --failed, move the failed requests instead that are kept for the next run, so that this run fetches them. With
--match, move only requests whose stored bytes contain a text, such as a part of the URL. The bytes are searched and
never deserialized, since unpickling executes code. Workers may crawl meanwhile.

for example:
  scrapy bloom requeue news
  scrapy bloom requeue news --failed
  scrapy bloom requeue news --match example.com/shop --dry-run
"""

import argparse
import re
from collections.abc import Sequence
from functools import partial
from itertools import count, takewhile

from scrapy.settings import Settings

from scrapy_bloom.cli import console
from scrapy_bloom.cli.target import CrawlTarget, Place, add_target_options
from scrapy_bloom.errors import ConfigError, RefusedError
from scrapy_bloom.filter.info import read_filter
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.start_data import data_of, is_start
from scrapy_bloom.text import plural
from scrapy_bloom.transport.failures import hide_credentials

_BATCH, _SHOWN = 100, 20
_URL = re.compile(rb"(?:https?|ftp|file|s3|data):[!#-&(-;=?-~]+")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("--failed", action="store_true", help="move the failed requests that are kept for the next run")
    match = "move only requests whose stored bytes contain TEXT"
    parser.add_argument("--match", default="", metavar="TEXT", help=match)
    dry = "count the requests, print the URLs of the first 20 to stderr, and move none"
    parser.add_argument("--dry-run", action="store_true", help=dry)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target = CrawlTarget(options, settings, waits=True)
    name = target.queue
    if name is None:
        raise ConfigError("give the name of a spider of the project, or --queue KEY")
    # The filter of the queue's workers, or else the crawl's; if none is known, an absent one.
    is_known = options.key or target.has_spider
    key = target.inspect_queue(name).filter or (target.key if is_known else QueueKeys(name).dupefilter)
    kept, matching, states = 0, 0, []
    for part in target.partitions_at(name, key):
        queue = RequestQueue(target.client, str(part.queue), part.key)
        found = _failed(part, queue) if options.failed else _dead_letters(part, queue)
        chosen = [each for each in found if options.match.encode() in each[0]]
        if not options.dry_run:
            _requeue(part, queue, chosen)
        for member, _ in chosen[: _SHOWN if options.dry_run else 0]:
            console.note(_described(member))
        kept, matching = kept + len(found), matching + len(chosen)
        states.append(part.inspect_queue(queue.keys.queue))
    kind, field = ("failed request", "failed") if options.failed else ("dead letter", "dead_letters")
    report = {each: sum(getattr(state, each) for state in states) for each in ("dead_letters", "failed")}
    report = {"queue": name, **report, field: kept, "matching": matching, "dry_run": options.dry_run}
    verb = "would requeue" if options.dry_run else "requeued"
    return console.report(options, report, f"{verb} {matching:,} of {plural(kept, kind)} of {name}")


def _dead_letters(target: Place, queue: RequestQueue) -> list[tuple[bytes, None]]:
    """Return the dead letters, whose fingerprints are not known."""
    letters = queue.keys.dead_letters
    parts = (target.send("ZRANGE", letters, first, first + _BATCH - 1) for first in count(0, _BATCH))
    return [(member, None) for part in takewhile(bool, parts) for member in part]


def _failed(target: Place, queue: RequestQueue) -> list[tuple[bytes, bytes | None]]:
    """Return the failed requests with their fingerprints, or None for a request that bypasses the filter."""
    found, cursor = dict[bytes, bytes | None](), None
    while cursor != 0:
        cursor, portion = target.retry(partial(queue.read_failed, cursor or 0))
        found |= {offer.member: offer.fingerprint for _, offer in portion}
    return [*found.items()]


def _requeue(target: Place, queue: RequestQueue, found: Sequence[tuple[bytes, bytes | None]]) -> None:
    """Move requests to the queue, and mark them in the filter; requests that were moved meanwhile are skipped."""
    is_marked = any(fingerprint for _, fingerprint in found)
    there = target.retry(partial(read_filter, target.client, queue.filter_key)) if is_marked else None
    for first in range(0, len(found), _BATCH):
        some = [
            (there.parameters.hasher(there.secret)(fingerprint) if fingerprint and there else b"", member)
            for member, fingerprint in found[first : first + _BATCH]
        ]
        if target.retry(partial(queue.requeue, there.id if there else "", some)) < 0:
            raise RefusedError(f"the filter at {queue.filter_key!r} was replaced meanwhile: run it again")


def _described(member: bytes) -> str:
    """Return a stored request as a readable line, with its URL, without loading it."""
    if is_start(member):
        key, datum = data_of(member)
        return f"start URL of {key}: {hide_credentials(repr(datum.decode(errors='replace')))}"
    url = _URL.search(member)
    return f"{hide_credentials(url[0].decode()) if url else 'no URL'} ({plural(len(member), 'byte')})"
