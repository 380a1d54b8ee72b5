"""Breadth-first exploration of states, for the search of the queue."""

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

StateT = TypeVar("StateT", bound=Hashable)


class BrokenPromiseError(Exception):
    """A state breaks a promise."""


class Move(NamedTuple, Generic[StateT]):
    """A transition to another state. Progress must not depend on a fault."""

    label: Callable[[], str]
    state: StateT
    is_fault: bool = False


@dataclass
class Found:
    """An exploration's size, its first broken promise, and the moves that lead there."""

    states: int
    moves: int
    violation: str | None = None
    trace: list[str] = field(default_factory=list)


def explore(
    start: StateT,
    moves: Callable[[StateT], Iterable[Move[StateT]]],
    is_end: Callable[[StateT], bool],
    *,
    stuck: str,
    limit: int,
) -> Found:
    """Visit every state, the nearest first, until a promise is broken.

    Args:
        start: the first state.
        moves: returns the moves from a state, and may raise BrokenPromiseError.
        is_end: returns whether a state is final, and may raise BrokenPromiseError.
        stuck: the promise that an end can be reached from each state by moves that are no faults.
        limit: states to visit at most.
    """
    states, numbers = [start], {start: 0}
    parents, ends, sources, targets = array("i", [-1]), array("i"), array("i"), array("i")
    number = count = 0
    while number < len(states):
        state = states[number]
        try:
            if is_end(state):
                ends.append(number)
            for move in moves(state):
                count += 1
                following = numbers.get(move.state)
                if following is None:
                    following = numbers[move.state] = len(states)
                    states.append(move.state)
                    parents.append(number)
                if not move.is_fault and following != number:
                    sources.append(number)
                    targets.append(following)
        except BrokenPromiseError as error:
            return Found(len(states), count, str(error), _trace(states, parents, number, moves))
        number += 1
        if len(states) > limit:
            return Found(len(states), count, "too many states")
    cut_off = _cut_off(ends, sources, targets, len(states))
    if cut_off is not None:
        return Found(len(states), count, stuck, _trace(states, parents, cut_off, moves))
    return Found(len(states), count)


def _trace(
    states: Sequence[StateT], parents: Sequence[int], number: int, moves: Callable[[StateT], Iterable[Move[StateT]]]
) -> list[str]:
    """Return the labels of the moves from the first state to this one."""
    path = [number]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    path.reverse()
    lines = []
    for before, after in pairwise(path):
        move = next(move for move in moves(states[before]) if move.state == states[after])
        lines.append(move.label())
    return lines


def _cut_off(ends: Sequence[int], sources: Sequence[int], targets: Sequence[int], count: int) -> int | None:
    """Return the first state from which no end can be reached, or None."""
    before: list[list[int]] = [[] for _ in range(count)]
    for source, target in zip(sources, targets, strict=True):
        before[target].append(source)
    reaches = bytearray(count)
    todo = list(ends)
    for end in ends:
        reaches[end] = 1
    while todo:
        for source in before[todo.pop()]:
            if not reaches[source]:
                reaches[source] = 1
                todo.append(source)
    first = reaches.find(0)
    return None if first < 0 else first
