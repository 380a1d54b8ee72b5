"""Move dead letters back to the queue: requests that no worker could read, or that killed too many workers.

With --failed, move the failed requests instead that are kept for the next run, so that this run fetches them. With
--match, move only requests whose stored bytes contain a text, such as a part of the URL. The bytes are searched and
never deserialized, since unpickling executes code. Workers may crawl meanwhile.
"""

import argparse
from functools import partial
from typing import Any

from redis.client import NEVER_DECODE
from scrapy.settings import Settings

from scrapy_bloom._format import plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.hashing import digest
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.scripts import Script

EXAMPLES = """\
examples:
  scrapy bloom requeue news
  scrapy bloom requeue news --failed
  scrapy bloom requeue news --match example.com/shop --dry-run
"""

_REQUEUE = Script("requeue", "filter", "queue")
_BATCH = 100


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("--failed", action="store_true", help="move the failed requests that are kept for the next run")
    parser.add_argument(
        "--match", default="", metavar="TEXT", help="move only requests whose stored bytes contain TEXT"
    )
    parser.add_argument("--dry-run", action="store_true", help="count the requests, and move none")
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target = CrawlTarget(options, settings, waits=True)
    name = target.require_queue()
    queue = target.request_queue(target.inspect_queue(name))
    read = _failed if options.failed else _dead_letters
    found = target.retry(partial(read, target.client, queue))
    matching = {member: fingerprint for member, fingerprint in found.items() if options.match.encode() in member}
    if not options.dry_run:
        _requeue(target, queue, matching)
    state = target.inspect_queue(name)
    report = {
        "queue": name,
        "dead_letters": state.dead_letters if options.failed else len(found),
        "failed": len(found) if options.failed else state.failed,
        "matching": len(matching),
        "dry_run": options.dry_run,
    }
    verb = "would requeue" if options.dry_run else "requeued"
    kind = "failed request" if options.failed else "dead letter"
    _console.print_report(options, report, f"{verb} {len(matching):,} of {plural(len(found), kind)} of {name}")
    return ExitCode.DONE


def _dead_letters(client: Any, queue: RequestQueue) -> dict[bytes, bytes | None]:
    """Return the dead letters, whose fingerprints are not known."""
    members: list[bytes] = []
    while part := client.execute_command(
        "ZRANGE", queue.keys.dead_letters, len(members), len(members) + _BATCH - 1, **{NEVER_DECODE: []}
    ):
        members += part
    return dict.fromkeys(members)


def _failed(_: Any, queue: RequestQueue) -> dict[bytes, bytes | None]:
    """Return the failed requests with their fingerprints, or None if a request bypasses the filter."""
    cursor, portion = queue.read_failed()
    offers = [offer for _, offer in portion]
    while cursor:
        cursor, portion = queue.read_failed(cursor)
        offers += [offer for _, offer in portion]
    return {offer.member: offer.fingerprint for offer in offers}


def _requeue(target: CrawlTarget, queue: RequestQueue, found: dict[bytes, bytes | None]) -> None:
    """Move requests to the queue, and mark them in the filter; requests that were moved meanwhile are skipped."""
    of_queue = target.retry(lambda: stored.read(target.client, queue.filter_key)) if any(found.values()) else None
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
