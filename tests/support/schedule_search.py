"""Search all interleavings of several workers' operations, one operation at a time.

Workers run the real steps of `filter`. A worker's next operation depends only on its replies so far and their times. So
a state of the search is the memory, the clock and the replies of each worker. A worker reaches a state by replaying its
replies, or by continuing from the state before.

A random number depends only on the worker and on how many numbers the worker has drawn. So orders that would differ
only in random numbers lead to the same state, which is visited once. No two random numbers are equal.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple, cast
from unittest import mock

from scrapy_bloom.filter import membership
from scrapy_bloom.filter.events import Events
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.layer_stack import LayerStack
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.opening import Opening
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.pending_batch import PendingBatch
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.bits import CheckBits
from scrapy_bloom.storage.counters import Granted
from scrapy_bloom.storage.filter_hash import Snapshot
from scrapy_bloom.storage.operation import Operation, Operations, Results, Steps, delete_expired
from scrapy_bloom.storage.stores import MemoryStore
from tests.support.explore import Numbered, reachable

Work = Callable[[FilterProtocol], Steps[Any]]
Frozen = tuple[Any, ...]
# The numbers of the memory, of past ticks, of replies and crashes that may still be lost, and of each worker.
State = tuple[int, ...]

KEY = "f"
# The field in which the search counts the additions to each shard, beside the filter's own data.
TALLY = "tally"


def add(protocol: FilterProtocol, items: Sequence[bytes], ambiguous: Set[bytes] = frozenset()) -> Steps[set[bytes]]:
    """The steps of a call that adds distinct items, and returns the new ones."""
    return membership.add(protocol, PendingBatch(items, ambiguous, protocol.stack.identity))


class Silent:
    """Events that are not logged: a search meets every fault thousands of times."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Done(NamedTuple):
    """A worker's result."""

    result: Any


class Told(NamedTuple):
    """The replies of one round trip, and when the last one came.

    Operations with the indexes in `retried` lost an earlier reply.
    """

    now: float
    replies: Frozen
    retried: frozenset[int]


class Fields(NamedTuple):
    """The fields of a hash in a hashable form."""

    pairs: tuple[tuple[str, str], ...]


class Draws:
    """The random numbers of one worker: the same in every order, and none that was `drawn` before."""

    def __init__(self, worker: str, drawn: dict[int, str]) -> None:
        self._worker = worker
        self._drawn = drawn
        self._count = 0

    def below(self, bound: int) -> int:
        """The next number."""
        self._count += 1
        name = f"draw {self._count} of {self._worker}"
        drawn = int.from_bytes(sha256(name.encode()).digest(), "big") % bound
        assert self._drawn.setdefault(drawn, name) == name, "two draws are equal: hash another text"
        return drawn


class Past:
    """A worker's replies since its start, and its next operations; each distinct past exists once."""

    def __init__(self, number: int, told: tuple[Told, ...] = (), before: "Past | None" = None) -> None:
        self.number = number
        self.told = told
        self.before = before
        self.next: Operations | Done | None = None
        # The running steps, for the first past that follows.
        self.steps: tuple[Steps[Any], Draws] | None = None
        self._following: dict[Told, Past] = {}

    def after(self, told: Told) -> "Past":
        """The past after further replies."""
        if told not in self._following:
            self._following[told] = Past(self.number, (*self.told, told), self)
        return self._following[told]


class Worker(NamedTuple):
    """A worker in a state: its past, replies of the current round trip by index, and the indexes of lost replies."""

    past: Past
    partial: tuple[tuple[int, Any], ...] = ()
    retried: frozenset[int] = frozenset()


class Move(NamedTuple):
    """A possible move of a worker: the numbers of memory and worker after it, and its share of the faults."""

    memory: int
    worker: int
    replies: int = 0
    crashes: int = 0


class Search:
    """Explores all behaviours of workers that have opened the same filter.

    The work in `before` is executed first, each part at its time. Then the clock may advance to each of the `ticks` at
    any moment. With `whole`, no operation comes between those of one round trip. With `scattered`, the operations of a
    round trip are executed in any order, at any time, and lose their replies one by one, as over a cluster. Only an
    operation whose reply was lost is executed again. Each worker starts with `credit`. At any moment, up to `replies`
    replies may be lost, and up to `crashes` workers may crash. A worker repeats a round trip whose reply was lost, and
    a crashed worker stops. `protocol` and `lifecycle` may contain mistakes.
    """

    # Of all searches in this process.
    searches: ClassVar[int] = 0
    states: ClassVar[int] = 0

    def __init__(
        self,
        parameters: FilterParameters,
        works: Sequence[Work],
        *,
        before: Sequence[tuple[float, Work]] = (),
        ticks: Sequence[float] = (),
        whole: bool = False,
        scattered: bool = False,
        protocol: type[FilterProtocol] = FilterProtocol,
        lifecycle: type[Lifecycle] = Lifecycle,
        credit: int = 1_000_000,
        replies: int = 0,
        crashes: int = 0,
    ) -> None:
        self._parameters = parameters
        self._works = works
        self._protocol = protocol
        self._lifecycle = lifecycle
        self._whole = whole
        self._scattered = scattered
        self._credit = credit
        self._faults = (replies, crashes)
        self._now = 0.0
        self._memory = MemoryStore(lambda: self._now)
        self._drawn: dict[int, str] = {}
        self._memories: Numbered[Frozen] = Numbered()
        self._workers: Numbered[Worker] = Numbered()
        self._ops: Numbered[Frozen] = Numbered()
        self._applied: dict[tuple[int, int, int], tuple[int, Any]] = {}
        self._results: dict[int, Done | None] = {}
        self._moved: dict[tuple[int, int, int], Sequence[Move]] = {}
        self._over: dict[tuple[int, Any], Past] = {}
        self._draws = Draws("an earlier worker", self._drawn)
        with self._replayable():
            self._run(self._opened().obtain(1))
            for self._now, work in before:
                self._run(work(self._opened()))
        self._memory.hashes.pop(TALLY, None)
        self._times = [self._now, *ticks]
        self._start = self._freeze()

    def results(self) -> set[tuple[Any, ...]]:
        """The results of all workers, in their order, at each distinct end."""
        return {tuple(results) for _, results in self._ends()}

    def fillings(self) -> set[tuple[tuple[str, int], ...]]:
        """The shards' keys and the number of additions to each, at each distinct end."""
        return {tuple(sorted(dict(dict(frozen[0]).get(TALLY, ())).items())) for frozen, _ in self._ends()}

    def left_behind(self, now: float) -> set[tuple[str, ...]]:
        """The remaining keys at the time `now`, without further operations, at each distinct end."""
        left = set()
        for frozen, _ in self._ends():
            self._thaw(frozen)
            self._now = now
            delete_expired(self._memory)
            keys = {*self._memory.hashes, *self._memory.strings} - {TALLY}
            left.add(tuple(sorted(keys)))
        return left

    def _ends(self) -> Iterator[tuple[Frozen, list[Any]]]:
        """The memory and the results of all workers, at each distinct end."""
        workers = [self._workers.number(Worker(Past(number))) for number in range(len(self._works))]
        start = (self._memories.number(self._start), 0, *self._faults, *workers)
        Search.searches += 1
        with self._replayable():
            for state in reachable(start, self._following):
                Search.states += 1
                ended = [self._result(worker) for worker in state[4:]]
                if None not in ended:
                    yield self._memories[state[0]], [each.result for each in ended if each is not None]

    def _following(self, state: State) -> Iterator[State]:
        """The states that may follow a state."""
        memory, ticks, replies, crashes, *workers = state
        if ticks + 1 < len(self._times):
            yield memory, ticks + 1, replies, crashes, *workers
        for number, worker in enumerate(workers):
            for move in self._moves(memory, worker, ticks):
                if move.replies <= replies and move.crashes <= crashes:
                    workers[number] = move.worker
                    yield move.memory, ticks, replies - move.replies, crashes - move.crashes, *workers
            workers[number] = worker

    def _result(self, number: int) -> Done | None:
        """A worker's result, or None if it has not ended."""
        if number not in self._results:
            following = self._next(self._workers[number].past)
            self._results[number] = following if isinstance(following, Done) else None
        return self._results[number]

    def _moves(self, memory: int, number: int, ticks: int) -> Sequence[Move]:
        """Return the possible moves of a worker, which do not depend on the other workers."""
        if (memory, number, ticks) not in self._moved:
            self._moved[memory, number, ticks] = list(self._new_moves(memory, self._workers[number], ticks))
        return self._moved[memory, number, ticks]

    def _new_moves(self, memory: int, worker: Worker, ticks: int) -> Iterator[Move]:
        past = worker.past
        ops = self._next(past)
        if isinstance(ops, Done):
            return
        if self._faults[1]:
            yield Move(memory, self._workers.number(Worker(self._ended(past.number, Done(None)))), crashes=1)
        pending = [index for index in range(len(ops)) if index not in dict(worker.partial)]
        portions = [[index] for index in pending] if self._scattered else [pending if self._whole else pending[:1]]
        for portion in portions:
            yield from self._executed(memory, worker, ops, portion, ticks)

    def _executed(
        self, memory: int, worker: Worker, ops: Operations, portion: Sequence[int], ticks: int
    ) -> Iterator[Move]:
        """The moves that execute a portion of a round trip, with and without its reply."""
        past, partial, retried = worker
        for index in portion:
            memory, said = self._apply(memory, ops[index], ticks)
            partial = tuple(sorted((*partial, (index, said)), key=lambda each: each[0]))
        is_complete = len(partial) == len(ops)
        if is_complete:
            after = past.after(Told(self._times[ticks], tuple(said for _, said in partial), retried))
            following = self._next(after)
            if isinstance(following, Done):
                after = self._ended(past.number, following)
            yield Move(memory, self._workers.number(Worker(after)))
        else:
            yield Move(memory, self._workers.number(Worker(past, partial, retried)))
        if not self._faults[0]:
            return
        if self._scattered:
            lost = retried.union(portion)
            yield Move(memory, self._workers.number(Worker(past, worker.partial, lost)), replies=1)
        elif is_complete:
            yield Move(memory, self._workers.number(Worker(past, retried=frozenset(range(len(ops))))), replies=1)

    def _ended(self, number: int, done: Done) -> Past:
        """Return the one past for all in which a worker ended with this result."""
        past = self._over.setdefault((number, done.result), Past(number))
        past.next = done
        return past

    def _apply(self, memory: int, op: Operation[Any], ticks: int) -> tuple[int, Any]:
        """Execute an operation and count its additions; return the memory's number after it, and the reply."""
        which = memory, self._ops.number(_comparable(op)), ticks
        if which not in self._applied:
            self._thaw(self._memories[memory])
            self._now = self._times[ticks]
            delete_expired(self._memory)
            said = op.apply(self._memory)
            if isinstance(op, CheckBits) and op.mark and not said[1]:
                counted = self._memory.hashes.setdefault(TALLY, {})
                counted[op.key] = counted.get(op.key, 0) + 1  # type: ignore[assignment, operator]  # a number, unlike fields
            self._applied[which] = self._memories.number(self._freeze()), _hashable(said)
        return self._applied[which]

    def _next(self, past: Past) -> Operations | Done:
        """Return the next operations of a worker with a past."""
        if past.next is None:
            steps, self._draws, told = self._brought_near(past)
            try:
                for each in told:
                    past.next = tuple(steps.send(self._say(each)))
                past.steps = steps, self._draws
            except StopIteration as end:
                past.next = Done(end.value)
        return past.next  # type: ignore[return-value]  # the loop has set it

    def _brought_near(self, past: Past) -> tuple[Steps[Any], Draws, Sequence[Told | None]]:
        """Return a worker in an earlier state of a past, and the replies to replay, from None for a new worker on."""
        before = past.before
        if before is not None and before.steps is not None:
            (steps, draws), before.steps = before.steps, None
            return steps, draws, past.told[-1:]
        self._thaw(self._start)
        self._now = self._times[0]
        draws = Draws(f"worker {past.number}", self._drawn)
        return self._works[past.number](self._opened()), draws, (None, *past.told)

    def _say(self, told: Told | None) -> Results:
        """Return the results to send to a worker, and set their time."""
        if told is None:
            return None  # type: ignore[return-value]  # the first thing sent is None
        self._now = told.now
        said = Results(_plain(each) for each in told.replies)
        said.retried = set(told.retried)
        return said

    @contextmanager
    def _replayable(self) -> Iterator[None]:
        """Replace the random numbers by those of the workers, and cache pure functions."""
        drawing: dict[str, Any] = {"randbelow": self._draw, "randbits": lambda bits: self._draw(1 << bits)}
        parameters: dict[str, Any] = {
            name: cache(getattr(FilterParameters, name)) for name in ("verify_stored", "first_layer", "next_layer")
        }
        max_items: Any = Layer.max_items
        layer: dict[str, Any] = {"max_items": property(cache(max_items.fget)), "from_json": cache(Layer.from_json)}
        patch = mock.patch.multiple
        with patch(secrets, **drawing), patch(FilterParameters, **parameters), patch(Layer, **layer):
            yield

    def _draw(self, bound: int) -> int:
        """Draw a number for the running worker."""
        return self._draws.below(bound)

    def _opened(self) -> FilterProtocol:
        stack = LayerStack(KEY, self._parameters, lambda: self._now)
        protocol = self._protocol(Opening(stack, cast(Events, Silent()), randbelow=self._draw))
        protocol.lifecycle = self._lifecycle(protocol.opening)
        self._run(protocol.opening.open())
        if stack.layers and self._credit:
            stack.credits.held(stack.newest)
            stack.credits.take(stack.newest, Granted(self._credit, self._credit))
        return protocol

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
        expiries = self._memory.expiries.items()
        return tuple(sorted(hashes.items())), tuple(sorted(strings.items())), tuple(sorted(expiries))

    def _thaw(self, frozen: Frozen) -> None:
        self._memory.hashes = {key: dict(fields) for key, fields in frozen[0]}
        self._memory.strings = {key: bytearray(string) for key, string in frozen[1]}
        self._memory.expiries = dict(frozen[2])


def _comparable(op: Operation[Any]) -> Frozen:
    """An operation in a hashable form, equal only for operations with the same effect."""
    fields: Sequence[Any] = op  # type: ignore[assignment]  # every operation is a tuple of its arguments
    return type(op), *(tuple(each) if isinstance(each, list) else each for each in fields)


def _hashable(said: Any) -> Any:
    if isinstance(said, dict):
        return Fields(tuple(sorted(said.items())))
    return (*said[:-1], tuple(sorted(said.fields.items()))) if isinstance(said, Snapshot) else said


def _plain(said: Any) -> Any:
    if isinstance(said, Fields):
        return dict(said.pairs)
    is_snapshot = isinstance(said, tuple) and len(said) == len(Snapshot._fields)
    return Snapshot._make((*said[:-1], dict(said[-1]))) if is_snapshot else said
