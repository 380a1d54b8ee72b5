"""The states of a search of the queue: scenarios, the server, and real workers.

Each distinct memory of the server and each distinct `WorkerState` has a number, and each transition of them is computed
once. The search copies, compares and hashes a worker's state by `dataclasses.fields`, and names none of them for that.

Syncs are compared with the last number only, and registrations for equality only. So a state keeps a worker's number
relative to its registration, and whether another worker's registration has changed since it was noted.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any, NamedTuple

from scrapy_bloom._runtime import TUNING
from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.entries import AdaptiveWindow, OutboxEntry, QueueEntry
from scrapy_bloom.queue.operations import FilterOperation, Reply
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.queue.worker_state import WorkerState
from tests.support.explore import Numbered
from tests.support.queue_memory import Audit, QueueMemory, Registration

Frozen = tuple[Any, ...]
Items = frozenset[str]
NOTHING: Items = frozenset()

# The number of each worker's last sync in every state, and the lowest number of an older one.
NUMBER = 10
OLDEST = 5
# A registration that equals none.
CHANGED = "other 0 0"
LEASE = "5"
FAULTS = ("lost", "crash", "false", "flush")
"""The usual faults; `delete` is the deletion of the queue alone, `failover` the loss of the last writes."""


class Rule(Enum):
    """Rules of the search itself, which a mistake can break."""

    FENCE = auto()  # an unregistered worker has no effect
    REFERENCES = auto()  # a filter with references is not cleared
    RENEWED = auto()  # a filter that replaces another one gets the references of its users
    CLOSING = auto()  # the last worker is registered while it clears
    COMPARED = auto()  # a worker is requeued only with the registration that was seen
    OWN_LEASES = auto()  # a worker is presumed dead after its own lease
    LAST_BEATS = auto()  # a leaving worker requeues no others


@dataclass(frozen=True)
class Scenario:
    """A small crawl and its faults.

    Attributes:
        tree: the item and the children of each request, in the order of scores; requests of one item are equal to the
            filter.
        roots: the start requests of each worker.
        faults: faults at most.
        kinds: kinds of these faults.
        want: requests in each engine and ready at most.
        batch: entries in one sync at most.
        max_bytes: bytes in one sync at most, where a request has one or two; None keeps the window full.
        persist: the queue and the filter stay after the crawl.
        late: workers that may start at any time.
        spare: workers that may start after a crash when no worker is alive.
        stop: workers that may be stopped.
        queues: the number of each worker's queue.
        unfiltered: requests that bypass the filter.
        unreadable: requests that each worker cannot deserialize.
        failing: requests whose page may fail at each fetch; it leads to nothing then.
        anew: workers that may start at any time, and flush the queue first.
        is_shared: a queue outside the search uses the filter all the time.
        filter_is_flushed: a flush loses the filter, too.
        loses_replies_of_filter: `lost` loses the filter's replies, too.
        max_deliveries: deaths of workers that make a request a dead letter; 0 is no bound.
        at_once: requests that an engine runs at once.
        limit: states at most.
    """

    tree: Mapping[str, tuple[str, Sequence[str]]]
    roots: Sequence[Sequence[str]]
    faults: int = 0
    kinds: Sequence[str] = ()
    want: int = 1
    batch: int = 8
    max_bytes: int | None = None
    persist: bool = False
    late: Sequence[int] = ()
    spare: Sequence[int] = ()
    stop: Sequence[int] = ()
    queues: Sequence[int] = ()
    unfiltered: Sequence[str] = ()
    unreadable: Sequence[Sequence[str]] = ()
    failing: Sequence[str] = ()
    anew: Sequence[int] = ()
    is_shared: bool = False
    filter_is_flushed: bool = True
    loses_replies_of_filter: bool = True
    max_deliveries: int = 0
    at_once: int = 1
    limit: int = 4_000_000

    @cached_property
    def fault_kinds(self) -> Items:
        """The kinds of faults, with the filter's lost replies as one of their own."""
        loses_filter = "lost" in self.kinds and self.loses_replies_of_filter
        return frozenset((*self.kinds, "lost filter") if loses_filter else self.kinds)

    @cached_property
    def fetches_once(self) -> bool:
        """True if no fault of this scenario makes a worker fetch a page twice."""
        return (not self.faults or self.fault_kinds <= {"lost"}) and not (self.unreadable or self.anew)

    @cached_property
    def queue_of(self) -> Sequence[int]:
        """The number of each worker's queue."""
        return self.queues or [0] * len(self.roots)

    def is_unfiltered(self, member: bytes) -> bool:
        """Return whether a request bypasses the filter."""
        return member.decode() in self.unfiltered

    def items(self, names: Iterable[str]) -> Items:
        """Return the items of requests."""
        return frozenset(self.tree[name][0] for name in names)

    def closure(self, items: Iterable[str]) -> set[str]:
        """Return items and all items that they lead to."""
        todo, seen = list(items), set(items)
        while todo:
            parent = todo.pop()
            for item, children in self.tree.values():
                if item == parent:
                    following = self.items(children) - seen
                    seen |= following
                    todo += following
        return seen


@dataclass(frozen=True)
class World:
    """The filter, and the history that the promises depend on."""

    marks: Items = NOTHING  # items that the filter knows
    users: frozenset[int] = frozenset()  # queues that hold a reference to the filter
    relying: frozenset[int] = frozenset()  # queues that have used the filter since it was lost
    offered: Items = NOTHING
    fetched: Items = NOTHING
    failed: Items = NOTHING  # items of which a fetch failed
    exempt: Items = NOTHING  # items that only Redis had when it lost them
    owed: Items = NOTHING  # unfiltered items that were offered and not started since
    faults: int = 0
    is_flushed: bool = False
    has_cleared: bool = False
    is_unreported: bool = False  # a queue was deleted alone, and no worker knows yet
    discarding: frozenset[int] = frozenset()  # queues that a stopped last worker is deleting


class Stored(NamedTuple):
    """The memory of one queue's server, frozen."""

    queue: Frozen
    dead: Frozen
    leases: Frozen
    workers: Frozen
    audit: Audit
    deliveries: Frozen


class Late(NamedTuple):
    """An operation that its sender has given up; the server may still execute it."""

    worker: int
    operation: ops.QueueOperation


@dataclass(frozen=True)
class Life:
    """A worker beside its `WorkerState`.

    Attributes:
        state: "new", "alive", "gone" or "crashed".
        knows: the number of its `WorkerState`.
        has_started: it has offered its start requests.
        is_stale: it has not leased again everything that it held when data were lost.
        is_stopped: it was stopped.
        flushing: its steps of a flush that are to come.
        is_left: no worker could detect its crash any more.
        had_begun: requests that it had started when it crashed.
        suspects: workers that it found silent, and whether their registrations have changed since.
    """

    state: str
    knows: int = 0
    has_started: bool = False
    is_stale: bool = False
    is_stopped: bool = False
    flushing: tuple[str, ...] = ()
    is_left: bool = False
    had_begun: frozenset[bytes] = frozenset()
    suspects: frozenset[tuple[int, bool]] = frozenset()

    @property
    def is_alive(self) -> bool:
        """True if the worker runs."""
        return self.state == "alive"


class State(NamedTuple):
    """A state of the search.

    Attributes:
        memories: the number of each queue's memory.
        world: the filter and the history.
        lives: the workers.
        late: an operation on its way.
        replica: the memories of a replica that lags, and the workers that have synced since.
        has_failed_over: the workers whose last syncs a failover has lost.
    """

    memories: tuple[int, ...]
    world: World
    lives: tuple[Life, ...]
    late: Late | None = None
    replica: tuple[tuple[int, ...], frozenset[int]] | None = None
    has_failed_over: frozenset[int] | None = None

    def with_world(self, **changes: Any) -> "State":
        """Return the state with parts of the world changed."""
        return self._replace(world=replace(self.world, **changes))

    def with_life(self, number: int, life: Life) -> "State":
        """Return the state with one worker changed."""
        if self.lives[number] == life:
            return self
        return self._replace(lives=(*self.lives[:number], life, *self.lives[number + 1 :]))

    def with_memory(self, queue: int, memory: int) -> "State":
        """Return the state with one queue's memory changed."""
        return self._replace(memories=(*self.memories[:queue], memory, *self.memories[queue + 1 :]))

    def charged(self) -> "State":
        """Return the state after one more fault."""
        return self.with_world(faults=self.world.faults - 1)


class QueueModel:
    """The memories and workers of a scenario, with some kind of worker and of queue."""

    def __init__(self, scenario: Scenario, worker: type[QueueWorker], memory: type[QueueMemory]) -> None:
        self.scenario = scenario
        self.worker = worker
        self.item = {name.encode(): item for name, (item, _) in scenario.tree.items()}
        self._memory = memory
        self._scores = {name: float(score) for score, name in enumerate(scenario.tree)}
        self._tuning = replace(TUNING, sync_bytes=scenario.max_bytes or TUNING.sync_bytes)
        unreadable = scenario.unreadable or [()] * len(scenario.roots)
        self._unreadable = [frozenset(name.encode() for name in names) for names in unreadable]
        self._memories: Numbered[Stored] = Numbered()
        self._knowledge: Numbered[Frozen] = Numbered()
        self._states: list[WorkerState] = []
        self._applied: dict[tuple[int, ops.QueueOperation], tuple[int, Reply, Items]] = {}
        self._told: dict[Hashable, tuple[int, int]] = {}
        self._following: dict[tuple[int, int], ops.QueueOperation | FilterOperation | None] = {}

    # Workers.

    def fresh(self, number: int) -> int:
        """Return the knowledge of a worker that has just been made."""
        return self._freeze(self._new_worker(number).state)

    def known(self, life: Life) -> WorkerState:
        """Return a worker's state, which must not be changed."""
        return self._states[life.knows]

    def next_operation(self, number: int, life: Life) -> ops.QueueOperation | FilterOperation | None:
        """Return a worker's next operation, which depends on its knowledge alone."""
        key = number, life.knows
        if key not in self._following:
            worker = self._thaw(number, life)
            self._following[key] = worker.next_operation(self._wanted(worker))
        return self._following[key]

    def tell(self, number: int, life: Life, event: Callable[..., object], *arguments: Any) -> Life:
        """Return a worker after an event: a method of its kind, by reference."""
        return self._tell(number, life, event, arguments, has_asked=False)[0]

    def conclude(self, number: int, life: Life, event: Callable[..., object], *arguments: Any) -> tuple[Life, int]:
        """Return a worker after its next operation, and the shift of its number."""
        return self._tell(number, life, event, arguments, has_asked=True)

    def start(self, number: int, life: Life) -> Life:
        """Return a worker that has offered its start requests."""
        return self.tell(number, life, self._offer_roots, number)

    def finish(self, number: int, life: Life, member: bytes) -> Life:
        """Return a worker whose engine is done with a request."""
        return self.tell(number, life, self._finish, member)

    def fail(self, number: int, life: Life, member: bytes) -> Life:
        """Return a worker that met a failed page."""
        return self.tell(number, life, self._fail, member)

    def note_changes(self, number: int, life: Life, names: Items) -> Life:
        """Return a worker that finds these workers' registrations changed."""
        noted = self.known(life).heartbeats_seen or {}
        if not any(name in names and value != CHANGED for name, value in noted.items()):
            return life
        return self.tell(number, life, _note_changes, names)

    def _new_worker(self, number: int) -> QueueWorker:
        worker = self.worker(
            f"w{number}",
            LEASE,
            self.scenario.batch,
            lambda entry: entry.member not in self._unreadable[number],
            tuning=self._tuning,
            max_deliveries=self.scenario.max_deliveries,
        )
        worker.state.number = NUMBER
        return worker

    def _freeze(self, state: WorkerState) -> int:
        if not self.scenario.max_bytes:
            state.window = AdaptiveWindow()
        number = self._knowledge.number(tuple(_frozen(getattr(state, name)) for name in _FIELDS))
        if number == len(self._states):
            self._states.append(_copy(state))
        return number

    def _thaw(self, number: int, life: Life) -> QueueWorker:
        worker = self._new_worker(number)
        worker.state = _copy(self._states[life.knows])
        return worker

    def _tell(
        self, number: int, life: Life, event: Callable[..., object], arguments: Sequence[Any], *, has_asked: bool
    ) -> tuple[Life, int]:
        key = number, life.knows, event, *map(_hashable, arguments)
        if key not in self._told:
            worker = self._thaw(number, life)
            if has_asked:
                worker.next_operation(self._wanted(worker))  # the worker keeps its pending sync
            event(worker, *arguments)
            self._run(number, worker)
            state = worker.state
            by = NUMBER - state.number
            state.number = NUMBER
            if by and state.in_doubt is not None:
                sync = state.in_doubt.sync
                state.in_doubt = replace(state.in_doubt, sync=replace(sync, number=sync.number + by))
            self._told[key] = self._freeze(state), by
        knows, by = self._told[key]
        return replace(life, knows=knows), by

    def _wanted(self, worker: QueueWorker) -> int:
        """Return the number of entries that an engine with free slots asks for."""
        room = self.scenario.want - len(worker.state.ready) - len(worker.state.running)
        may_start = worker.needs_start and len(worker.state.running) < self.scenario.at_once
        return max(room, 1 if may_start else 0)

    def _run(self, number: int, worker: QueueWorker) -> None:
        """Have the engine take requests; unreadable ones become dead letters."""
        state = worker.state
        while len(state.running) < self.scenario.at_once and not state.is_stopping:
            entry = worker.take()
            if entry is None:
                break
            if entry.member in self._unreadable[number]:
                worker.dead_letter(entry.member)

    def _offer_roots(self, worker: QueueWorker, number: int) -> None:
        self._offer(worker, self.scenario.roots[number])

    def _finish(self, worker: QueueWorker, member: bytes) -> None:
        self._offer(worker, self.scenario.tree[member.decode()][1])
        worker.finish(member)

    def _fail(self, worker: QueueWorker, member: bytes) -> None:
        worker.forget([self.item[member].encode()])
        worker.finish(member)

    def _offer(self, worker: QueueWorker, names: Iterable[str]) -> None:
        for name in names:
            item = self.scenario.tree[name][0].encode()
            if name in self.scenario.unfiltered:
                worker.offer(OutboxEntry(name.encode(), self._scores[name], None))
            elif not worker.has_offered(item):
                worker.offer(OutboxEntry(name.encode(), self._scores[name], item))

    # The server.

    def stored(self, memory: int) -> Stored:
        """Return a memory by its number."""
        return self._memories[memory]

    def empty(self) -> int:
        """Return the memory of a server without data."""
        return self._freeze_memory(self._memory())

    def without_queue(self, memory: int) -> int:
        """Return a memory whose queue was deleted alone."""
        thawed = self._thaw_memory(memory)
        thawed.queue = {}
        return self._freeze_memory(thawed)

    def apply(self, memory: int, operation: ops.QueueOperation) -> tuple[int, Reply, Items]:
        """Return the memory after an operation, its reply, and the changed workers."""
        key = memory, operation
        if key not in self._applied:
            thawed = self._thaw_memory(memory)
            before = dict(thawed.workers)
            reply = thawed.apply(operation)
            names = before.keys() | thawed.workers.keys()
            changed = frozenset(name for name in names if before.get(name) != thawed.workers.get(name))
            thawed.workers = _without_beats(thawed.workers)
            if reply.workers is not None:
                reply = replace(reply, workers=_without_beats(reply.workers))
            self._applied[key] = self._freeze_memory(thawed), reply, changed
        return self._applied[key]

    def shifted(self, memory: int, name: str, by: int) -> int:
        """Return the memory with the number of a worker changed."""
        stored = self._memories[memory]
        workers = dict(stored.workers)
        if name in workers:
            registration = Registration.parse(workers[name])
            workers[name] = str(replace(registration, number=max(OLDEST, registration.number + by)))
        return self._memories.number(stored._replace(workers=tuple(sorted(workers.items()))))

    def _freeze_memory(self, memory: QueueMemory) -> int:
        leases = tuple(sorted((name, tuple(sorted(held.items()))) for name, held in memory.leases.items() if held))
        sets = memory.queue, memory.dead_letters, memory.workers, memory.deliveries
        queue, dead, workers, deliveries = (tuple(sorted(part.items())) for part in sets)
        # Keep only whether there was a loss, and the audit's waiting requests only if some are missing.
        audit = replace(memory.audit, loss=int(memory.audit.loss > 0), lost=0)
        if memory.audit.waiting == len(memory.queue):
            audit = replace(audit, waiting=0)
        return self._memories.number(Stored(queue, dead, leases, workers, audit, deliveries))

    def _thaw_memory(self, number: int) -> QueueMemory:
        memory = self._memory()
        stored = self._memories[number]
        memory.queue, memory.dead_letters = dict(stored.queue), dict(stored.dead)
        memory.leases = {name: dict(held) for name, held in stored.leases}
        memory.workers, memory.deliveries = dict(stored.workers), dict(stored.deliveries)
        memory.audit = stored.audit if stored.audit.waiting else replace(stored.audit, waiting=len(memory.queue))
        return memory

    # Items of a state.

    def is_registered(self, state: State, number: int) -> bool:
        """Return whether a worker is registered."""
        return f"w{number}" in dict(self.stored(state.memories[self.scenario.queue_of[number]]).workers)

    def items_of(self, things: Iterable[OutboxEntry | QueueEntry]) -> set[str]:
        """Return the items of entries."""
        return {self.item[each.member] for each in things}

    def held_items(self, life: Life, *, finished: bool = False) -> set[str]:
        """Return the items that a worker holds, the finished ones only on request."""
        known = self.known(life)
        held = [*known.to_check, *known.new, *known.repeats, *offered(known)]
        taken = [*known.ready, *known.running.values(), *known.unreadable.values()]
        if finished:
            taken += known.finished.values()
        if known.in_doubt is not None:
            taken += known.in_doubt.returned
        return self.items_of(held) | self.items_of(taken) | {item.decode() for item in known.to_forget}

    def memory_items(self, memory: int) -> set[str]:
        """Return the items in the queue, among the dead letters and leased."""
        stored = self.stored(memory)
        leased = [pair for _, pairs in stored.leases for pair in pairs]
        return {self.item[member] for member, _ in (*stored.queue, *stored.dead, *leased)}

    def stored_items(self, state: State) -> set[str]:
        """Return the items that the server has."""
        items: set[str] = set()
        for memory in state.memories:
            items |= self.memory_items(memory)
        return items

    def begun_by(self, life: Life) -> frozenset[bytes]:
        """Return the requests that a worker has given to the engine, or has started to."""
        if not self.scenario.max_deliveries:
            return frozenset()
        known = self.known(life)
        starts = known.in_doubt.sync.starts if known.in_doubt is not None else ()
        started = () if known.suspects.started is None else (known.suspects.started,)
        return frozenset((*known.running, *known.finished, *known.unreadable, *starts, *started))


_FIELDS = tuple(each.name for each in fields(WorkerState))


def offered(state: WorkerState) -> list[OutboxEntry]:
    """Return the entries in the outbox."""
    return [item for item in state.outbox if isinstance(item, OutboxEntry)]


def _copy(state: WorkerState) -> WorkerState:
    return WorkerState(*(_copied(getattr(state, name)) for name in _FIELDS))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(sorted(value.items()))
    return type(value)(value) if isinstance(value, (deque, list, set)) else value


def _frozen(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    if isinstance(value, (deque, list)):
        return tuple(value)
    return frozenset(value) if isinstance(value, set) else value


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Reply):
        return tuple(_frozen(getattr(value, each.name)) for each in fields(value))
    return value  # type: ignore[no-any-return]


def _without_beats(workers: Mapping[str, str]) -> dict[str, str]:
    return {name: str(replace(Registration.parse(text), beats=0)) for name, text in workers.items()}


def _note_changes(worker: QueueWorker, names: Items) -> None:
    noted = worker.state.heartbeats_seen or {}
    worker.state.heartbeats_seen = {name: CHANGED if name in names else value for name, value in noted.items()}


def shown(thing: object) -> str:
    """Return an operation or its parts as a trace shows them."""
    if isinstance(thing, ops.Sync):
        lists = ("leases", thing.leases), ("pushes", thing.pushes), ("dead letters", thing.dead_letters)
        parts = [
            f"{name} {shown(part)}" for name, part in (*lists, ("acks", thing.acks), ("starts", thing.starts)) if part
        ]
        return " ".join(["syncs", *parts, f"want {thing.want}"])
    if isinstance(thing, tuple):
        return ",".join(each.member.decode() if isinstance(each, QueueEntry) else str(each) for each in thing)
    return str(thing)
