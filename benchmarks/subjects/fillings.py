"""The ways in which workers fill a filter: sequences of turns."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from scrapy_bloom.filter.parameters import FilterParameters

STAGGERED, FORKED, IDLE, UNEVEN, EQUAL = "staggered", "forked", "idle", "uneven", "equal"
LITTLE = {STAGGERED: 0.01, FORKED: 0.1, IDLE: 0.01}
"""The part of the capacity that each worker adds alone first; for forked workers, their parent does."""
ONE_BY_ONE = (STAGGERED, IDLE)
"""The ways in which each worker opens the filter after the previous one has added its first part."""
ONE_WORKS = 0.95
"""The part of the capacity that one worker fills while the others idle."""
LARGEST_SHARE = 0.99
"""The part of the additions made by one of the uneven workers."""


@dataclass(frozen=True)
class Filling:
    """A filter's parameters and its filling: `workers` add `times` its capacity in batches.

    Then `asked` items that were never added are looked up. In memory, the clock advances with the additions so that
    each TTL has `pace` times the capacity; with 0 the clock stands still. Small filters vary in their fill, so the
    answers of several `filters` are summed.
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
        """The filter's parameters."""
        return FilterParameters(self.capacity, self.error_rate, self.expansion, self.ttl)

    @property
    def additions(self) -> int:
        """The number of items added to each filter."""
        return round(self.capacity * self.times)

    @property
    def little(self) -> int:
        """The number of items that a worker adds alone first."""
        return max(1, round(self.capacity * LITTLE.get(self.way, 0.0)))

    def __str__(self) -> str:
        return f"{self.way}, {self.workers} workers, {self.capacity:,} at {self.error_rate:g}, {self.times:g} times"


class Turn(NamedTuple):
    """A worker's number, and the number of items it adds in the turn."""

    worker: int
    items: int


def turns(filling: Filling) -> Iterator[Turn]:
    """Yield the workers' turns until all items are added."""
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
