"""The bytes of a filter on a server, and its error rate as it fills.

The bytes are compared with the theoretical minimum, a SET and RedisBloom. Nothing is rounded in a filter's favor:
bytes are MEMORY USAGE of all its keys, including the hash of its parameters.
"""

import math
import tracemalloc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import redis
from scrapy import Request
from scrapy.utils.request import fingerprint

from benchmarks.harness import redisbloom, report
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Lines, Plot
from benchmarks.harness.urls import fingerprints, urls
from devtools.servers import Server, available, memory_usage, running
from scrapy_bloom import BloomFilter
from scrapy_bloom._cache import TwoGenerationCache
from scrapy_bloom._scrapy.fingerprints import CachedFingerprints
from scrapy_bloom.options import CACHE_SIZE


class Case(NamedTuple):
    """The parameters of a filter."""

    capacity: int
    error_rate: float
    expansion: int

    @property
    def textbook_bits(self) -> float:
        """The theoretical minimum of bits: -n ln p / (ln 2)^2."""
        return -self.capacity * math.log(self.error_rate) / math.log(2) ** 2


RATES = (1e-3, 1e-6)
SET_SIZES = (10_000, 100_000, 1_000_000)
BATCH = 10_000

PROMISED = Case(5_000_000, 1e-6, 0)
MOST_TIMES_TEXTBOOK = 1.15
MOST_TIMES_BITS = 1.03

# The error rate as a filter fills: the lookups at each of these parts of its capacity.
FILLED = Case(100_000, 1e-3, 2)
PARTS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.5, 2.0)
STRANGERS = 200_000
OURS, REDISBLOOM = "scrapy-bloom", "RedisBloom"


@dataclass
class Measured:
    """One server's figures: bits and bytes by case, RedisBloom's bytes, and bytes per SET member by size."""

    bits: dict[Case, int] = field(default_factory=dict)
    filters: dict[Case, int] = field(default_factory=dict)
    redisbloom: dict[Case, int] = field(default_factory=dict)
    sets: dict[int, float] = field(default_factory=dict)

    def times_textbook(self, case: Case) -> float:
        """Return the ratio of the bits to the theoretical minimum, equal on every server."""
        return self.bits[case] / case.textbook_bits

    def times_bits(self, case: Case) -> float:
        """Return the ratio of MEMORY USAGE to the bits alone."""
        return self.filters[case] * 8 / self.bits[case]

    def to_redisbloom(self, case: Case) -> str:
        """Return the ratio of RedisBloom's bytes to the filter's; - without RedisBloom."""
        return f"{self.redisbloom[case] / self.filters[case]:.2f}" if self.redisbloom else "-"

    def a_member(self, number: int) -> float:
        """Return the bytes per member of a SET of this size; beyond a million, those of a million."""
        return self.sets[min(number, max(self.sets))]


def run(asked: Asked) -> list[Plot]:
    """Measure on each available server, and print the servers side by side."""
    powers = range(4, 9 if asked.large else 8)
    cases = [Case(10**power, rate, expansion) for rate in RATES for power in powers for expansion in (0, 2)]
    cases += [PROMISED, PROMISED._replace(expansion=2)]
    options = redisbloom.server_options()
    found: dict[str, Measured] = {}
    for kind in available():
        with running(kind, *options) as server, server.client(protocol=3) as client:
            found[server.name] = _measure(server, client, cases, has_module=bool(options))
    _print_filters(found, cases)
    rows = [(f"{members:,}", *(f"{each.sets[members]:.1f}" for each in found.values())) for members in SET_SIZES]
    report.table("Bytes per URL of a SET of fingerprints:", ("members", *found), rows)
    name, measured = next(iter(found.items()))
    promise = f"{PROMISED.capacity:,} at {PROMISED.error_rate:g}, expansion {PROMISED.expansion}"
    report.target(f"bits of {promise}, times the textbook's,", measured.times_textbook(PROMISED), MOST_TIMES_TEXTBOOK)
    report.target(f"bytes of {promise}, times its bits on {name},", measured.times_bits(PROMISED), MOST_TIMES_BITS)
    with running(available()[0], *options) as server, server.client(protocol=3) as client:
        curves = _fill(server, client, [OURS, *([REDISBLOOM] if options else [])])
    _print_process()
    return [_plot_bytes(measured, cases), curves]


def _print_process() -> None:
    """Print the memory of a full cache: URLs, fingerprints and both containers."""
    rows = []
    for size in (1_024, CACHE_SIZE.default):
        tracemalloc.start()
        remembered = CachedFingerprints(lambda request: fingerprint(request).hex(), size)
        seen: TwoGenerationCache[bytes, bool] = TwoGenerationCache(size)
        for link in urls(0, 2 * size):
            seen.put(remembered(Request(link)), True)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows.append((f"{size:,}", f"{taken / 1e6:.1f}", f"{taken / size:.0f}"))
    length = sum(map(len, urls(0, 1000))) / 1000
    report.table(
        f"A process with a full cache (BLOOMFILTER_CACHE_SIZE), with URLs of {length:.0f} characters:",
        ("repeats", "MB", "bytes each"),
        rows,
    )


def _measure(server: Server, client: redis.Redis, cases: Iterable[Case], *, has_module: bool) -> Measured:
    measured = Measured()
    for case in cases:
        bloom = BloomFilter(client, "bench:bloom", **case._asdict())
        # The first addition allocates the bits.
        bloom.add("first")
        measured.bits[case] = bloom.info().bits
        measured.filters[case] = memory_usage(client, "bench:bloom")
        bloom.clear()
        if has_module:
            _reserve(client, "bench:redisbloom", case)
            measured.redisbloom[case] = memory_usage(client, "bench:redisbloom")
            client.delete("bench:redisbloom")
    report.say(f"  filters on {server.name}")
    endless = fingerprints()
    for members in SET_SIZES:
        while (count := client.scard("bench:set")) < members:
            client.sadd("bench:set", *islice(endless, min(BATCH, members - count)))
        measured.sets[members] = memory_usage(client, "bench:set") / members
    report.say(f"  a SET on {server.name}")
    return measured


def _reserve(client: Any, key: str, case: Case) -> None:
    how = ("EXPANSION", case.expansion) if case.expansion else ("NONSCALING",)
    client.execute_command("BF.RESERVE", key, case.error_rate, case.capacity, *how)


def _print_filters(found: dict[str, Measured], cases: Sequence[Case]) -> None:
    servers = list(found.values())
    rows = [
        (
            f"{case.capacity:,}",
            f"{case.error_rate:g}",
            f"{case.expansion}",
            f"{servers[0].times_textbook(case):.3f}",
            " / ".join(f"{each.times_bits(case):.3f}" for each in servers),
            " / ".join(f"{each.a_member(case.capacity) * case.capacity / each.filters[case]:.1f}" for each in servers),
            " / ".join(each.to_redisbloom(case) for each in servers),
            " / ".join(f"{each.filters[case] / case.capacity:.2f}" for each in servers),
        )
        for case in cases
    ]
    report.table(
        f"New filters on {' / '.join(found)}:",
        (
            "capacity",
            "error rate",
            "expansion",
            "bits to textbook",
            "bytes to bits",
            "SET to filter",
            "RedisBloom to filter",
            "bytes a URL",
        ),
        rows,
    )
    report.line(f"\nThe bytes per URL of larger SETs are assumed equal to those of a SET of {max(SET_SIZES):,}.")


def _plot_bytes(measured: Measured, cases: Sequence[Case]) -> Lines:
    curves: dict[str, list[tuple[float, float]]] = {}
    sizes = {OURS: measured.filters, **({REDISBLOOM: measured.redisbloom} if measured.redisbloom else {})}
    for rate in RATES:
        chosen = [case for case in cases if case == Case(case.capacity, rate, 2) and case.capacity != PROMISED.capacity]
        for name, size in sizes.items():
            curves[f"{name}, {rate:g}"] = [(case.capacity, size[case] / case.capacity) for case in chosen]
        curves[f"textbook, {rate:g}"] = [(case.capacity, case.textbook_bits / 8 / case.capacity) for case in chosen]
    curves["SET"] = [(size, measured.sets[size]) for size in SET_SIZES]
    return Lines("memory", "Bytes a URL", "URLs", "bytes a URL", curves)


def _fill(server: Server, client: redis.Redis, names: Sequence[str]) -> Lines:
    """Fill filters, and look up items that were never added on the way."""
    bloom = BloomFilter(client, "bench:fill", **FILLED._asdict(), cache_size=0)
    if REDISBLOOM in names:
        _reserve(client, "bench:fill:bf", FILLED)
    commands: Any = client
    adds: dict[str, Any] = {
        OURS: bloom.add_many,
        REDISBLOOM: lambda some: commands.execute_command("BF.MADD", "bench:fill:bf", *some),
    }
    asks: dict[str, Any] = {
        OURS: bloom.contains_many,
        REDISBLOOM: lambda some: commands.execute_command("BF.MEXISTS", "bench:fill:bf", *some),
    }
    endless = fingerprints()
    strangers = list(islice(endless, STRANGERS))
    rows, added = [], 0
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for part in PARTS:
        while added < part * FILLED.capacity:
            some = list(islice(endless, min(BATCH, int(part * FILLED.capacity) - added)))
            added += len(some)
            for name in names:
                adds[name](some)
        found = {name: sum(list(asks[name](some)).count(True) for some in _chunks(strangers)) for name in names}
        for name in names:
            curves[name].append((added, max(found[name], 0.5) / STRANGERS))
        rows.append((f"{part:g}", *(report.rate(found[name], STRANGERS) for name in names)))
        report.say(f"  filled to {part:g}")
    report.table(
        f"Error rate of filters of {FILLED.capacity:,} at {FILLED.error_rate:g} as they fill and grow. "
        f"{server.name}; {STRANGERS:,} looked up each time, 95 % intervals.",
        ("added to capacity", *names),
        rows,
    )
    title = f"Error rate as a filter of {FILLED.capacity:,} at {FILLED.error_rate:g} fills"
    return Lines("fill", title, "URLs added", "error rate", curves)


def _chunks(each: Sequence[str]) -> Iterable[Sequence[str]]:
    return (each[start : start + BATCH] for start in range(0, len(each), BATCH))
