"""Delete a filter. Without --yes, show the data to delete; with --yes, delete and show it.

Without --yes the exit code is 1 if there is any data to delete. Data that has replaced the shown data meanwhile is
kept, and the exit code is 2.
"""

import argparse
import re
from dataclasses import dataclass
from typing import Any

from redis.client import NEVER_DECODE
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import as_size, as_text, plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.errors import MismatchError, WrongTypeError
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.queue.inspection import QueueState
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.scripts import Script

EXAMPLES = """\
examples:
  scrapy bloom clear news
  scrapy bloom clear news --yes
  scrapy bloom clear news --with-queue --yes
  scrapy bloom clear --key news:dupefilter --redis-url redis://localhost:6379 --yes
"""

_DELETE = Script("delete", "filter")
_FINGERPRINT = re.compile(rb"[0-9a-fA-F]{40}")
# Members of a SET that are looked at.
_SAMPLE_MEMBERS = 100


@dataclass(frozen=True)
class _Contents:
    """The data at the filter's key.

    Attributes:
        kind: its kind, as errors name it.
        id: the id of a filter, or a member of a SET: deleted is only a key with it.
        found: the filter, if it can be read.
        members: the number of members of a SET.
        problem: why a filter cannot be read, or "".
    """

    kind: str
    id: str | bytes
    found: StoredFilter | None = None
    members: int = 0
    problem: str = ""

    @property
    def text(self) -> str:
        """A description for people."""
        if self.kind == "set":
            return f"a SET of {plural(self.members, 'member')}, as scrapy-redis leaves it"
        if self.found is None:
            return f"a filter that cannot be read ({self.problem})"
        info = self.found.info
        parts = ["a filter", plural(info.layers, "layer"), as_size(info.memory_bytes), plural(info.count, "request")]
        if self.found.is_empty:
            parts[1:] = ["empty"]
        if info.forgotten:
            parts.append(plural(info.forgotten, "forgotten request"))
        if self.found.unfinished:
            parts.append(f"incomplete (`scrapy bloom {self.found.unfinished}`)")
        if info.users:
            parts.append(f"used by the queues {', '.join(info.users)}")
        return ", ".join(parts)

    def as_dict(self, key: str) -> dict[str, Any]:
        """Return the data for JSON."""
        info = self.found.info if self.found else None
        return {
            "key": key,
            "kind": self.kind,
            "layers": info.layers if info else 0,
            "memory_bytes": info.memory_bytes if info else 0,
            "count": info.count if info else self.members,
            "forgotten": info.forgotten if info else 0,
            "unfinished": self.found.unfinished if self.found else None,
            "users": info.users if info else [],
        }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("--yes", action="store_true", help="delete the data; without --yes it is only shown")
    parser.add_argument(
        "--with-queue",
        action="store_true",
        help="also delete the queue, with its leases, dead letters and failed requests, and its list of workers",
    )
    _console.add_json_option(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target = CrawlTarget(options, settings)
    if options.with_queue and target.queue is None:
        raise UsageError("--with-queue: give --queue KEY, or the name of a spider", print_help=False)
    contents = target.retry(lambda: _read(target.client, target.key))
    queues = [target.inspect_queue(name) for name in target.queues_of(contents.found if contents else None)]
    doomed = next((queue for queue in queues if options.with_queue and queue.key == target.queue), None)
    is_empty = contents is None and (doomed is None or doomed.is_empty)
    # Before any output, whose reader may be gone.
    is_deleted = options.yes and not is_empty and _delete(target, contents, doomed)
    left = [target.key, *([doomed.key] if doomed else [])] if options.yes and not is_empty and not is_deleted else []
    report = {
        "server": target.server,
        "key": target.key,
        "filters": [contents.as_dict(target.key)] if contents else [],
        "queues": [_as_dict(queue, goes=queue is doomed) for queue in queues],
        "deleted": is_deleted,
        "left": left,
    }
    lines = [
        f"server: {target.server}",
        f"key: {target.key}: {contents.text if contents else 'empty'}",
        *_queue_lines(queues, doomed, is_deleted=options.yes, is_empty=is_empty),
    ]
    if not is_empty and not left:
        lines.append("deleted" if is_deleted else "nothing was deleted: run it with --yes to delete this")
    _console.print_report(options, report, "\n".join(lines))
    if left:
        raise WrongTypeError(
            f"{', '.join(left)}: not deleted, because the data has changed since it was shown; a queue stays with its "
            "filter. Run it without --yes to see the present data"
        )
    return ExitCode.DONE if options.yes or is_empty else ExitCode.NO


def _read(client: Any, key: str) -> _Contents | None:
    """Return the data at a filter's key, or None.

    Raises:
        WrongTypeError: the data is neither a filter nor scrapy-redis's SET.
    """
    if as_text(client.type(key)) == "set":
        _, members = client.execute_command("SSCAN", key, 0, "COUNT", _SAMPLE_MEMBERS, **{NEVER_DECODE: []})
        members = list(members)
        if not all(map(_FINGERPRINT.fullmatch, members)):
            raise WrongTypeError(f"the key {key!r} holds a SET of other members than fingerprints: it is not deleted")
        return _Contents("set", members[0], members=client.scard(key))
    try:
        found = stored.read(client, key)
    except MismatchError as error:
        return _Contents("unreadable filter", as_text(client.hget(key, "id")), problem=str(error))
    return _Contents("filter", found.id, found) if found else None


def _delete(target: CrawlTarget, contents: _Contents | None, queue: QueueState | None) -> bool:
    """Delete the shown data; return False if there is other data by now."""
    keys: tuple[str, ...] = (target.key,)
    arguments: list[str | bytes | int] = [contents.id if contents else ""]
    if queue is not None:
        keys = RequestQueue(target.client, queue.key, target.key).keys.of_scripts(target.key)
        arguments += [queue.kind, queue.crawl, *(worker.name for worker in queue.workers)]
    return bool(target.retry(lambda: _DELETE.call(target.client, keys, arguments)))


def _as_dict(queue: QueueState, *, goes: bool) -> dict[str, Any]:
    figures = {name: getattr(queue, name) for name in ("key", "waiting", "leased", "dead_letters", "failed")}
    return {**figures, "workers": len(queue.workers), "goes": goes}


def _queue_lines(queues: list[QueueState], doomed: QueueState | None, *, is_deleted: bool, is_empty: bool) -> list[str]:
    lines = []
    for queue in queues:
        counts = [
            plural(queue.waiting, "pending request"),
            f"{queue.leased:,} leased",
            plural(queue.dead_letters, "dead letter"),
            plural(queue.failed, "failed request"),
            plural(len(queue.workers), "worker"),
        ]
        lines.append(f"queue: {queue.key}: {'deleted, too' if queue is doomed else 'kept'}; {', '.join(counts)}")
    kept = sum(queue.waiting + queue.leased for queue in queues if queue is not doomed)
    if kept and not is_empty:
        lines.append(
            f"warning: the empty filter does not know the {plural(kept, 'request')} of the kept queue: a further link "
            "to such a page fetches it again; --with-queue deletes the requests, too"
        )
    if any(not worker.is_silent for queue in queues for worker in queue.workers):
        text = "continue" if is_deleted else "would continue"
        advice = "" if is_deleted else "; stop them first"
        lines.append(f"warning: live workers {text} with an empty filter and fetch pages again{advice}")
    return lines
