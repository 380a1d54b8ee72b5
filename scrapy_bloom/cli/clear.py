"""Delete a filter. Without --yes, show the data to delete; with --yes, delete and show it.

Without --yes the exit code is 1 if there is any data to delete. Data that has replaced the shown data meanwhile is
kept, and the exit code is 2.

for example:
  scrapy bloom clear news
  scrapy bloom clear news --yes
  scrapy bloom clear news --with-queue --yes
  scrapy bloom clear --key news:dupefilter --redis-url redis://localhost:6379 --yes
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from redis.client import NEVER_DECODE
from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._requests import FINGERPRINT
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.errors import ConfigError, MismatchError, WrongTypeError
from scrapy_bloom.filter.info import read_filter
from scrapy_bloom.queue.inspection import QueueState, sum_of
from scrapy_bloom.queue.keys import names_shared_filter
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.text import as_size, as_text, plural
from scrapy_bloom.transport.scripts import Script

_DELETE = Script("delete", "filter")
# Members of a SET that are looked at.
_SAMPLE_MEMBERS = 100


class _Contents(NamedTuple):
    """The data at the filter's key, for people and for JSON.

    `id` is that of a filter, or a member of a SET: deleted is only a key with it.
    """

    id: str | bytes
    text: str
    figures: dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("--yes", action="store_true", help="delete the data; without --yes it is only shown")
    queue = "also delete the queue, with its leases, dead letters and failed requests, and its list of workers"
    parser.add_argument("--with-queue", action="store_true", help=queue)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target = CrawlTarget(options, settings)
    if options.key is None and names_shared_filter(target.settings):
        raise ConfigError(
            f"SCHEDULER_DUPEFILTER_KEY = {target.key!r}: spiders share this filter, and all of them would fetch their "
            f"pages again, so nothing is deleted; to delete it nevertheless, give --key {target.key}"
        )
    if options.with_queue and target.queue is None:
        raise ConfigError("--with-queue: give --queue KEY, or the name of a spider")
    parts = target.partitions
    filters = [part.retry(partial(_read, target.client, part.key)) for part in parts]
    states = target.inspect_queues()
    queues = [*map(sum_of, states)]
    doomed = queues[0] if options.with_queue else None
    each_doomed: Sequence[QueueState | None] = states[0] if doomed else [None] * len(parts)
    is_empty = not any(filters) and all(queue is None or queue.is_empty for queue in each_doomed)
    going = [*zip(parts, filters, each_doomed, strict=True)]
    # The first partition goes last, since it has the number of all. Before any output, whose reader may be gone.
    while options.yes and not is_empty and going and _delete(*going[-1]):
        del going[-1]
    left = [key for part, _, queue in going for key in (part.key, *([queue.key] if queue else []))]
    left, is_deleted = left if options.yes and not is_empty else [], not going
    report: dict[str, Any] = {"server": target.server, "key": target.key}
    report |= {"filters": [each.figures for each in filters if each], "deleted": is_deleted, "left": left}
    names = ("key", "waiting", "leased", "dead_letters", "failed")
    report["queues"] = [
        {name: getattr(queue, name) for name in names} | {"workers": len(queue.workers), "goes": queue is doomed}
        for queue in queues
    ]
    lines = [f"server: {target.server}"]
    lines += [f"key: {part.key}: {each.text if each else 'empty'}" for part, each in zip(parts, filters, strict=True)]
    lines += _queue_lines(queues, doomed, is_deleted=options.yes, is_empty=is_empty)
    if not is_empty and not left:
        lines.append("deleted" if is_deleted else "nothing was deleted: run it with --yes to delete this")
    code = _console.report(options, report, "\n".join(lines), answer=options.yes or is_empty)
    if left:
        raise WrongTypeError(
            f"{', '.join(left)}: not deleted, because the data has changed since it was shown; a queue stays with its "
            "filter. Run it without --yes to see the present data"
        )
    return code


def _read(client: Any, key: str) -> _Contents | None:
    """Return the data at a filter's key, or None.

    Raises:
        WrongTypeError: the data is neither a filter nor scrapy-redis's SET.
    """
    figures: dict[str, Any] = {"key": key, "layers": 0, "memory_bytes": 0, "count": 0, "forgotten": 0}
    figures |= {"kind": "set", "unfinished": None}
    if as_text(client.type(key)) == "set":
        _, members = client.execute_command("SSCAN", key, 0, "COUNT", _SAMPLE_MEMBERS, **{NEVER_DECODE: []})
        if not all(map(FINGERPRINT.fullmatch, members)):
            raise WrongTypeError(f"the key {key!r} holds a SET of other members than fingerprints: it is not deleted")
        figures["count"] = client.scard(key)
        text = f"a SET of {plural(figures['count'], 'member')}, as scrapy-redis leaves it"
        return _Contents(next(iter(members)), text, figures)
    try:
        found = read_filter(client, key)
    except MismatchError as error:
        text = f"a filter that cannot be read ({error})"
        return _Contents(as_text(client.hget(key, "id")), text, figures | {"kind": "unreadable filter"})
    if found is None:
        return None
    info = found.info
    parts = [plural(info.layers, "layer"), as_size(info.memory_bytes), plural(info.count, "request")]
    parts = ["empty"] if found.is_empty else parts
    parts += [plural(info.forgotten, "forgotten request")] * bool(info.forgotten)
    parts += [f"incomplete (`scrapy bloom {found.unfinished}`)"] * bool(found.unfinished)
    figures |= {name: value for name, value in vars(info).items() if name in figures}
    return _Contents(
        found.id, ", ".join(["a filter", *parts]), figures | {"kind": "filter", "unfinished": found.unfinished}
    )


def _delete(target: CrawlTarget, contents: _Contents | None, queue: QueueState | None) -> bool:
    """Delete the shown data; return False if there is other data by now."""
    keys: tuple[str, ...] = (target.key,)
    arguments: list[str | bytes | int] = [contents.id if contents else ""]
    if queue is not None:
        keys = RequestQueue(target.client, queue.key, target.key).keys.of_scripts(target.key)
        arguments += [queue.kind, queue.crawl, *(worker.name for worker in queue.workers)]
    return bool(target.retry(lambda: _DELETE.call(target.client, keys, arguments)))


def _queue_lines(queues: list[QueueState], doomed: QueueState | None, *, is_deleted: bool, is_empty: bool) -> list[str]:
    lines = []
    for queue in queues:
        counts = f"{plural(queue.waiting, 'pending request')}, {queue.leased:,} leased, "
        counts += f"{plural(queue.dead_letters, 'dead letter')}, {plural(queue.failed, 'failed request')}, "
        counts += plural(len(queue.workers), "worker")
        lines.append(f"queue: {queue.key}: {'deleted, too' if queue is doomed else 'kept'}; {counts}")
    kept = sum(queue.waiting + queue.leased for queue in queues if queue is not doomed)
    if kept and not is_empty:
        lines.append(
            f"warning: the empty filter does not know the {plural(kept, 'request')} of the kept queue: a further link "
            "to such a page fetches it again; --with-queue deletes the requests, too"
        )
    if any(not worker.is_silent for queue in queues for worker in queue.workers):
        text = "continue" if is_deleted else "would continue"
        held = ", and only with the requests that they hold" if doomed else ""
        advice = "" if is_deleted else "; stop them first"
        lines.append(f"warning: live workers {text} with an empty filter{held}: they fetch pages again{advice}")
    return lines
