"""The ways in which workers may fill a filter: whose turn it is, and how many items are added in it."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from scrapy_bloom.filter.parameters import FilterParameters

STAGGERED, FORKED, IDLE, UNEVEN, EQUAL = "staggered", "forked", "idle", "uneven", "equal"
LITTLE = {STAGGERED: 0.01, FORKED: 0.1, IDLE: 0.01}
"""The part of the capacity that each worker adds by itself first; of forked ones, the process that they come from."""
ONE_BY_ONE = (STAGGERED, IDLE)
"""The ways in which a worker opens the filter when those before it have added their little."""
ONE_WORKS = 0.95
"""The part of the capacity up to which one worker adds while the others idle."""
LARGEST_SHARE = 0.99
"""The part of the additions that one of uneven workers makes."""


@dataclass(frozen=True)
class Filling:
    """A filter's parameters and how it is filled: `workers` add `times` its capacity in batches.

    Then `asked` items are asked for that were never added. In memory there is a clock that goes with the additions, so
    that `pace` times the capacity is met within each time to live; 0: it stands still. Small filters differ in how full
    they are, so that the answers of several `filters` are added up.
    """

    way: str
    workers: int
    capacity: int
    error_rate: float
    expansion: int = 2
    ttl: float | None = None
    times: float = 1.6
    batch: int = 1_000
    asked: int = 100_000
    pace: float = 0.0
    filters: int = 1

    @property
    def parameters(self) -> FilterParameters:
        """The parameters that the workers agree on."""
        return FilterParameters(self.capacity, self.error_rate, self.expansion, self.ttl)

    @property
    def additions(self) -> int:
        """Items that are added to each filter."""
        return round(self.capacity * self.times)

    @property
    def little(self) -> int:
        """Items that a worker adds by itself first."""
        return max(1, round(self.capacity * LITTLE.get(self.way, 0.0)))

    def __str__(self) -> str:
        return f"{self.way}, {self.workers} workers, {self.capacity:,} at {self.error_rate:g}, {self.times:g} times"


class Turn(NamedTuple):
    """A worker, by its number, and how many items it adds at once."""

    worker: int
    items: int


def turns(filling: Filling) -> Iterator[Turn]:
    """The turns that the workers take, until everything is added."""
    left = filling.additions
    for worker, items in _WAYS[filling.way](filling):
        yield Turn(worker, min(items, left))
        left -= items
        if left <= 0:
            return


def _equal(filling: Filling) -> Iterator[tuple[int, int]]:
    return ((worker, filling.batch) for worker in itertools.cycle(range(filling.workers)))


def _one(filling: Filling, worker: int, number: int) -> Iterator[tuple[int, int]]:
    return ((worker, min(filling.batch, number - start)) for start in range(0, number, filling.batch))


def _staggered(filling: Filling) -> Iterator[tuple[int, int]]:
    for worker in range(filling.workers):
        yield from _one(filling, worker, filling.little)
    yield from _equal(filling)


def _idle(filling: Filling) -> Iterator[tuple[int, int]]:
    for worker in range(filling.workers):
        yield from _one(filling, worker, filling.little)
    yield from _one(filling, 0, round(filling.capacity * ONE_WORKS) - filling.workers * filling.little)
    yield from _equal(filling)


def _uneven(filling: Filling) -> Iterator[tuple[int, int]]:
    draw = random.Random(filling.workers)
    while True:
        is_others = draw.random() >= LARGEST_SHARE
        yield (draw.randrange(1, filling.workers) if is_others else 0), filling.batch


_WAYS = {STAGGERED: _staggered, IDLE: _idle, UNEVEN: _uneven, EQUAL: _equal}
