"""Queue requests that a worker could not deliver, and left in a file `undelivered-….jsonl`.

The next start of the crawl in that directory would do the same. Workers may crawl meanwhile. A request that the filter
knows is a repeat, unless that worker had asked the filter for it and got no reply. The file is deleted when all
of it is queued.
"""

import argparse
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget
from scrapy_bloom.cli._target import add_options as add_target
from scrapy_bloom.delivery.executor import Executor
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.filter.bloom_filter import CrawlFilter
from scrapy_bloom.queue.operations import Ending, Join
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.queue.worker_state import Phase
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.spool.directory import SpoolDirectory, queue_in
from scrapy_bloom.transport.retry import retry_until


class OpenedFilter:
    """The filter of a target, made with the parameters that are stored, or else with those of the settings."""

    def __init__(self, target: CrawlTarget) -> None:
        stored = target.read()
        wanted = target.parameters
        # Without a spider nobody knows what its settings are.
        parameters = stored.parameters if stored is not None and not target.has_spider else wanted
        self.filter = CrawlFilter(
            target.client,
            target.key,
            capacity=parameters.capacity,
            error_rate=parameters.error_rate,
            expansion=parameters.expansion,
            ttl=parameters.ttl,
            fingerprint=parameters.fingerprint,
            retry_timeout=target.wait,
        )

    def note_workers(self, *, is_alone: bool) -> None:
        """Do nothing: there is no crawl to report on."""

    def release(self, user: str) -> bool:
        """Keep the filter for a queue no more; return whether it was deleted, without any user left."""
        return self.filter.remove_reference(user)


EXAMPLES = """\
examples:
  scrapy bloom push news undelivered-news_requests-1f2e3d4c.jsonl
  scrapy bloom push --key news:dupefilter --redis-url redis://localhost:6379 undelivered-news_requests-1f2e3d4c.jsonl
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    parser.usage = "%(prog)s [options] [SPIDER] FILE [FILE ...]"
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="what a worker left; before it, a spider of the project"
    )
    add_target(parser, spider=False)
    _console.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    first, *rest = options.files
    options.spider, files = (first, rest) if rest and not Path(first).is_file() else (None, options.files)
    target = CrawlTarget.of(options, settings, wait=True)
    holder = OpenedFilter(target)
    told = [_push(target, holder, Path(file)) for file in files]
    if options.json:
        _console.print_json({"files": told})
    else:
        for each in told:
            queued, repeats = each["queued"], each["repeats"]
            print(f"{each['file']}: {queued:,} requests queued at {each['queue']}, {repeats:,} were there twice")
    return ExitCode.DONE


def _push(target: CrawlTarget, holder: OpenedFilter, path: Path) -> dict[str, Any]:
    try:
        queue = queue_in(path)
    except ValueError as error:
        raise UsageError(str(error), print_help=False) from None
    if target.queues and queue not in target.queues:
        raise UsageError(f"{path} has requests of the queue {queue!r}, not of {target.queues[0]!r}", print_help=False)
    visit = _Visit.begin(target, holder, queue)
    read = repeats = 0
    try:
        for entries in SpoolDirectory(queue, path.parent).load_file(path):
            for entry in entries:
                visit.worker.offer(entry)
            read += len(entries)
            repeats += visit.deliver()
    finally:
        visit.end()
    if path.exists():
        raise RefusedError(f"{path} is still there: another worker has it, or not all of it could be read")
    return {"file": str(path), "queue": queue, "queued": read - repeats, "repeats": repeats}


@dataclass(frozen=True)
class _Visit:
    """A worker that delivers requests, and takes none."""

    worker: QueueWorker
    executor: Executor
    wait: float

    @classmethod
    def begin(cls, target: CrawlTarget, holder: OpenedFilter, queue: str) -> "_Visit":
        config = BloomSettings.from_settings(target.settings)
        worker = QueueWorker(f"push-{secrets.token_hex(4)}", f"{config.lease:g}", config.batch_size, lambda _: False)
        visit = cls(worker, Executor(worker, RequestQueue(target.client, queue), holder), target.wait)
        while worker.phase is not Phase.WORKING:
            operation, _ = retry_until(visit.executor.execute_next, visit.wait)
            if isinstance(operation, Join) and worker.phase is Phase.JOINING:
                raise RefusedError(f"the last worker of a crawl closes the queue {queue!r}: run it again in a moment")
        return visit

    def deliver(self) -> int:
        """Deliver what was offered, and return how many of it were repeats."""
        repeats = 0
        while self.worker.has_news:
            repeats += len(retry_until(self.executor.execute_next, self.wait)[1])
        return repeats

    def end(self) -> None:
        """Leave; what is queued stays."""
        self.worker.stop()
        self.worker.leave(Ending.KEEP)
        while self.worker.phase is not Phase.GONE:
            retry_until(self.executor.execute_next, self.wait)
