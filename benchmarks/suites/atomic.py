"""The filter as atomic scripts beside today's: CPU time of client and server, memory, digests, and its error rate.

Both filters take turns on the same server, without a cache. The error rate is counted in the exported blocks of a full
filter of a million items at 1e-6, by 10^8 probes of random digests (`blocks.c`).
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import redis
from mmh3 import mmh3_x64_128_digest

from benchmarks.harness import report
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from devtools.servers import available, cpu_seconds, memory_usage, running
from scrapy_bloom import BloomFilter
from scrapy_bloom.atomic import filter as atomic
from scrapy_bloom.atomic import hashing

ROUNDS = 11
BATCH = 100
BATCHES = 60
SINGLES = 1_000
CAPACITY = 5_000_000
PROBES = 100_000_000
FULL = 1_000_000
TODAY, ATOMIC = "today", "atomic"
NEW, REPEATS, SINGLE, SINGLE_REPEATS = "new, in batches", "repeats, in batches", "new, single", "repeats, single"
GOALS = {
    (NEW, "client"): 0.4,
    (NEW, "server"): 2.1,
    (REPEATS, "server"): 1.0,
    (SINGLE, "client"): 1.0,
    (SINGLE, "server"): 1.8,
}
MOST_BYTES = 4.3


@dataclass
class Turns:
    """The calls of a filter, and their costs by kind: the client's and the server's CPU seconds an item."""

    client: redis.Redis
    bloom: Any
    items: Iterator[str]
    costs: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def take(self) -> float:
        """Make one turn of each kind."""
        batches = [list(islice(self.items, BATCH)) for _ in range(BATCHES)]
        singles = list(islice(self.items, SINGLES))
        for kind in (NEW, REPEATS):
            self._measure(kind, BATCH * BATCHES, lambda: [self.bloom.add_many(batch) for batch in batches])
        for kind in (SINGLE, SINGLE_REPEATS):
            self._measure(kind, SINGLES, lambda: [self.bloom.add(item) for item in singles])
        return 0.0

    def _measure(self, kind: str, number: int, call: Callable[[], object]) -> None:
        server, client = cpu_seconds(self.client), time.process_time()
        call()
        client = time.process_time() - client
        for side, used in (("client", client), ("server", cpu_seconds(self.client) - server)):
            self.costs.setdefault((kind, side), []).append(used / number)


def run(_: Asked) -> list[Plot]:
    """Measure on each available server."""
    _digests()
    for kind in available():
        with running(kind) as server, server.client() as client:
            _cpu(server.name, client, server.client)
    with running(available()[0]) as server, server.client() as client:
        _full(client)
    return []


def _digests() -> None:
    item, key = b"https://example.com/a/path/of/a/page?number=12345", hashing.new_secret().encode()
    ways: dict[str, Callable[[], object]] = {
        "blake2b, 64 bytes, keyed": lambda: hashlib.blake2b(item, key=key).digest(),
        "mmh3, four of 16 bytes": lambda: b"".join([mmh3_x64_128_digest(item, seed) for seed in range(4)]),
    }
    rows = [(name, f"{min(timeit.repeat(way, number=100_000, repeat=5)) * 10:.2f}") for name, way in ways.items()]
    report.table("Digests of a URL.", ("digest", "CPU, us"), rows)


def _cpu(name: str, client: redis.Redis, connect: Callable[[], redis.Redis]) -> None:
    kinds: dict[str, Any] = {TODAY: BloomFilter, ATOMIC: atomic.BloomFilter}
    turns = {}
    for kind, make in kinds.items():
        bloom = make(connect(), f"bench:{kind}", capacity=CAPACITY, cache_size=0)
        turns[kind] = Turns(client, bloom, (f"https://example.com/page/{number}" for number in range(10**9)))
        turns[kind].take()
        turns[kind].costs.clear()
    interleave(ROUNDS, {kind: turn.take for kind, turn in turns.items()})
    costs = {kind: turn.costs for kind, turn in turns.items()}
    ratios = {which: ratio(costs[ATOMIC][which], costs[TODAY][which]) for which in costs[ATOMIC]}
    report.table(
        f"{name}, filters of {CAPACITY:,} at 1e-6 without a cache, batches of {BATCH}; {ROUNDS} rounds, medians.",
        ("calls", "CPU of", "atomic to today", "today, us an item", "atomic, us an item"),
        [
            (*which, report.times(ratios[which]), *(f"{median(costs[kind][which]) * 1e6:.1f}" for kind in kinds))
            for which in ratios
        ],
    )
    for which, most in GOALS.items():
        report.target(f"{name}: {which[0]}, CPU of the {which[1]}, times today's", ratios[which], most)


def _full(client: Any) -> None:
    bloom = atomic.BloomFilter(client, "bench:full", capacity=FULL, error_rate=1e-6)
    for first in range(0, FULL, 500):
        bloom.add_many([f"https://example.com/page/{number}" for number in range(first, min(FULL, first + 500))])
    # Without the next layer, which was prepared meanwhile.
    names = list(client.scan_iter("{bench:full}:*:1:*"))
    used = sum(client.memory_usage(name) or 0 for name in names) + memory_usage(client, "bench:full")
    report.target("bytes of a URL at 1e-6, by MEMORY USAGE,", used / FULL, MOST_BYTES)
    shards = sorted(names, key=lambda name: int(name.rpartition(b":")[2]))
    bits, hashes = b"".join([client.get(name) or b"" for name in shards]), bloom.info().by_layer[0].hashes
    ones = [int.from_bytes(bits[at : at + 256], "little").bit_count() for at in range(0, len(bits), 256)]
    exact = sum((each / 2048) ** hashes for each in ones) / len(ones)
    report.target("error rate of the full first layer in millionths, by its bits,", exact * 1e6, 0.75)
    compiler = shutil.which("cc")
    if compiler is None:
        report.line("\nThere is no C compiler `cc` on this machine: no probes.")
        return
    with tempfile.TemporaryDirectory() as folder:
        program, blocks = Path(folder) / "blocks", Path(folder) / "bits"
        source = Path(__file__).parents[1] / "harness" / "blocks.c"
        subprocess.run([compiler, "-O2", "-o", program, source], check=True)
        blocks.write_bytes(bits)
        seed = int.from_bytes(os.urandom(8), "little")
        arguments = [str(each) for each in (len(ones), hashes, PROBES, seed)]
        found = int(subprocess.run([program, *arguments, blocks], check=True, capture_output=True, text=True).stdout)
    report.line(f"\nBy {PROBES:,} probes, of which {found} found all bits: {report.rate(found, PROBES)}.")
