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
from functools import partial
from itertools import count, islice, takewhile

from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.codec import described
from scrapy_bloom.errors import ConfigError, RefusedError
from scrapy_bloom.filter.hashing import digest
from scrapy_bloom.filter.info import read_filter
from scrapy_bloom.queue.inspection import sum_of
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.text import plural
from scrapy_bloom.transport.scripts import Script

_REQUEUE = Script("requeue", "filter", "queue")
_BATCH = 100
# Requests that a dry run prints of each partition.
_SHOWN = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("--failed", action="store_true", help="move the failed requests that are kept for the next run")
    match = "move only requests whose stored bytes contain TEXT"
    parser.add_argument("--match", default="", metavar="TEXT", help=match)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="count the requests, print the URLs of the first 20 to stderr, and move none",
    )


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target = CrawlTarget(options, settings, waits=True)
    name = target.queue
    if name is None:
        raise ConfigError("give the name of a spider of the project, or --queue KEY")
    # The filter of the queue's workers, or else the crawl's; if none is known, an absent one.
    key = target.inspect_queue(name).filter
    if not key:
        is_known = options.key or target.has_spider or target.count > 1
        key = target.key if is_known else QueueKeys(name).dupefilter
    kept = matching = 0
    states = []
    for part in target.partitions_at(name, key):
        queue = RequestQueue(target.client, str(part.queue), part.key)
        found = _read(part, queue, failed=options.failed)
        chosen = {member: fingerprint for member, fingerprint in found.items() if options.match.encode() in member}
        if not options.dry_run:
            _requeue(part, queue, chosen)
        for member in islice(chosen, _SHOWN if options.dry_run else 0):
            _console.note(described(member))
        kept, matching = kept + len(found), matching + len(chosen)
        states.append(part.inspect_queue(queue.keys.queue))
    state = sum_of(states)
    kind, count = ("failed request", "failed") if options.failed else ("dead letter", "dead_letters")
    report = {"queue": name, "dead_letters": state.dead_letters, "failed": state.failed, count: kept}
    report |= {"matching": matching, "dry_run": options.dry_run}
    verb = "would requeue" if options.dry_run else "requeued"
    return _console.report(options, report, f"{verb} {matching:,} of {plural(kept, kind)} of {name}")


def _read(target: CrawlTarget, queue: RequestQueue, *, failed: bool) -> dict[bytes, bytes | None]:
    """Return the dead letters, or failed requests, with their fingerprints.

    The fingerprint of a dead letter is not known, and a failed request may bypass the filter.
    """
    found: dict[bytes, bytes | None] = {}
    if failed:
        cursor = None
        while cursor != 0:
            cursor, portion = target.retry(partial(queue.read_failed, cursor or 0))
            found |= {offer.member: offer.fingerprint for _, offer in portion}
    else:
        letters = queue.keys.dead_letters
        parts = (target.send("ZRANGE", letters, first, first + _BATCH - 1) for first in count(0, _BATCH))
        for part in takewhile(bool, parts):
            found |= dict.fromkeys(part)
    return found


def _requeue(target: CrawlTarget, queue: RequestQueue, found: dict[bytes, bytes | None]) -> None:
    """Move requests to the queue, and mark them in the filter; requests that were moved meanwhile are skipped."""
    of_queue = target.retry(lambda: read_filter(target.client, queue.filter_key)) if any(found.values()) else None
    filter_id, secret = (of_queue.id, of_queue.secret) if of_queue else ("", b"")
    arguments = [
        (digest(fingerprint, secret) if fingerprint and of_queue else b"", member)
        for member, fingerprint in found.items()
    ]
    keys = queue.keys.of_scripts(queue.filter_key)
    for first in range(0, len(arguments), _BATCH):
        batch = [part for pair in arguments[first : first + _BATCH] for part in pair]
        if target.retry(partial(_REQUEUE.call, target.client, keys, ["", filter_id, *batch])) < 0:
            raise RefusedError(f"the filter at {queue.filter_key!r} was replaced meanwhile: run it again")
