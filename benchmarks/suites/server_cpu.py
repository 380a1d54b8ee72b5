"""The server's CPU time for one check, compared with other commands.

These are a SADD, RedisBloom's BF.ADD, equivalent scripts and a PING. Setting bits costs a server more than adding a
member, and the system calls of a round trip cost more than either. The cost also rises after a longer sleep, and a
slower client lets the server sleep longer. Therefore single calls are made at a fixed pace, and for comparison back
to back. Batches are of 100 in one pipeline. With several clients, each is a process that makes single calls back to
back.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Any

import redis

from benchmarks.harness import redisbloom, report
from benchmarks.harness.digests import fingerprints
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from devtools.servers import Address, Server, available, cpu_seconds, running
from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.layer import Identity, Layer
from scrapy_bloom.filter.parameters import FilterParameters

ROUNDS = 15
CALLS = 400
BATCH = 100
PACES = {"every 250 us": 250e-6, "back to back": 0.0}
"""The minimum of seconds between the starts of two calls."""
CLIENTS = (1, 2, 4, 8)
CLIENT_CALLS = 2_000

CAPACITY = 5_000_000
ERROR_RATE = 1e-6
MOST_TIMES_SADD = 1.4
PING, SADD, BF_ADD, OURS = "PING", "SADD", "RedisBloom, BF.ADD", "scrapy-bloom"
ONE_BITFIELD, SETBITS = "Lua around one BITFIELD", "Lua around SETBITs"
# The script of scrapy-redis's forks, and a better one.
SCRIPTS = {
    ONE_BITFIELD: """
local args = {}
for _, position in ipairs(ARGV) do
  args[#args + 1] = 'SET'
  args[#args + 1] = 'u1'
  args[#args + 1] = position
  args[#args + 1] = 1
end
local new = 0
for _, bit in ipairs(redis.call('BITFIELD', KEYS[1], unpack(args))) do if bit == 0 then new = 1 end end
return new
""",
    SETBITS: """
local new = 0
for _, position in ipairs(ARGV) do if redis.call('SETBIT', KEYS[1], position, 1) == 0 then new = 1 end end
return new
""",
}

Make = Callable[[redis.Redis, str], Callable[[list[str]], object]]


def _layer(key: str) -> Layer:
    return FilterParameters(CAPACITY, ERROR_RATE, 0, None).first_layer(key, Identity(1, 0), 0, 0.0)


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


def _script(text: str) -> Make:
    """Call a script with the positions of each item, in an existing filter."""

    def make(client: redis.Redis, key: str) -> Callable[[list[str]], object]:
        layer = _layer(f"{key}:script")
        client.setbit(layer.shard_keys[0], layer.size.shard_bits, 0)
        sha = client.script_load(text)

        def run_script(to: Any, item: str) -> object:
            _, positions = layer.locate(item.encode())
            return to.evalsha(sha, 1, layer.shard_keys[0], *positions)

        return _piped(run_script)(client, key)

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
    ONE_BITFIELD: _script(SCRIPTS[ONE_BITFIELD]),
    SETBITS: _script(SCRIPTS[SETBITS]),
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
            _clients(server, client, makers)
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
    if how[1] == 1:
        report.target(f"{server.name}, {title}: CPU of {OURS}, times SADD,", to_sadd[OURS], MOST_TIMES_SADD)


def _clients(server: Server, client: redis.Redis, makers: Mapping[str, Make]) -> None:
    """Measure several processes at once: their total items per second, and the server's CPU per item."""
    names = [name for name in (SADD, BF_ADD, OURS) if name in makers]
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for number in CLIENTS:
        for name in names:
            found[name, number] = _together(server.address, client, name, number)
        report.say(f"  {server.name}: {number} clients")
    rows = [
        (
            name,
            *(f"{found[name, number][0] / found[SADD, number][0]:.2f}" for number in CLIENTS),
            *(f"{found[name, number][1] * 1e6:.1f}" for number in CLIENTS),
        )
        for name in names
    ]
    report.table(
        f"Concurrent clients, single calls back to back. {server.name}. Items per second relative to SADD, and the "
        "server's CPU per item in us; one run.",
        ("call", *(f"rate, {number} clients" for number in CLIENTS), *(f"us, {number}" for number in CLIENTS)),
        rows,
    )


def _together(server: Address, client: redis.Redis, name: str, number: int) -> tuple[float, float]:
    """Return the items per second of `number` clients, and the server's CPU seconds per item."""
    with server.client(protocol=3) as first:
        MAKERS[name](first, "bench:clients")
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(number + 1)
    workers = [context.Process(target=_work, args=(server, name, number_, barrier)) for number_ in range(number)]
    for worker in workers:
        worker.start()
    barrier.wait()
    used, started = cpu_seconds(client), time.perf_counter()
    barrier.wait()
    seconds, used = time.perf_counter() - started, cpu_seconds(client) - used
    for worker in workers:
        worker.join()
    return number * CLIENT_CALLS / seconds, used / (number * CLIENT_CALLS)


def _work(server: Address, name: str, number: int, barrier: Barrier) -> None:
    """Make calls between two barriers."""
    with server.client(protocol=3) as client:
        # Only the first client creates RedisBloom's filter.
        make = _piped(lambda to, item: to.execute_command("BF.ADD", "bench:clients:bf", item))
        call = (make if name == BF_ADD else MAKERS[name])(client, "bench:clients")
        items = list(islice(fingerprints(), number * CLIENT_CALLS, (number + 1) * CLIENT_CALLS))
        barrier.wait()
        for item in items:
            call([item])
        barrier.wait()
