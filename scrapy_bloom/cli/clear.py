"""Delete a filter. Without --yes, show the data to delete; with --yes, delete and show it.

Without --yes the exit code is 1 if there is any data to delete. Data that has replaced the shown data meanwhile is
kept, and the exit code is 2.
"""

import argparse
from typing import Any

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import as_size, plural
from scrapy_bloom.cli import _console, key_contents
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.cli.key_contents import DeletionPlan, KeyContents
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.describe import FilterInfo
from scrapy_bloom.settings import BloomSettings

EXAMPLES = """\
examples:
  scrapy bloom clear news
  scrapy bloom clear news --yes
  scrapy bloom clear news --with-queue --yes
  scrapy bloom clear --key news:dupefilter --redis-url redis://localhost:6379 --yes
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("--yes", action="store_true", help="delete the data; without --yes it is only shown")
    parser.add_argument(
        "--with-queue",
        action="store_true",
        help="also delete the queue, with its leases, its dead letters and its list of workers",
    )
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target = CrawlTarget.of(options, settings)
    flushed = target.queues if options.with_queue else []
    if options.with_queue and not flushed:
        raise UsageError("--with-queue: give --queue KEY, or the name of a spider", print_help=False)
    plan = key_contents.plan_deletion(
        target.store, target.filter_client, target.queue_client, [target.key], queues=target.queues, flushed=flushed
    )
    # Before any output, whose reader may be gone.
    left: list[str] = []
    if options.yes:
        lease = BloomSettings.from_settings(target.settings).lease
        left = key_contents.execute_deletion(target.store, target.queue_client, plan, lease)
    report = {
        **target.servers,
        "key": target.key,
        "filters": [_filter_as_dict(contents, info) for contents, info in plan.filters],
        "queues": _queues_as_dicts(plan),
        "deleted": options.yes and not plan.is_empty and not left,
        "left": left,
    }
    _console.print_report(options, report, _text(target, plan, left, is_deleted=options.yes))
    if left:
        raise WrongTypeError(
            f"{', '.join(left)}: not deleted, because the data has changed since it was shown; a queue stays with its "
            "filter. Run it without --yes to see the present data"
        )
    return ExitCode.DONE if options.yes or plan.is_empty else ExitCode.NO


def _text(target: CrawlTarget, plan: DeletionPlan, left: list[str], *, is_deleted: bool) -> str:
    lines = [f"server: {target.server}"]
    if target.is_separate:
        lines.append(f"server of the queue: {target.queue_server}")
    if plan.is_empty:
        lines.append(f"key: {target.key}: empty")
    lines += [f"key: {contents.key}: {_filter_text(contents, info)}" for contents, info in plan.filters]
    for queue in _queues_as_dicts(plan):
        counts = [
            plural(queue["waiting"], "pending request"),
            f"{queue['leased']:,} leased",
            plural(queue["dead_letters"], "dead letter"),
            plural(queue["workers"], "worker"),
        ]
        lines.append(f"queue: {queue['key']}: {'deleted, too' if queue['goes'] else 'kept'}; {', '.join(counts)}")
    kept = sum(queue.waiting + queue.leased for queue in plan.queues if queue.key not in plan.flushed)
    if kept and not plan.is_empty:
        lines.append(
            f"warning: the empty filter does not know the {plural(kept, 'request')} of the kept queue: a further link "
            "to such a page fetches it again; --with-queue deletes the requests, too"
        )
    if any(not worker.is_silent for queue in plan.queues for worker in queue.workers):
        text = "continue" if is_deleted else "would continue"
        advice = "" if is_deleted else "; stop them first"
        lines.append(f"warning: live workers {text} with an empty filter and fetch pages again{advice}")
    if not plan.is_empty and not left:
        lines.append("deleted" if is_deleted else "nothing was deleted: run it with --yes to delete this")
    return "\n".join(lines)


def _filter_text(contents: KeyContents, info: FilterInfo | None) -> str:
    found, forgotten = contents.filter, plural(sum(contents.forgotten.values()), "forgotten request")
    match contents.kind:
        case key_contents.SET:
            return f"{contents.description} of {plural(contents.members, 'member')}, as scrapy-redis leaves it"
        case key_contents.SHARDS:
            return f"{contents.description}: {plural(contents.shards, 'shard')}"
        case key_contents.FORGOTTEN:
            return f"{contents.description}: {forgotten}"
    if found is None:
        return f"{contents.description} ({contents.problem})"
    parts = [contents.description]
    if info is None:
        parts.append("empty")
    else:
        parts += [plural(info.layers, "layer"), as_size(info.memory_bytes)]
        parts.append(f"about {plural(info.estimated_count, 'request')}")
    parts += [forgotten] * bool(contents.forgotten)
    if found.unfinished:
        parts.append(f"incomplete (`scrapy bloom {found.unfinished}`)")
    if found.references:
        parts.append(f"used by the queues {', '.join(found.references)}")
    return ", ".join(parts)


def _filter_as_dict(contents: KeyContents, info: FilterInfo | None) -> dict[str, Any]:
    found = contents.filter
    return {
        "key": contents.key,
        "kind": contents.kind,
        "layers": info.layers if info else 0,
        "memory_bytes": info.memory_bytes if info else 0,
        "estimated_count": info.estimated_count if info else contents.members,
        "forgotten": sum(contents.forgotten.values()),
        "unfinished": found.unfinished if found else None,
        "users": found.references if found else [],
    }


def _queues_as_dicts(plan: DeletionPlan) -> list[dict[str, Any]]:
    return [
        {
            "key": queue.key,
            "waiting": queue.waiting,
            "leased": queue.leased,
            "dead_letters": queue.dead_letters,
            "workers": len(queue.workers),
            "goes": queue.key in plan.flushed,
        }
        for queue in plan.queues
    ]
