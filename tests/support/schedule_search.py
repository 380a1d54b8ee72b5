"""A search through every order in which workers can come between each other, one operation at a time.

Workers run the real steps of `layers` and `protocol`. What a worker does next depends on nothing but what it was told
so far and when, so that a state of the search is the memory, the clock and, for each worker, the replies it had; a
worker is brought to a state by replaying those.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from scrapy_bloom.credit_ops import Granted
from scrapy_bloom.layers import Layers
from scrapy_bloom.metadata import Plan
from scrapy_bloom.ops import Op, Snapshot
from scrapy_bloom.shards import Check
from scrapy_bloom.store import MemoryStore, Said
from scrapy_bloom.stored import Steps

Work = Callable[[Layers], Steps[Any]]
Frozen = tuple[Any, ...]

KEY = "f"
# Where it is counted how many items each shard was given, beside what the filter stores.
TALLY = "tally"
# A worker that was killed.
CRASHED: Frozen = ("crashed",)


class Done(NamedTuple):
    """A worker's result."""

    result: Any


class Search:
    """Explores what workers over one filter can do, who all have opened it.

    `before` is done first, each piece of work at its time. The clock may then go on, to each of the `ticks`, at any
    moment. With `whole` an operation never comes between those of one round trip. Each worker begins with `credit`.
    So many `replies` may be lost and so many `crashes` happen, at any moment each: a worker whose reply was lost does
    the same once more, and one that crashed does nothing any more.
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
        credit: int = 1_000_000,
        replies: int = 0,
        crashes: int = 0,
    ) -> None:
        self._plan = plan
        self._works = works
        self._layers = layers
        self._whole = whole
        self._credit = credit
        self._faults = (replies, crashes)
        self._now = 0.0
        self._memory = MemoryStore(lambda: self._now)
        self._known: dict[tuple[int, Frozen], Sequence[Op] | Done] = {}
        self._run(self._opened().obtain(1))
        for self._now, work in before:
            self._run(work(self._opened()))
        self._memory.hashes.pop(TALLY, None)
        self._times = [self._now, *ticks]
        self._start = self._freeze()

    def results(self) -> set[tuple[Any, ...]]:
        """The results of all workers, in their order, at each different end."""
        return set(self._ends())

    def fillings(self) -> set[tuple[tuple[str, int], ...]]:
        """The shards' keys and how many items were added to each, at each different end."""
        return {tuple(sorted(dict(dict(frozen[0]).get(TALLY, ())).items())) for frozen, _ in self._all_ends()}

    def _ends(self) -> Iterator[tuple[Any, ...]]:
        for _, results in self._all_ends():
            yield results

    def _all_ends(self) -> Iterator[tuple[Frozen, tuple[Any, ...]]]:
        start = (self._start, tuple(((), (), False) for _ in self._works), 0, self._faults)
        seen, todo = {start}, [start]
        while todo:
            state = todo.pop()
            following = list(self._following(*state))
            ended = [self._next(number, worker[0]) for number, worker in enumerate(state[1])]
            if all(isinstance(each, Done) for each in ended):
                yield state[0], tuple(each.result for each in ended if isinstance(each, Done))
            fresh = [each for each in following if each not in seen]
            seen.update(fresh)
            todo.extend(fresh)

    def _following(self, frozen: Frozen, workers: Frozen, ticks: int, faults: tuple[int, int]) -> Iterator[Frozen]:
        if ticks + 1 < len(self._times):
            yield frozen, workers, ticks + 1, faults
        replies, crashes = faults
        for number, (history, partial, repeated) in enumerate(workers):
            ops = self._next(number, history)
            if isinstance(ops, Done):
                continue

            def changed(worker: Frozen, number: int = number) -> Frozen:
                return (*workers[:number], worker, *workers[number + 1 :])

            if crashes:
                yield frozen, changed((CRASHED, (), False)), ticks, (replies, crashes - 1)
            self._thaw(frozen)
            self._now = self._times[ticks]
            todo = ops if self._whole else ops[len(partial) : len(partial) + 1]
            partial_now = (*partial, *(_hashable(self._apply(op)) for op in todo))
            done = self._freeze()
            if len(partial_now) < len(ops):
                yield done, changed((history, partial_now, repeated)), ticks, faults
                continue
            yield done, changed(((*history, (self._now, partial_now, repeated)), (), False)), ticks, faults
            if replies:
                yield done, changed((history, (), True)), ticks, (replies - 1, crashes)

    def _apply(self, op: Op) -> Any:
        """Carry out an operation, and count what it adds."""
        said = op.apply(self._memory)
        if isinstance(op, Check) and op.mark and not said[1]:
            counted = self._memory.hashes.setdefault(TALLY, {})
            counted[op.key] = counted.get(op.key, 0) + 1  # type: ignore[assignment, operator]  # no text, as fields are
        return said

    def _next(self, number: int, history: Frozen) -> Sequence[Op] | Done:
        """What a worker does after these replies."""
        if history == CRASHED:
            return Done(None)
        if (number, history) not in self._known:
            self._thaw(self._start)
            self._now = self._times[0]
            steps = self._works[number](self._opened())
            try:
                ops = next(steps)
                for self._now, said, repeated in history:
                    results = Said(_plain(each) for each in said)
                    results.repeated = repeated
                    ops = steps.send(results)
                self._known[number, history] = ops
            except StopIteration as end:
                self._known[number, history] = Done(end.value)
        return self._known[number, history]

    def _opened(self) -> Layers:
        view = self._layers(KEY, self._plan, lambda: None, lambda: self._now)
        self._run(view.open())
        if view.all and self._credit:
            view.credits.held(view.newest)
            view.credits.take(view.newest, Granted(self._credit, self._credit))
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
