"""Queue dead letters again: requests that no worker could read.

A worker that starts does the same with all of them. With --match only those go whose stored bytes have this text in
them, such as a part of the URL. They are searched and not read: a pickle would execute what it says.
"""

import argparse
import secrets
from collections.abc import Iterator

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget
from scrapy_bloom.cli._target import add_options as add_target
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.queue.operations import Ending, Join, Leave, QueueOperation, ReadDeadLetters, Redrive, Reply, Status
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.retry import retry_until

EXAMPLES = """\
examples:
  scrapy bloom requeue news
  scrapy bloom requeue news --match example.com/shop --dry-run
"""

_AT_ONCE = 100
# The number of the last exchange of a worker that makes none.
_NUMBER = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target(parser)
    parser.add_argument("--match", default="", metavar="TEXT", help="only those that have this text in them")
    parser.add_argument("--dry-run", action="store_true", help="count them, and leave them where they are")
    _console.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    target = CrawlTarget.of(options, settings, wait=True)
    if not target.queues:
        raise UsageError("give the name of a spider of the project, or --queue KEY", print_help=False)
    (queue,) = target.queues
    letters = _DeadLetters(target, queue)
    found, matching = letters.find(options.match.encode())
    if not options.dry_run:
        letters.requeue(matching)
    told = {"queue": queue, "dead_letters": found, "matching": len(matching), "dry_run": options.dry_run}
    if options.json:
        _console.print_json(told)
    else:
        done = "would be queued again" if options.dry_run else "are queued again"
        print(f"{len(matching):,} of {found:,} dead letters of {queue} {done}")
    return ExitCode.DONE


class _DeadLetters:
    """The dead letters of a queue, for one who is a worker as long as it moves them."""

    def __init__(self, target: CrawlTarget, queue: str) -> None:
        self._requests = RequestQueue(target.client, queue)
        self._wait = target.wait
        self._worker = f"requeue-{secrets.token_hex(4)}"
        self._lease = f"{BloomSettings.from_settings(target.settings).lease:g}"

    def find(self, text: bytes) -> tuple[int, list[bytes]]:
        """Return how many there are, and those that have a text in them."""
        members = list(self._members())
        return len(members), [member for member in members if text in member]

    def requeue(self, members: list[bytes]) -> None:
        """Move them to the queue; one that somebody else has moved meanwhile is passed over.

        Raises:
            RefusedError: the queue is being closed.
        """
        if not members:
            return
        if self._execute(Join(self._worker, self._lease, _NUMBER, is_new=False)).status is Status.WAIT:
            raise RefusedError(
                f"the last worker of a crawl closes the queue {self._requests.keys.queue!r}: run it again"
            )
        for first in range(0, len(members), _AT_ONCE):
            if self._execute(Redrive(self._worker, tuple(members[first : first + _AT_ONCE]))).status is Status.EXPIRED:
                raise RefusedError("this took longer than BLOOMFILTER_LEASE, so that it counts as dead: run it again")
        self._execute(Leave(self._worker, _NUMBER, Ending.KEEP))

    def _members(self) -> Iterator[bytes]:
        start = 0
        while entries := self._execute(ReadDeadLetters(self._worker, start, _AT_ONCE)).entries:
            yield from (entry.member for entry in entries)
            start += len(entries)

    def _execute(self, operation: QueueOperation) -> Reply:
        return retry_until(lambda: self._requests.execute(operation), self._wait)
