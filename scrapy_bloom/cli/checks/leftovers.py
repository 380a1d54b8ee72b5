"""Check for keys and files that ended crawls have left behind."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from redis import ResponseError
from scrapy.utils.job import job_dir

from scrapy_bloom._format import as_size, as_text, plural
from scrapy_bloom.cli.checks.case import Case, Finding, advice, ok
from scrapy_bloom.queue.queue_keys import QueueKeys

# The keys that crawls under Scrapy's own scheduler draw: see _filter_key.
_PATTERN = "dupefilter:*-*"
# The time without use after which a filter counts as left over.
IDLE_SECONDS = 3600
# A server may have more keys than can be scanned in this time.
_MAX_SCAN_SECONDS = 10.0
_SCAN_BATCH = 1000
_MAX_EXAMPLES = 3


class _Leftover(NamedTuple):
    """A filter without use: the number, the memory and the idle time of its keys."""

    key: str
    keys: int
    memory_bytes: int
    idle: float


def check_filters(case: Case) -> Iterator[Finding]:
    """Check for filters of killed crawls under Scrapy's own scheduler."""
    check, client = "leftover filters", case.target.filter_client
    scanned, is_complete = _scan(client, _PATTERN)
    filters: dict[str, list[str]] = {}
    for key in scanned:
        stem, _, shard = key.rpartition(":")
        stem, _, layer = stem.rpartition(":")
        is_shard = shard.isdecimal() and layer.isdecimal() and stem.startswith("dupefilter:")
        filters.setdefault(stem if is_shard else key, []).append(key)
    leftovers = [_leftover(client, key, names) for key, names in filters.items()]
    found = [leftover for leftover in leftovers if leftover.idle >= case.idle]
    scope = "" if is_complete else f" (among the keys scanned in {_MAX_SCAN_SECONDS:g} s)"
    if not found:
        yield ok(check, f"none{scope}")
        return
    keys, memory_bytes = sum(each.keys for each in found), sum(each.memory_bytes for each in found)
    examples = " ".join(each.key for each in found[:_MAX_EXAMPLES]) + (" …" if len(found) > _MAX_EXAMPLES else "")
    yield advice(
        check,
        f"{plural(len(found), 'filter')} of crawls killed under Scrapy's own scheduler, {plural(keys, 'key')} of "
        f"{as_size(memory_bytes)}, unused for {case.idle:g} s{scope}: {examples}",
        "unless a crawl is paused, run `scrapy bloom clear --yes --key KEY` for each",
    )


def check_files(case: Case) -> Iterator[Finding]:
    """Check for files of undelivered requests in the directories where this crawl would write them."""
    check = "undelivered requests"
    paths: list[str] = []
    for directory in dict.fromkeys([Path.cwd(), Path(job_dir(case.settings) or "").absolute()]):
        for pattern in ("undelivered-*.jsonl", "undelivered-*.unreadable"):
            paths += sorted(map(str, directory.glob(pattern)))
    if paths:
        yield advice(check, ", ".join(paths), "start a worker there, or run `scrapy bloom push FILE`")
    else:
        yield ok(check, "no file in the directories of this crawl")


def check_leases(case: Case) -> Iterator[Finding]:
    """Check each queue for leases of unregistered workers."""
    for state in case.queue_states:
        yield stray_leases(case.target.queue_client, state.key, partial(_workers, case, state.key))


def stray_leases(client: Any, queue: str, workers: Callable[[], Iterable[str]]) -> Finding:
    """Check for leases of unregistered workers, which no protocol leaves behind.

    The leases are read before the `workers`, since a worker registers before it leases. A worker that leaves in
    between has no leases any more.
    """
    check, keys = "leases", QueueKeys(queue)
    found, _ = _scan(client, _escape(keys.leases("")) + "*")
    known = {keys.leases(name) for name in workers()}
    strays = [key for key in sorted(set(found) - known) if client.exists(key)]
    if not strays:
        return ok(check, "none without a worker")
    return advice(check, f"leases of unregistered workers: {', '.join(strays)}", "report this as a bug")


def _workers(case: Case, queue: str) -> list[str]:
    return [worker.name for worker in case.target.inspect_queue(queue).workers]


def _scan(client: Any, pattern: str) -> tuple[list[str], bool]:
    """Return the matching keys, and whether the scan was complete."""
    end, found = time.monotonic() + _MAX_SCAN_SECONDS, []
    for key in client.scan_iter(match=pattern, count=_SCAN_BATCH):
        found.append(as_text(key))
        if time.monotonic() > end:
            return found, False
    return found, True


def _leftover(client: Any, key: str, names: list[str]) -> _Leftover:
    idle = [_idle(client, name) for name in names]
    sizes = [client.memory_usage(name) or 0 for name in names]
    return _Leftover(key, len(names), sum(sizes), min(idle))


def _idle(client: Any, key: str) -> float:
    """Return the idle time of a key in seconds; 0 if it is gone, or under an LFU policy."""
    try:
        return float(client.object("idletime", key) or 0)
    except ResponseError:
        return 0.0


def _escape(text: str) -> str:
    """Escape the special characters of SCAN's patterns."""
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in text)
