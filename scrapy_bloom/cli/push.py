"""Queue the undelivered requests in a worker's file `undelivered-….jsonl`.

The next start of the crawl in the file's directory would do the same. Workers may crawl meanwhile. A request that the
filter knows is dropped as a repeat, unless the worker had already sent it to the filter and got no reply. The file is
deleted when all its requests are queued.
"""

import argparse
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.delivery.executor import Executor
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.operations import Ending, Join, RequestQueue
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.queue.worker_state import Phase
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.spool.directory import SpoolDirectory, queue_in
from scrapy_bloom.transport.retry import retry_until

EXAMPLES = """\
examples:
  scrapy bloom push news undelivered-news_requests-1f2e3d4c.jsonl
  scrapy bloom push --key news:dupefilter --redis-url redis://localhost:6379 undelivered-news_requests-1f2e3d4c.jsonl
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] FILE [FILE ...]"
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="the files of a worker; the name of a spider may come first"
    )
    add_target_options(parser, spider=False)
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    first, *rest = options.files
    options.spider, files = (first, rest) if rest and not Path(first).is_file() else (None, options.files)
    target = CrawlTarget.of(options, settings, wait=True)
    holder = _FilterHolder(target)
    reports = [_push(target, holder, Path(file)) for file in files]
    lines = []
    for report in reports:
        requests = plural(report["queued"], "request")
        lines.append(f"{report['file']}: queued {requests} at {report['queue']}, {plural(report['repeats'], 'repeat')}")
    _console.print_report(options, {"files": reports}, "\n".join(lines))
    return ExitCode.DONE


class _FilterHolder:
    """The filter of the target, with the stored parameters if no spider's settings are known."""

    def __init__(self, target: CrawlTarget) -> None:
        stored = target.read_filter()
        parameters = target.parameters
        if stored is not None and not target.has_spider:
            parameters = stored.parameters
        self.filter = target.filter_type.with_parameters(
            target.filter_client, target.key, parameters, retry_timeout=target.wait
        )

    def note_workers(self, *, is_alone: bool) -> None:
        """Do nothing: no crawl reports it."""

    def forget(self, fingerprints: Sequence[bytes]) -> None:
        """Have the filter forget requests."""
        self.filter.forget_many(fingerprints)

    def release(self, user: str) -> bool:
        """Remove a queue's reference to the filter; return whether the filter was deleted."""
        return self.filter.remove_reference(user)


def _push(target: CrawlTarget, holder: _FilterHolder, path: Path) -> dict[str, Any]:
    try:
        queue = queue_in(path)
    except ValueError as error:
        raise UsageError(str(error), print_help=False) from None
    if target.queues and queue not in target.queues:
        raise UsageError(f"{path} has requests of the queue {queue!r}, not of {target.queues[0]!r}", print_help=False)
    visitor = _VisitingWorker(target, holder, queue)
    read = repeats = 0
    try:
        for entries in SpoolDirectory(queue, path.parent).load_file(path):
            read += len(entries)
            repeats += visitor.deliver(entries)
    finally:
        visitor.leave()
    if path.exists():
        raise RefusedError(f"{path} was not deleted: another worker uses it, or a part of it could not be read")
    return {"file": str(path), "queue": queue, "queued": read - repeats, "repeats": repeats}


class _VisitingWorker:
    """A registered worker that delivers requests, and takes none.

    Raises:
        RefusedError: the last worker of a crawl is closing the queue.
    """

    def __init__(self, target: CrawlTarget, holder: _FilterHolder, queue: str) -> None:
        config = BloomSettings.from_settings(target.settings)
        name = f"push-{secrets.token_hex(4)}"
        self._worker = QueueWorker(name, f"{config.lease:g}", config.batch_size, lambda _: False)
        self._executor = Executor(self._worker, RequestQueue(target.queue_client, queue), holder)
        self._wait = target.wait
        while self._worker.phase is not Phase.WORKING:
            operation, _ = retry_until(self._executor.execute_next, self._wait)
            if isinstance(operation, Join) and self._worker.phase is Phase.JOINING:
                raise RefusedError(f"the last worker of a crawl is closing the queue {queue!r}: run it again later")

    def deliver(self, entries: Iterable[OutboxEntry]) -> int:
        """Deliver requests and return the number of repeats among them."""
        for entry in entries:
            self._worker.offer(entry)
        repeats = 0
        while self._worker.has_news:
            repeats += len(retry_until(self._executor.execute_next, self._wait)[1])
        return repeats

    def leave(self) -> None:
        """Leave the queue and keep its requests."""
        self._worker.stop()
        self._worker.leave(Ending.KEEP)
        while self._worker.phase is not Phase.GONE:
            retry_until(self._executor.execute_next, self._wait)
