"""Run contenders in short turns in one process, so that a busy machine slows all alike."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

T = TypeVar("T")
Name = TypeVar("Name")


def rotated(these: Sequence[T], turn: int) -> list[T]:
    """Start with another contender in each turn, because the order may be an advantage."""
    start = turn % len(these)
    return [*these[start:], *these[:start]]


def interleave(rounds: int, contenders: Mapping[Name, Callable[[], float]]) -> dict[Name, list[float]]:
    """Run each contender once a round, and return its costs by round."""
    costs: dict[Name, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name in rotated(list(contenders), turn):
            costs[name].append(contenders[name]())
    return costs


def ratio(costs: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios within each round."""
    return median(cost / other for cost, other in zip(costs, others, strict=False))
