"""The server's CPU time for one check, compared with other commands.

These are a SADD, RedisBloom's BF.ADD and a PING. A check is a script, and the system calls of a round trip cost a
server as much. The cost also rises after a longer sleep, and a slower client lets the server sleep longer. Therefore
single calls are made at a fixed pace, and for comparison back to back. Batches are of 100 in one pipeline.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any

import redis

from benchmarks.harness import redisbloom, report
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import fingerprints
from devtools.servers import Server, available, cpu_seconds, running
from scrapy_bloom import BloomFilter

ROUNDS = 15
CALLS = 400
BATCH = 100
PACES = {"every 250 us": 250e-6, "back to back": 0.0}
"""The minimum of seconds between the starts of two calls."""

CAPACITY = 5_000_000
ERROR_RATE = 1e-6
PING, SADD, BF_ADD, OURS = "PING", "SADD", "RedisBloom, BF.ADD", "scrapy-bloom"

Make = Callable[[redis.Redis, str], Callable[[list[str]], object]]


def _piped(command: Callable[[Any, str], object]) -> Make:
    """Call a command for each item, several items in one pipeline."""

    def make(client: redis.Redis, _: str) -> Callable[[list[str]], object]:
        def call(items: list[str]) -> object:
            if len(items) == 1:
                return command(client, items[0])
            pipeline = client.pipeline(transaction=False)
            for item in items:
                command(pipeline, item)
            return pipeline.execute()

        return call

    return make


def _ours(client: redis.Redis, key: str) -> Callable[[list[str]], object]:
    bloom = BloomFilter(client, key, capacity=CAPACITY, error_rate=ERROR_RATE, expansion=0, cache_size=0)
    return lambda items: bloom.add(items[0]) if len(items) == 1 else bloom.add_many(items)


def _bf_add(client: redis.Redis, key: str) -> Callable[[list[str]], object]:
    commands: Any = client
    commands.execute_command("DEL", f"{key}:bf")
    commands.execute_command("BF.RESERVE", f"{key}:bf", ERROR_RATE, CAPACITY)
    return _piped(lambda to, item: to.execute_command("BF.ADD", f"{key}:bf", item))(client, key)


MAKERS: dict[str, Make] = {
    PING: _piped(lambda to, _: to.ping()),
    SADD: _piped(lambda to, item: to.sadd("bench:set", item)),
    OURS: _ours,
    BF_ADD: _bf_add,
}


@dataclass
class Turns:
    """Calls of one kind, and the client's mean wait in each turn, in seconds."""

    client: redis.Redis
    call: Callable[[list[str]], object]
    items: Iterator[str]
    pace: float
    batch: int
    waits: list[float] = field(default_factory=list)

    def take(self) -> float:
        """Make the calls of one turn; return the server's CPU seconds per item."""
        batches = [list(islice(self.items, self.batch)) for _ in range(max(1, CALLS // self.batch))]
        waited, used, clock = 0.0, cpu_seconds(self.client), time.perf_counter
        for batch in batches:
            started = clock()
            self.call(batch)
            waited += clock() - started
            while clock() - started < self.pace:
                pass
        number = len(batches) * self.batch
        self.waits.append(waited / number)
        return (cpu_seconds(self.client) - used) / number


def run(_: Asked) -> list[Plot]:
    """Measure on each available server."""
    module = redisbloom.server_options()
    for kind in available():
        with running(kind, *module) as server, server.client(protocol=3) as client:
            makers = {name: make for name, make in MAKERS.items() if module or name != BF_ADD}
            for pace, seconds in PACES.items():
                _measure(f"One at a time, {pace}", server, client, makers, (seconds, 1))
            _measure(f"In batches of {BATCH}", server, client, makers, (0.0, BATCH))
    return []


def _measure(
    title: str, server: Server, client: redis.Redis, makers: Mapping[str, Make], how: tuple[float, int]
) -> None:
    items = fingerprints()
    turns = {name: Turns(client, make(client, f"bench:{title}"), items, *how) for name, make in makers.items()}
    costs = interleave(ROUNDS, {name: turn.take for name, turn in turns.items()})
    report.say(f"  {server.name}: {title}")
    to_sadd = {name: ratio(cost, costs[SADD]) for name, cost in costs.items()}
    rows = [
        (
            name,
            report.times(to_sadd[name]),
            report.times(ratio(cost, costs[PING])),
            f"{median(cost) * 1e6:.1f}",
            f"{median(turns[name].waits) * 1e6:.1f}",
        )
        for name, cost in costs.items()
    ]
    report.table(
        f"{title}. {server.name}, a filter of {CAPACITY:,} at {ERROR_RATE:g}, new items; {ROUNDS} rounds, medians.",
        ("call", "CPU to SADD", "CPU to PING", "server CPU, us", "client waits, us"),
        rows,
    )
