"""Move dead letters back to the queue: requests that no worker could read, or that killed too many workers.

With --match, move only requests whose stored bytes contain a text, such as a part of the URL. The bytes are searched
and never deserialized, since unpickling executes code.
"""

import argparse
import secrets

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.queue.operations import (
    Ending,
    Join,
    Leave,
    QueueOperation,
    ReadDeadLetters,
    Redrive,
    Reply,
    RequestQueue,
    Status,
)
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.retry import retry_until

EXAMPLES = """\
examples:
  scrapy bloom requeue news
  scrapy bloom requeue news --match example.com/shop --dry-run
"""

_BATCH = 100
# The sequence number of a worker without syncs.
_NUMBER = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument(
        "--match", default="", metavar="TEXT", help="move only requests whose stored bytes contain TEXT"
    )
    parser.add_argument("--dry-run", action="store_true", help="count the dead letters, and move none")
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target = CrawlTarget.of(options, settings, wait=True)
    if not target.queues:
        raise UsageError("give the name of a spider of the project, or --queue KEY", print_help=False)
    (queue,) = target.queues
    letters = _DeadLetters(target, queue)
    members = letters.read()
    matching = [member for member in members if options.match.encode() in member]
    if matching and not options.dry_run:
        letters.requeue(matching)
    report = {
        "queue": queue,
        "dead_letters": len(members),
        "matching": len(matching),
        "dry_run": options.dry_run,
    }
    verb = "would requeue" if options.dry_run else "requeued"
    text = f"{verb} {len(matching):,} of {plural(len(members), 'dead letter')} of {queue}"
    _console.print_report(options, report, text)
    return ExitCode.DONE


class _DeadLetters:
    """The dead letters of a queue, moved by a worker that registers for the time of the move."""

    def __init__(self, target: CrawlTarget, queue: str) -> None:
        self._requests = RequestQueue(target.queue_client, queue)
        self._wait = target.wait
        self._worker = f"requeue-{secrets.token_hex(4)}"
        self._lease_seconds = f"{BloomSettings.from_settings(target.settings).lease:g}"

    def read(self) -> list[bytes]:
        """Return the stored bytes of all dead letters."""
        members: list[bytes] = []
        while entries := self._execute(ReadDeadLetters(self._worker, len(members), _BATCH)).entries:
            members += [entry.member for entry in entries]
        return members

    def requeue(self, members: list[bytes]) -> None:
        """Move dead letters to the queue; letters that another worker has moved meanwhile are skipped.

        Raises:
            RefusedError: the queue is being closed, or the lease expired.
        """
        if self._execute(Join(self._worker, self._lease_seconds, _NUMBER, is_new=False)).status is Status.WAIT:
            raise RefusedError(
                f"the last worker of a crawl is closing the queue {self._requests.keys.queue!r}: run it again later"
            )
        for first in range(0, len(members), _BATCH):
            if self._execute(Redrive(self._worker, tuple(members[first : first + _BATCH]))).status is Status.EXPIRED:
                raise RefusedError("this took longer than BLOOMFILTER_LEASE, and counts as a dead worker: run it again")
        self._execute(Leave(self._worker, _NUMBER, Ending.KEEP))

    def _execute(self, operation: QueueOperation) -> Reply:
        return retry_until(lambda: self._requests.execute(operation), self._wait)
