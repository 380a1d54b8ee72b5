"""The server's CPU time for one check that waits for its answer, beside a SADD and a PING.

Setting bits costs a server more than adding a member, and the system calls of a round trip cost it more than either.
It also costs more after a longer sleep, and a client that needs longer between its calls lets it sleep longer: so the
calls are made at a fixed pace, and, for comparison, back to back.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

import redis

from benchmarks import report
from benchmarks.fingerprints import fingerprints
from benchmarks.launch import Server, binaries, cpu_seconds, running
from benchmarks.rounds import interleave, ratio
from scrapy_bloom import BloomFilter

ROUNDS = 30
CALLS = 400
PACES = {"every 250 us": 250e-6, "back to back": 0.0}
"""Seconds from the start of a call to the start of the next, at the least."""

CAPACITY = 5_000_000
ERROR_RATE = 1e-6
MOST_TIMES_SADD = 1.4
PING, SADD, OURS = "PING", "SADD, a new member", "scrapy-bloom, a new item"


@dataclass
class Turns:
    """Calls of one kind at one pace, and how many seconds the client waited for one, turn by turn."""

    client: redis.Redis
    call: Callable[[str], object]
    items: Iterator[str]
    pace: float
    waits: list[float] = field(default_factory=list)

    def take(self) -> float:
        """Make the calls of one turn; gives the CPU seconds that the server used for one."""
        items = [next(self.items) for _ in range(CALLS)]
        waited, used, clock = 0.0, cpu_seconds(self.client), time.perf_counter
        for item in items:
            started = clock()
            self.call(item)
            waited += clock() - started
            while clock() - started < self.pace:
                pass
        self.waits.append(waited / CALLS)
        return (cpu_seconds(self.client) - used) / CALLS


def run() -> None:
    """Measure on each server that there is."""
    for kind in binaries():
        with running(kind) as server, server.client() as client:
            _measure(server, client)


def _measure(server: Server, client: redis.Redis) -> None:
    bloom = BloomFilter(client, "bench:bloom", capacity=CAPACITY, error_rate=ERROR_RATE, expansion=0, cache_size=0)
    calls: dict[str, Callable[[str], object]] = {
        PING: lambda _: client.ping(),
        SADD: lambda item: client.sadd("bench:set", item),
        OURS: bloom.add,
    }
    items = fingerprints()
    turns = {
        (name, pace): Turns(client, call, items, seconds)
        for pace, seconds in PACES.items()
        for name, call in calls.items()
    }
    costs = interleave(ROUNDS, {each: turn.take for each, turn in turns.items()})
    report.say(f"  {server.name}")
    to_sadd = {(name, pace): ratio(cost, costs[SADD, pace]) for (name, pace), cost in costs.items()}
    rows = [
        (
            f"{name}, {pace}",
            report.times(to_sadd[name, pace]),
            report.times(ratio(cost, costs[PING, pace])),
            f"{median(cost) * 1e6:.1f}",
            f"{median(turns[name, pace].waits) * 1e6:.1f}",
        )
        for (name, pace), cost in costs.items()
    ]
    report.table(
        f"{server.name}: a filter of {CAPACITY:,} at {ERROR_RATE:g}. {ROUNDS} rounds of {CALLS} calls, medians.",
        ("call", "CPU to SADD", "CPU to PING", "server CPU, us", "client waits, us"),
        rows,
    )
    for pace in PACES:
        report.target(f"CPU of {OURS}, {pace}, times that of SADD,", to_sadd[OURS, pace], MOST_TIMES_SADD)
