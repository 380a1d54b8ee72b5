"""The keys and files that ended crawls have left: nobody will use them again."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import ResponseError

from scrapy_bloom._format import as_size, as_text
from scrapy_bloom.cli.checks.findings import Finding, advice, ok
from scrapy_bloom.queue.queue_keys import QueueKeys

# What crawls under Scrapy's own scheduler make up; see _filter_key.
_PATTERN = "dupefilter:*-*"
# Seconds for which a filter was not used that nobody will use again.
IDLE_SECONDS = 3600
# Seconds for which keys are looked for: a server may have many.
_MAX_SECONDS = 10.0
_COUNT = 1000


@dataclass(frozen=True)
class Leftover:
    """A filter that was not used for a while: its key, and the number and the bytes of all its keys."""

    key: str
    keys: int
    memory_bytes: int
    idle: float


def find(client: Any, idle: float) -> tuple[list[Leftover], bool]:
    """Return the filters that crawls under Scrapy's own scheduler left, and whether all keys were looked at."""
    filters: dict[str, list[str]] = {}
    found, is_complete = _scan(client)
    for key in found:
        stem, _, shard = key.rpartition(":")
        stem, _, layer = stem.rpartition(":")
        is_shard = shard.isdecimal() and layer.isdecimal() and stem.startswith("dupefilter:")
        filters.setdefault(stem if is_shard else key, []).append(key)
    leftovers = [_leftover(client, key, names) for key, names in filters.items()]
    return [leftover for leftover in leftovers if leftover.idle >= idle], is_complete


def filters(client: Any, idle: float) -> Finding:
    """Return what crawls under Scrapy's own scheduler have left."""
    check = "leftover filters"
    found, is_complete = find(client, idle)
    looked = "" if is_complete else f" (of the keys that {_MAX_SECONDS:g} s were enough for)"
    if not found:
        return ok(check, f"none{looked}")
    keys, size = sum(each.keys for each in found), sum(each.memory_bytes for each in found)
    names = " ".join(each.key for each in found[:3]) + (" …" if len(found) > 3 else "")  # noqa: PLR2004  # as examples
    return advice(
        check,
        f"{len(found)} filters of crawls that were killed under Scrapy's own scheduler, {keys} keys of "
        f"{as_size(size)}, not used for {idle:g} s{looked}: {names}",
        "if no crawl is paused: scrapy bloom clear --yes --key KEY, for each",
    )


def files(directories: Iterable[str | Path]) -> Finding:
    """Return the files with requests that could not be delivered."""
    check, paths = "undelivered requests", list(_files(directories))
    if not paths:
        return ok(check, "no file in the directories where this crawl would leave one")
    return advice(check, f"{', '.join(map(str, paths))}", "start a worker there, or scrapy bloom push FILE")


def leases(client: Any, queue: str, workers: Callable[[], Iterable[str]]) -> Finding:
    """Check the leases of workers that are not registered: no protocol leaves such.

    The leases are read first and the `workers` after, since a worker is registered before it leases. One that has left
    in between has no leases any more.
    """
    check, keys = "leases", QueueKeys(queue)
    found, _ = _scan(client, _escaped(keys.leases("")) + "*")
    known = {keys.leases(name) for name in workers()}
    strays = [key for key in sorted(set(found) - known) if client.exists(key)]
    if not strays:
        return ok(check, "none without a worker")
    return advice(check, f"requests of workers that are not registered: {', '.join(strays)}", "tell of it as a bug")


def _files(directories: Iterable[str | Path]) -> Iterator[Path]:
    for directory in dict.fromkeys(Path(each).absolute() for each in directories):
        yield from sorted(directory.glob("undelivered-*.jsonl"))
        yield from sorted(directory.glob("undelivered-*.unreadable"))


def _scan(client: Any, pattern: str = _PATTERN) -> tuple[list[str], bool]:
    end, found = time.monotonic() + _MAX_SECONDS, []
    for key in client.scan_iter(match=pattern, count=_COUNT):
        found.append(as_text(key))
        if time.monotonic() > end:
            return found, False
    return found, True


def _leftover(client: Any, key: str, names: list[str]) -> Leftover:
    idle = [_idle(client, name) for name in names]
    sizes = [client.memory_usage(name) or 0 for name in names]
    return Leftover(key, len(names), sum(sizes), min(idle))


def _idle(client: Any, key: str) -> float:
    """Return for how many seconds a key was not used; 0 where the server counts uses instead, or it is gone."""
    try:
        return float(client.object("idletime", key) or 0)
    except ResponseError:
        return 0.0


def _escaped(text: str) -> str:
    """Return a text in which no character has a meaning for SCAN's patterns."""
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in text)
