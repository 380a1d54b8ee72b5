"""Delete a filter. Without --yes it shows what would go; with --yes it deletes that, and shows what has gone.

Without --yes the exit code is 1 where something would go, and 0 where there is nothing. What has taken its place by the
time that it is deleted is left, and the exit code is 2.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import as_size
from scrapy_bloom.cli import _console, key_contents
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget
from scrapy_bloom.cli._target import add_options as add_target
from scrapy_bloom.cli.importing.import_state import ImportKeys
from scrapy_bloom.cli.key_contents import DeletionPlan, KeyContents
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.describe import FilterInfo
from scrapy_bloom.queue.inspection import QueueState

EXAMPLES = """\
examples:
  scrapy bloom clear news
  scrapy bloom clear news --yes
  scrapy bloom clear news --with-queue --yes
  scrapy bloom clear --key news:dupefilter --redis-url redis://localhost:6379 --yes
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target(parser)
    parser.add_argument("--yes", action="store_true", help="delete what was shown")
    parser.add_argument(
        "--with-queue",
        action="store_true",
        help="delete the queue as well, with what its workers have leased, the dead letters and the list of workers",
    )
    _console.add_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    target = CrawlTarget.of(options, settings)
    flushed = target.queues if options.with_queue else []
    if options.with_queue and not flushed:
        raise UsageError("--with-queue: give --queue KEY, or the name of a spider", print_help=False)
    filters = [target.key, ImportKeys.of(target.key).filling]
    doomed = key_contents.plan_deletion(target.store, target.client, filters, target.queues, flushed)
    # Before any output: its reader may be gone.
    left = key_contents.execute_deletion(target.store, target.client, doomed) if options.yes else []
    if options.json:
        deleted = options.yes and not doomed.is_nothing and not left
        _console.print_json(_as_json(target, doomed, left, deleted=deleted))
    else:
        _tell(target, doomed, is_deleted=options.yes)
        if not doomed.is_nothing and not left:
            print("deleted" if options.yes else "nothing was deleted: --yes deletes it")
    if left:
        raise WrongTypeError(
            f"{', '.join(left)}: not deleted, since something else is there now than what was shown; a queue stays "
            "with its filter. Run it without --yes to see what is there"
        )
    return ExitCode.DONE if options.yes or doomed.is_nothing else ExitCode.NO


def _tell(target: CrawlTarget, doomed: DeletionPlan, *, is_deleted: bool) -> None:
    print(f"server: {target.server}")
    if doomed.is_nothing:
        print(f"key: {target.key}: nothing is there")
    for contents, info in doomed.filters:
        print(f"key: {contents.key}: {_filter_text(contents, info)}")
    for queue in doomed.queues:
        print(f"queue: {queue.key}: {_queue_text(queue, goes=queue.key in doomed.flushed)}")
    if any(not worker.is_silent for queue in doomed.queues for worker in queue.workers):
        go_on, advice = ("go on", "") if is_deleted else ("would go on", "; stop them first")
        print(f"warning: workers are alive: they {go_on} with an empty filter, and fetch pages again{advice}")


def _filter_text(contents: KeyContents, info: FilterInfo | None) -> str:
    if contents.kind == key_contents.SET:
        return f"a SET of {contents.members:,} members, as scrapy-redis leaves it"
    if contents.kind == key_contents.SHARDS:
        return f"{contents.shards} shards of a filter whose hash is gone"
    found = contents.filter
    if found is None:
        return f"a filter that cannot be read ({contents.problem})"
    content = "without a layer yet"
    if info is not None:
        content = f"{info.layers} layers, {as_size(info.memory_bytes)}, about {info.estimated_count:,} requests"
    parts = [f"a filter, {content}"]
    if found.unfinished:
        parts.append(f"which `scrapy bloom {found.unfinished}` has not finished")
    if found.users:
        parts.append(f"kept for the queues {', '.join(found.users)}")
    return ", ".join(parts)


def _queue_text(queue: QueueState, *, goes: bool) -> str:
    fate = "goes, too" if goes else "stays"
    return (
        f"{fate}; {queue.waiting:,} requests wait, {queue.leased:,} are leased, {queue.dead_letters:,} are dead "
        f"letters, {len(queue.workers)} workers are registered"
    )


def _as_json(target: CrawlTarget, doomed: DeletionPlan, left: Sequence[str], *, deleted: bool) -> dict[str, Any]:
    return {
        "server": target.server,
        "key": target.key,
        "filters": [_filter_json(contents, info) for contents, info in doomed.filters],
        "queues": [
            {
                "key": queue.key,
                "waiting": queue.waiting,
                "leased": queue.leased,
                "dead_letters": queue.dead_letters,
                "workers": len(queue.workers),
                "goes": queue.key in doomed.flushed,
            }
            for queue in doomed.queues
        ],
        "deleted": deleted,
        "left": left,
    }


def _filter_json(contents: KeyContents, info: FilterInfo | None) -> dict[str, Any]:
    found = contents.filter
    return {
        "key": contents.key,
        "kind": contents.kind,
        "layers": info.layers if info else 0,
        "memory_bytes": info.memory_bytes if info else 0,
        "estimated_count": info.estimated_count if info else contents.members,
        "unfinished": found.unfinished if found else None,
        "users": found.users if found else [],
    }
