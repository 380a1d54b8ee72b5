"""Delete a filter. Without --yes, show the data to delete; with --yes, delete and show it.

With scrapy-redis's FifoQueue or LifoQueue the queue becomes a list again, unless workers live, so that scrapy-redis can
go on with it.

Without --yes the exit code is 1 if there is any data to delete. A filter that other spiders share is deleted only if
--key names it. Data that has replaced the shown data meanwhile is kept, and the exit code is 2.

for example:
  scrapy bloom clear news
  scrapy bloom clear news --yes
  scrapy bloom clear news --with-queue --yes
  scrapy bloom clear --key news:dupefilter --redis-url redis://localhost:6379 --yes
"""

import argparse
from functools import partial
from typing import Any, NamedTuple

from scrapy.settings import Settings
from scrapy_redis import defaults

from scrapy_bloom.cli import console
from scrapy_bloom.cli.target import CrawlTarget, Place, add_target_options
from scrapy_bloom.codec import order_of
from scrapy_bloom.errors import ConfigError, MismatchError, WrongTypeError
from scrapy_bloom.queue.inspection import QueueState, sum_of
from scrapy_bloom.queue.keys import QueueKeys, names_shared_filter
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.settings import load_setting
from scrapy_bloom.text import as_size, as_text, plural
from scrapy_bloom.transport.scripts import FILTER, Script

_DELETE, _CLEAR = Script("delete", *FILTER), Script("clear", *FILTER, "steps", "queue")


class _Filter(NamedTuple):
    """A filter, for people and for JSON. Deleted is only a filter with its id."""

    id: str
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
    is_shared = options.key is None and names_shared_filter(target.settings)
    kept = f"the filter at {target.key} is kept, as other spiders may share it; --key {target.key} deletes it"
    if is_shared and not options.with_queue:
        raise ConfigError(f"SCHEDULER_DUPEFILTER_KEY = {target.key!r}: {kept}, and --with-queue the spider's queue")
    if options.with_queue and target.queue is None:
        raise ConfigError("--with-queue: give --queue KEY, or the name of a spider")
    parts = target.partitions
    filters = [_read(part) for part in parts]
    queues = [part.inspect_queue(part.queue) if part.queue else None for part in parts]
    none = [None] * len(parts)
    going = [*zip(parts, none if is_shared else filters, queues if options.with_queue else none, strict=True)]
    is_empty = all(found is None and (queue is None or queue.is_empty) for _, found, queue in going)
    # The first partition goes last, since it has the number of all. Before any output, whose reader may be gone.
    while options.yes and going:
        part, found, queue = going[-1]
        if not (is_empty or _delete(part, found, queue)):
            keys = [] if is_shared else [each.key for each, _, _ in going]
            keys += [each.key for _, _, each in going if each]
            why = "the data has changed since it was shown; a queue stays with its filter"
            raise WrongTypeError(f"{', '.join(keys)}: not deleted, because {why}. Run it without --yes to see the data")
        if part.queue and queue is None:  # another scheduler may take its requests next
            part.send("HDEL", QueueKeys(part.queue).crawl, "waiting")
        going.pop()
    order = order_of(load_setting(target.settings, "SCHEDULER_QUEUE_CLASS", defaults.SCHEDULER_QUEUE_CLASS))
    is_live = any(queue and queue.has_live_workers for queue in queues)
    lists = parts if options.yes and order and not options.with_queue and not is_live else []
    lines = [f"server: {target.server}"]
    lines += [f"key: {part.key}: {each.text if each else 'empty'}" for part, each in zip(parts, filters, strict=True)]
    lines += [kept] * is_shared
    lines += [f"queue: {part.queue}: a list now, as scrapy-redis reads it" for part in lists if _as_list(part, order)]
    report: dict[str, Any] = {"server": target.server, "key": target.key, "queues": []}
    report["deleted"] = not (going or is_empty)
    report["filters"] = [{**each.figures, "goes": not is_shared} for each in filters if each]
    if states := [queue for queue in queues if queue]:
        report["queues"], about = _describe(sum_of(states), goes=options.with_queue, is_shared=is_shared)
        lines += about
    if not is_empty:
        lines.append("nothing was deleted: run it with --yes to delete this" if going else "deleted")
    return console.report(options, report, "\n".join(lines), answer=options.yes or is_empty)


def _read(part: Place) -> _Filter | None:
    """Return the filter of a partition, or None."""
    try:
        if (found := part.read_filter()) is None:
            return None
    except MismatchError as error:
        filter_id = as_text(part.send("HGET", part.key, "state")).partition(" ")[0]
        figures = {"key": part.key, "kind": "unreadable filter"}
        return _Filter(filter_id, f"a filter that cannot be read ({error})", figures)
    info, noun = found.info, found.parameters.noun
    figures = {name: getattr(info, name) for name in ("layers", "memory_bytes", "count", "forgotten")}
    text = f"a filter, {plural(info.layers, 'layer')}, {as_size(info.memory_bytes)}, {plural(info.count, noun)}"
    text += f", {plural(info.forgotten, f'forgotten {noun}')}" if info.forgotten else ""
    return _Filter(found.id, text, {"key": part.key, "kind": "filter", **figures})


def _delete(part: Place, found: _Filter | None, queue: QueueState | None) -> bool:
    """Delete the shown data; return False if there is other data by now."""
    filter_id = found.id if found else ""
    if queue is None:
        return bool(part.retry(lambda: _DELETE.call(part.client, [part.key], [filter_id])))
    keys = RequestQueue(part.client, queue.key, part.key).keys.of_scripts(part.key)
    arguments = "", filter_id, queue.kind, queue.crawl, *(worker.name for worker in queue.workers)
    return bool(part.retry(lambda: _CLEAR.call(part.client, keys, arguments)))


def _as_list(part: Place, order: str) -> bool:
    """Make a queue a list; return whether it is one."""
    if part.queue is None:
        return False
    queue = RequestQueue(part.client, part.queue, part.key)
    while part.retry(partial(queue.convert, "list", order)):
        pass
    return as_text(part.send("TYPE", part.queue)) == "list"


def _describe(queue: QueueState, *, goes: bool, is_shared: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the figures of a queue for JSON, and its lines."""
    names = ("waiting", "leased", "dead_letters", "failed")
    figures = {name: getattr(queue, name) for name in names} | {"workers": len(queue.workers)}
    nouns = {"dead_letters": "dead letter", "workers": "worker"}
    counts = [plural(count, nouns[name]) if name in nouns else f"{count:,} {name}" for name, count in figures.items()]
    lines = [f"queue: {queue.key}: {'deleted, too' if goes else 'kept'}; {', '.join(counts)}"]
    if not goes and queue.waiting + queue.leased:
        lines.append("warning: without the filter, further links to the pages of this queue are fetched again")
    if is_shared and queue.waiting + queue.leased:
        lines.append("warning: the shared filter calls the deleted requests seen: their pages are missed")
    elif queue.has_live_workers:
        lines.append("warning: live workers go on without the deleted data, and fetch pages again; stop them first")
    return [{"key": queue.key, **figures, "goes": goes}], lines
