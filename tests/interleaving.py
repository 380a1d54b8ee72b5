"""A search through every order in which workers can come between each other, one operation at a time.

Workers run the real steps of `layers` and `protocol`. What a worker does next depends on nothing but what it was told
so far and when, so that a state of the search is the memory, the clock and, for each worker, the replies it had; a
worker is brought to a state by replaying those.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from scrapy_bloom.layers import Layers, Steps
from scrapy_bloom.metadata import Plan
from scrapy_bloom.ops import Op, Snapshot
from scrapy_bloom.store import MemoryStore, Said

Work = Callable[[Layers], Steps[Any]]
Frozen = tuple[Any, ...]

KEY = "f"


class Done(NamedTuple):
    """A worker's result."""

    result: Any


class Search:
    """Explores what workers over one filter can do, who all have opened it.

    `before` is done first, each piece of work at its time. The clock may then go on, to each of the `ticks`, at any
    moment. With `whole` an operation never comes between those of one round trip.
    """

    def __init__(
        self,
        plan: Plan,
        works: Sequence[Work],
        *,
        before: Sequence[tuple[float, Work]] = (),
        ticks: Sequence[float] = (),
        whole: bool = False,
        layers: type[Layers] = Layers,
    ) -> None:
        self._plan = plan
        self._works = works
        self._layers = layers
        self._whole = whole
        self._now = 0.0
        self._memory = MemoryStore(lambda: self._now)
        self._known: dict[tuple[int, Frozen], Sequence[Op] | Done] = {}
        for self._now, work in before:
            self._run(work(self._opened()))
        self._run(self._opened().open())
        self._times = [self._now, *ticks]
        self._start = self._freeze()

    def results(self) -> set[tuple[Any, ...]]:
        """The results of all workers, in their order, at each different end."""
        return set(self._ends())

    def _ends(self) -> Iterator[tuple[Any, ...]]:
        start = (self._start, tuple(((), ()) for _ in self._works), 0)
        seen, todo = {start}, [start]
        while todo:
            state = todo.pop()
            following = list(self._following(*state))
            ended = [self._next(number, worker[0]) for number, worker in enumerate(state[1])]
            if all(isinstance(each, Done) for each in ended):
                yield tuple(each.result for each in ended if isinstance(each, Done))
            fresh = [each for each in following if each not in seen]
            seen.update(fresh)
            todo.extend(fresh)

    def _following(self, frozen: Frozen, workers: Frozen, ticks: int) -> Iterator[Frozen]:
        if ticks + 1 < len(self._times):
            yield frozen, workers, ticks + 1
        for number, (history, partial) in enumerate(workers):
            ops = self._next(number, history)
            if isinstance(ops, Done):
                continue
            self._thaw(frozen)
            self._now = self._times[ticks]
            todo = ops if self._whole else ops[len(partial) : len(partial) + 1]
            partial_now = (*partial, *(_hashable(op.apply(self._memory)) for op in todo))
            if len(partial_now) == len(ops):
                moved: Frozen = ((*history, (self._now, partial_now)), ())
            else:
                moved = (history, partial_now)
            yield self._freeze(), (*workers[:number], moved, *workers[number + 1 :]), ticks

    def _next(self, number: int, history: Frozen) -> Sequence[Op] | Done:
        """What a worker does after these replies."""
        if (number, history) not in self._known:
            self._thaw(self._start)
            self._now = self._times[0]
            steps = self._works[number](self._opened())
            try:
                ops = next(steps)
                for self._now, said in history:
                    ops = steps.send(Said(_plain(each) for each in said))
                self._known[number, history] = ops
            except StopIteration as end:
                self._known[number, history] = Done(end.value)
        return self._known[number, history]

    def _opened(self) -> Layers:
        view = self._layers(KEY, self._plan, lambda: None, lambda: self._now)
        self._run(view.open())
        return view

    def _run(self, steps: Steps[Any]) -> None:
        said = None
        while True:
            try:
                said = self._memory.execute(steps.send(said))  # type: ignore[arg-type]  # the first thing sent is None
            except StopIteration:
                return

    def _freeze(self) -> Frozen:
        hashes = {key: tuple(sorted(fields.items())) for key, fields in self._memory.hashes.items()}
        strings = {key: bytes(string) for key, string in self._memory.strings.items()}
        return tuple(sorted(hashes.items())), tuple(sorted(strings.items()))

    def _thaw(self, frozen: Frozen) -> None:
        self._memory.hashes = {key: dict(fields) for key, fields in frozen[0]}
        self._memory.strings = {key: bytearray(string) for key, string in frozen[1]}


def _hashable(said: Any) -> Any:
    return (*said[:-1], tuple(sorted(said.fields.items()))) if isinstance(said, Snapshot) else said


def _plain(said: Any) -> Any:
    is_snapshot = isinstance(said, tuple) and len(said) == len(Snapshot._fields)
    return Snapshot._make((*said[:-1], dict(said[-1]))) if is_snapshot else said
