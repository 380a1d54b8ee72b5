"""The error rate of positions from a few hashes in small filters.

It is compared with independent positions. Two hash values yield only m^2 sequences of positions, so that a new item
has the very sequence of an old one with a probability of n / m^2, which adds to the error rate. A third value makes
it n / m^3. Schemes: enhanced double hashing (Dillinger and Manolios 2004), and the one of
`scrapy_bloom.filter.hashing`.
"""

from collections.abc import Callable
from random import random
from typing import NamedTuple

from mmh3 import mmh3_x64_128_utupledigest

from benchmarks.harness import report
from benchmarks.harness.confidence import wilson
from benchmarks.harness.options import Asked
from benchmarks.harness.parallel import spread
from benchmarks.harness.plots import Plot
from scrapy_bloom.filter.hashing import locate
from scrapy_bloom.filter.sizing import bits_needed, choose_hashes

PROBES = 4_000
"""Lookups in each filter. There are many filters, because small ones vary in their fill."""


class Case(NamedTuple):
    """A filter's promise, and the number of such filters."""

    capacity: int
    error_rate: float
    filters: int

    @property
    def hashes(self) -> int:
        """k, as scrapy-bloom chooses it."""
        return choose_hashes(self.capacity, self.error_rate)

    @property
    def bits(self) -> int:
        """m, exactly as in the formula."""
        return bits_needed(self.capacity, self.error_rate, self.hashes)

    def predicted(self, values: int) -> float:
        """Return the ratio of the error rate to the promise, predicted from the number of sequences."""
        sequences = float(self.bits) ** values
        return 1 + self.capacity / sequences / self.error_rate


CASES = (Case(10, 1e-4, 600), Case(30, 1e-4, 600), Case(100, 1e-4, 600), Case(100, 1e-3, 250))
# Too rare to be measured in Python.
RARE_CASES = (Case(1_000, 1e-6, 0), Case(10_000, 1e-6, 0))


class Scheme(NamedTuple):
    """A function from an item to k positions below m, and its number of hash values."""

    positions: Callable[[bytes, int, int], list[int]]
    values: int


class Task(NamedTuple):
    """One scheme in one case."""

    case: Case
    scheme: str

    def __str__(self) -> str:
        return f"{self.scheme}, {self.case.capacity:,} at {self.case.error_rate:g}"


class Outcome(NamedTuple):
    """False positives among `lookups`, and their number expected from the fill: the sum of f^k."""

    false_positives: int
    by_fill: float
    lookups: int


def run(_: Asked) -> list[Plot]:
    """Measure each scheme in each case, and print a table."""
    tasks = [Task(case, scheme) for case in CASES for scheme in SCHEMES]
    rows = [_row(task, outcome) for task, outcome in zip(tasks, spread(_try, tasks), strict=True)]
    report.table(
        "Filters with exactly the bits of the formula, filled to their capacity. Theory is f^k of the actual bits.",
        ("positions", "n", "p", "m", "k", "rate to theory", "95 % interval", "predicted", "to p", "false positives"),
        rows,
    )
    for case in RARE_CASES:
        double, ours = (case.predicted(SCHEMES[name].values) for name in ("enhanced double", "scrapy-bloom"))
        report.line(
            f"\nPredicted for n = {case.capacity:,} at p = {case.error_rate:g}, m = {case.bits:,}: "
            f"{double:.2f} with enhanced double, {ours:.2f} with scrapy-bloom."
        )
    return []


def _double(item: bytes, hashes: int, bits: int) -> list[int]:
    x, y = mmh3_x64_128_utupledigest(item, 0)
    return [(x + i * y + (i**3 - i) // 6) % bits for i in range(hashes)]


def _ours(item: bytes, hashes: int, bits: int) -> list[int]:
    return locate(item, 0, hashes=hashes, shards=1, shard_bits=bits)[1]


def _independent(_: bytes, hashes: int, bits: int) -> list[int]:
    return [int(random() * bits) for _ in range(hashes)]


SCHEMES = {
    "enhanced double": Scheme(_double, 2),
    "scrapy-bloom": Scheme(_ours, 3),
    "independent": Scheme(_independent, 14),
}


def _try(task: Task) -> Outcome:
    hashes, size = task.case.hashes, task.case.bits
    positions = SCHEMES[task.scheme].positions
    false_positives, by_fill = 0, 0.0
    for number in range(task.case.filters):
        bits = bytearray(size)
        for member in range(task.case.capacity):
            for position in positions(b"member %d of %d" % (member, number), hashes, size):
                bits[position] = 1
        by_fill += PROBES * (sum(bits) / size) ** hashes
        for stranger in range(PROBES):
            for position in positions(b"stranger %d of %d" % (stranger, number), hashes, size):
                if not bits[position]:
                    break
            else:
                false_positives += 1
    return Outcome(false_positives, by_fill, task.case.filters * PROBES)


def _row(task: Task, outcome: Outcome) -> tuple[str, ...]:
    case = task.case
    theory = outcome.by_fill / outcome.lookups
    low, high = (limit / theory for limit in wilson(outcome.false_positives, outcome.lookups))
    return (
        task.scheme,
        f"{case.capacity:,}",
        f"{case.error_rate:g}",
        f"{case.bits:,}",
        f"{case.hashes}",
        f"{outcome.false_positives / outcome.by_fill:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{case.predicted(SCHEMES[task.scheme].values):.2f}",
        f"{outcome.false_positives / outcome.lookups / case.error_rate:.2f}",
        f"{outcome.false_positives:,} of {outcome.lookups:,}",
    )
