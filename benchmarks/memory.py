"""The bits of a filter beside the textbook's fewest, and its bytes on a server beside those of a SET."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import redis

from benchmarks import report
from benchmarks.fingerprints import fingerprints
from benchmarks.launch import Server, binaries, memory_usage, running
from scrapy_bloom import BloomFilter


class Case(NamedTuple):
    """What is asked of a filter."""

    capacity: int
    error_rate: float
    expansion: int

    @property
    def textbook_bits(self) -> float:
        """The fewest bits of any Bloom filter that keeps the promise: -n ln p / (ln 2)^2."""
        return -self.capacity * math.log(self.error_rate) / math.log(2) ** 2


SIZES = [*((10**power, rate) for rate in (1e-3, 1e-6) for power in range(4, 8)), (5_000_000, 1e-6)]
CASES = [Case(*size, expansion) for size in SIZES for expansion in (0, 2)]
SET_SIZES = (10_000, 100_000, 1_000_000)
BATCH = 10_000

PROMISED = Case(5_000_000, 1e-6, 0)
MOST_TIMES_TEXTBOOK = 1.06
MOST_TIMES_BITS = 1.03


@dataclass
class Measured:
    """What one server said: bytes by case, and bytes a member of a SET by the number of its members."""

    bits: dict[Case, int] = field(default_factory=dict)
    filters: dict[Case, int] = field(default_factory=dict)
    sets: dict[int, float] = field(default_factory=dict)

    def times_textbook(self, case: Case) -> float:
        """The bits over the textbook's fewest; they are the same on every server."""
        return self.bits[case] / case.textbook_bits

    def times_bits(self, case: Case) -> float:
        """MEMORY USAGE over what the bits alone would take."""
        return self.filters[case] * 8 / self.bits[case]

    def times_smaller(self, case: Case) -> float:
        """How many times the bytes of a SET of as many members; of a million, where there are more."""
        return self.sets[min(case.capacity, max(self.sets))] * case.capacity / self.filters[case]

    def reserve(self, capacity: int, error_rate: float) -> float:
        """The part that is added to the bits so that the filter can grow."""
        return self.bits[Case(capacity, error_rate, 2)] / self.bits[Case(capacity, error_rate, 0)] - 1


def run() -> None:
    """Measure on each server that there is, and print them side by side."""
    found: dict[str, Measured] = {}
    for kind in binaries():
        with running(kind) as server, server.client() as client:
            found[server.name] = _measure(server, client)
    _print_filters(found)
    _print_sets(found)
    name, measured = next(iter(found.items()))
    promise = f"{PROMISED.capacity:,} at {PROMISED.error_rate:g}, expansion {PROMISED.expansion}"
    report.target(f"bits of {promise}, times the textbook's,", measured.times_textbook(PROMISED), MOST_TIMES_TEXTBOOK)
    report.target(f"bytes of {promise}, times its bits on {name},", measured.times_bits(PROMISED), MOST_TIMES_BITS)


def _measure(server: Server, client: redis.Redis) -> Measured:
    measured = Measured()
    for case in CASES:
        bloom = BloomFilter(client, "bench:bloom", **case._asdict())
        measured.bits[case] = bloom.info().bits
        measured.filters[case] = memory_usage(client, "bench:bloom")
        bloom.clear()
    report.say(f"  filters on {server.name}")
    endless = fingerprints()
    for members in SET_SIZES:
        while (count := client.scard("bench:set")) < members:
            client.sadd("bench:set", *(next(endless) for _ in range(min(BATCH, members - count))))
        measured.sets[members] = memory_usage(client, "bench:set") / members
    report.say(f"  a SET on {server.name}")
    return measured


def _print_filters(found: dict[str, Measured]) -> None:
    servers = list(found.values())
    rows = [
        (
            f"{case.capacity:,}",
            f"{case.error_rate:g}",
            f"{case.expansion}",
            f"{servers[0].times_textbook(case):.3f}",
            " / ".join(f"{each.times_bits(case):.3f}" for each in servers),
            " / ".join(f"{each.times_smaller(case):.1f}" for each in servers),
            " / ".join(f"{each.filters[case] / case.capacity:.2f}" for each in servers),
            f"{servers[0].reserve(case.capacity, case.error_rate):.1%}" if case.expansion else "",
        )
        for case in CASES
    ]
    report.table(
        f"Filters as they are created, MEMORY USAGE of all their keys on {' / '.join(found)}:",
        (
            "capacity",
            "error rate",
            "expansion",
            "bits to textbook",
            "bytes to bits",
            "SET to filter",
            "bytes a URL",
            "reserve for growing",
        ),
        rows,
    )
    print(f"\nSETs of more than {max(SET_SIZES):,} are taken to need as many bytes a URL as one of that many.")


def _print_sets(found: dict[str, Measured]) -> None:
    rows = [(f"{members:,}", *(f"{each.sets[members]:.1f}" for each in found.values())) for members in SET_SIZES]
    report.table("Bytes a URL of a SET of fingerprints:", ("members", *found), rows)
