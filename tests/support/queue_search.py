"""A search through everything that can happen to the workers of a queue, on the real code of `QueueWorker`.

The queue is the twin of the scripts. The filter is one atomic set, whose own protocol is searched elsewhere. A state is
what the server has and what each worker knows; each different one is looked at once. Between any two operations a
callback may end, a worker may be stopped, killed or taken for dead, a reply may be lost with the operation carried out,
not carried out or carried out later, and the server may lose its data, or its last writes.

Numbers of exchanges are compared with the last one only, and values of workers for equality only. So a state keeps of
them how far a worker is from its registration, and whether a value has changed since somebody noted it.
"""

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.entries import OutboxEntry, QueueEntry
from scrapy_bloom.queue.operations import REGISTERED, Ending, Reply, Status
from scrapy_bloom.queue.sync import AdaptiveWindow, AskFilter, ReleaseFilter, UseFilter
from scrapy_bloom.queue.worker import Phase, QueueWorker
from tests.support.queue_memory import Audit, QueueMemory, Registration

Thing = TypeVar("Thing", bound=Hashable)
Frozen = tuple[Any, ...]
Items = frozenset[str]
NOTHING: Items = frozenset()

# Where the number of each worker's last exchange is put, and the value that equals none.
NUMBER = 10
OLDEST = 5
OTHER = "other 0 0"
LEASE = "5"
FAULTS = ("lost", "crash", "false", "flush")
"""Faults of every scenario with any; `delete` is the queue's deletion alone, `failover` the loss of the last writes."""


class ViolationError(Exception):
    """A promise was broken."""


@dataclass(frozen=True)
class Scenario:
    """A small crawl, and what may happen to it.

    `tree` has for each request, in the order of their scores, its item and those that it leads to. Requests of one item
    are equal to the filter. Each worker offers its `roots`. Workers in `late` may start at any time, those in `spare`
    after a crash when nobody is left, those in `stop` may be stopped. `queues` has the number of each worker's queue.
    Workers in `anew` start as late ones, and begin the crawl anew. `unfiltered` requests do not go through the filter.
    Of each worker some may be `unreadable`. An exchange carries `most_bytes` where that is told; a request has one or
    two. An engine runs up to `at_once` requests.
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
    anew: Sequence[int] = ()
    filter_is_flushed: bool = True
    loses_replies_of_filter: bool = True
    max_deliveries: int = 0
    at_once: int = 1
    limit: int = 4_000_000


@dataclass(frozen=True)
class World:
    """The server beside the queue, and what has happened."""

    marks: Items = NOTHING
    users: frozenset[int] = frozenset()
    offered: Items = NOTHING
    fetched: Items = NOTHING
    # Not fetched any more, and nobody's fault: only Redis had it when its data were lost.
    exempt: Items = NOTHING
    # Unfiltered ones that were offered and not begun since.
    owed: Items = NOTHING
    faults: int = 0
    is_flushed: bool = False
    has_cleared: bool = False
    # A queue was deleted alone, and no worker has heard of it.
    is_untold: bool = False
    # The queues whose last worker was stopped, and is deleting what waits.
    discarding: frozenset[int] = frozenset()


class Stored(NamedTuple):
    """A queue on the server, as a search keeps it."""

    queue: Frozen
    dead: Frozen
    leases: Frozen
    workers: Frozen
    audit: Audit
    deliveries: Frozen


class Late(NamedTuple):
    """An operation that its sender has given up, and that may be carried out still."""

    worker: int
    operation: ops.QueueOperation


@dataclass(frozen=True)
class Life:
    """A worker's state beside what it knows itself."""

    state: str  # new, alive, gone or crashed
    knows: int = 0  # the number of its frozen worker
    has_started: bool = False
    # It has not leased again all that it had when data were lost.
    is_stale: bool = False
    is_stopped: bool = False
    # The steps by which it begins the crawl anew, and that are to come.
    flushing: tuple[str, ...] = ()
    # Nobody could see that it had crashed: all others were at their end.
    is_left: bool = False
    # The requests that it had begun as it crashed.
    had_begun: frozenset[bytes] = frozenset()
    suspects: frozenset[tuple[int, bool]] = frozenset()  # others, and whether they have changed since


class State(NamedTuple):
    """A state of the search; each part by its number."""

    memories: tuple[int, ...]
    world: World
    lives: tuple[Life, ...]
    late: Late | None = None
    # What a replica has that is behind, and the workers that have gone on since; then: they are not known there.
    replica: tuple[tuple[int, ...], frozenset[int]] | None = None
    has_failed_over: frozenset[int] | None = None


class Numbered(Generic[Thing]):
    """Things by their numbers: equal ones have the same."""

    def __init__(self) -> None:
        self.numbers: dict[Thing, int] = {}
        self.things: list[Thing] = []

    def number(self, thing: Thing) -> int:
        """The number of a thing, a new one where it is new."""
        number = self.numbers.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


class Move(NamedTuple):
    """A step to another state; nobody may count on one that `is_fault`."""

    label: Callable[[], str]
    state: State
    is_fault: bool = False


@dataclass
class Found:
    """The result of a search."""

    states: int
    moves: int
    violation: str | None = None
    trace: list[str] = field(default_factory=list)


# The parts of a worker that a state keeps, in a fixed order.
_PARTS = [
    "phase", "may_finish", "is_stopping", "outbox", "asked", "new", "repeats", "ready", "running", "finished",
    "unreadable", "_fingerprints", "_is_new", "_in_doubt", "_to_reclaim", "_heartbeats_seen", "_dead_letter_scan",
    "_ending", "_window", "_clears", "suspects",
]  # fmt: skip


class Search:
    """Explores a scenario with some kind of worker and of queue, which a mutation may have changed."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        worker: type[QueueWorker] = QueueWorker,
        memory: type[QueueMemory] = QueueMemory,
        rules: frozenset[str] = frozenset(),
    ) -> None:
        self.scenario = scenario
        self._worker = worker
        self._memory = memory
        self._rules = rules
        self._names = list(scenario.tree)
        self._entries = {name: QueueEntry(float(score), name.encode()) for score, name in enumerate(self._names)}
        self._item = {name.encode(): item for name, (item, _) in scenario.tree.items()}
        self._queues = list(scenario.queues) or [0] * len(scenario.roots)
        self._peers = [
            [other for other, queue in enumerate(self._queues) if queue == own and other != number]
            for number, own in enumerate(self._queues)
        ]
        self._memories: Numbered[Stored] = Numbered()
        self._workers: Numbered[Frozen] = Numbered()
        self._applied: dict[tuple[int, ops.QueueOperation], tuple[int, Reply, frozenset[str]]] = {}
        self._told: dict[tuple[Any, ...], tuple[int, Any]] = {}
        self._following: dict[tuple[int, int], Any] = {}
        kinds = set(scenario.kinds)
        self._kinds = kinds | ({"lost filter"} if "lost" in kinds and scenario.loses_replies_of_filter else set())
        # Then each page is fetched once.
        self._once = (not scenario.faults or self._kinds <= {"lost"}) and not (scenario.unreadable or scenario.anew)

    # ---- what is frozen -------------------------------------------------------------------------------------------

    def _new_worker(self, number: int) -> QueueWorker:
        unreadable = {name.encode() for name in (self.scenario.unreadable[number] if self.scenario.unreadable else ())}
        worker = self._worker(
            f"w{number}",
            LEASE,
            self.scenario.batch,
            lambda entry: entry.member not in unreadable,
            max_deliveries=self.scenario.max_deliveries,
        )
        worker._number = NUMBER
        most = self.scenario.max_bytes
        worker._window = AdaptiveWindow(most, most) if most else AdaptiveWindow()
        return worker

    def _freeze_worker(self, worker: QueueWorker) -> int:
        parts: list[Any] = []
        for name in _PARTS:
            value = getattr(worker, name)
            if isinstance(value, dict):
                value = tuple(sorted(value.items()))
            elif isinstance(value, (deque, list)):
                value = tuple(value)
            elif isinstance(value, set):
                value = frozenset(value)
            elif name == "_window" and not self.scenario.max_bytes:
                value = AdaptiveWindow()
            parts.append(value)
        return self._workers.number(tuple(parts))

    def _thaw_worker(self, number: int, frozen: int) -> QueueWorker:
        worker = self._new_worker(number)
        for name, value in zip(_PARTS, self._workers.things[frozen], strict=True):
            like = getattr(worker, name)
            if isinstance(like, dict) or name == "_heartbeats_seen":
                value = None if value is None else dict(value)  # noqa: PLW2901
            elif isinstance(like, (deque, set)):
                value = type(like)(value)  # noqa: PLW2901
            setattr(worker, name, value)
        return worker

    def _part(self, life: Life, name: str) -> Any:
        return self._workers.things[life.knows][_PARTS.index(name)]

    def _freeze_memory(self, memory: QueueMemory) -> int:
        leases = tuple(sorted((name, tuple(sorted(held.items()))) for name, held in memory.leases.items() if held))
        queue, dead, workers, deliveries = (
            tuple(sorted(part.items()))
            for part in (memory.queue, memory.dead_letters, memory.workers, memory.deliveries)
        )
        # Of losses only that there was one, and how many waited only where the queue has lost them.
        audit = replace(memory.audit, loss=int(memory.audit.loss > 0), lost=0)
        if memory.audit.waiting == len(memory.queue):
            audit = replace(audit, waiting=0)
        return self._memories.number(Stored(queue, dead, leases, workers, audit, deliveries))

    def _thaw_memory(self, frozen: int) -> QueueMemory:
        memory = self._memory()
        stored = self._memories.things[frozen]
        memory.queue, memory.dead_letters = dict(stored.queue), dict(stored.dead)
        memory.leases = {name: dict(held) for name, held in stored.leases}
        memory.workers, memory.deliveries = dict(stored.workers), dict(stored.deliveries)
        memory.audit = stored.audit if stored.audit.waiting else replace(stored.audit, waiting=len(memory.queue))
        return memory

    # ---- the server -----------------------------------------------------------------------------------------------

    def _apply(self, frozen: int, operation: ops.QueueOperation) -> tuple[int, Reply, frozenset[str]]:
        """The memory after an operation, its answer, and the workers whose values have changed."""
        which = frozen, operation
        if which not in self._applied:
            memory = self._thaw_memory(frozen)
            before = dict(memory.workers)
            answer = memory.apply(operation)
            names = before.keys() | memory.workers.keys()
            changed = frozenset(name for name in names if before.get(name) != memory.workers.get(name))
            for name, text in memory.workers.items():
                memory.workers[name] = self._normal(text)
            if answer.workers is not None:
                answer = replace(answer, workers={name: self._normal(text) for name, text in answer.workers.items()})
            self._applied[which] = self._freeze_memory(memory), answer, changed
        return self._applied[which]

    def _normal(self, text: str) -> str:
        return str(replace(Registration.parse(text), beats=0))

    def _shifted(self, frozen: int, name: str, by: int) -> int:
        """The memory with the number of a worker put elsewhere."""
        stored = self._memories.things[frozen]
        texts = dict(stored.workers)
        if name in texts:
            known = Registration.parse(texts[name])
            texts[name] = str(replace(known, number=max(OLDEST, known.number + by)))
        return self._memories.number(stored._replace(workers=tuple(sorted(texts.items()))))

    # ---- a worker -------------------------------------------------------------------------------------------------

    def _next(self, number: int, life: Life) -> Any:
        """Return what a worker does next, which depends on what it knows alone."""
        which = number, life.knows
        if which not in self._following:
            worker = self._thaw_worker(number, life.knows)
            self._following[which] = worker.next_operation(self._wanted(worker))
        return self._following[which]

    def _wanted(self, worker: QueueWorker) -> int:
        """Return how many entries an engine asks for that has room for some requests."""
        room = self.scenario.want - len(worker.ready) - len(worker.running)
        return max(0, room, int(worker.needs_start and len(worker.running) < self.scenario.at_once))

    def _tell(self, number: int, life: Life, what: str, *said: Any) -> tuple[Life, int]:
        """A worker that was told something, and how far its number has gone on."""
        key = number, life.knows, what, *(_hashable(each) for each in said)
        if key not in self._told:
            worker = self._thaw_worker(number, life.knows)
            if what in ("reply", "lose", "answer"):
                worker.next_operation(self._wanted(worker))  # builds what it is told of
            getattr(self, f"_tell_{what}")(number, worker, *said)
            self._run(worker)
            by = NUMBER - worker._number
            if by and worker._in_doubt is not None:
                sync = worker._in_doubt.sync
                worker._in_doubt = replace(worker._in_doubt, sync=replace(sync, number=sync.number + by))
            self._told[key] = self._freeze_worker(worker), by
        knows, by = self._told[key]
        return replace(life, knows=knows), by

    def _tell_reply(self, _: int, worker: QueueWorker, operation: Any, answer: Reply) -> None:
        worker.reply(operation, answer)

    def _tell_lose(self, _: int, worker: QueueWorker, operation: Any) -> None:
        worker.lose(operation)

    def _tell_answer(self, _: int, worker: QueueWorker, operation: Any, are_new: Sequence[bool]) -> None:
        worker.answer(operation, are_new)

    def _tell_leave(self, _: int, worker: QueueWorker, ending: Ending) -> None:
        worker.leave(ending)

    def _tell_stop(self, _: int, worker: QueueWorker) -> None:
        worker.stop()

    def _tell_finish(self, _: int, worker: QueueWorker, member: bytes) -> None:
        self._offer(worker, self.scenario.tree[member.decode()][1])
        worker.finish(member)

    def _tell_start(self, number: int, worker: QueueWorker) -> None:
        self._offer(worker, self.scenario.roots[number])

    def _tell_changed(self, _: int, worker: QueueWorker, names: frozenset[str]) -> None:
        noted = worker._heartbeats_seen or {}
        worker._heartbeats_seen = {name: OTHER if name in names else value for name, value in noted.items()}

    def _offer(self, worker: QueueWorker, names: Iterable[str]) -> None:
        for name in names:
            score, member = self._entries[name]
            if name in self.scenario.unfiltered:
                worker.offer(OutboxEntry(member, score, None))
            elif not worker.has_offered(self._item[member].encode()):
                worker.offer(OutboxEntry(member, score, self._item[member].encode()))

    def _run(self, worker: QueueWorker) -> None:
        """The engine takes the next request as soon as it has room; one that cannot be read is set aside."""
        while len(worker.running) < self.scenario.at_once and worker.ready and not worker.is_stopping:
            entry = worker.take()
            if entry is None:
                break
            if not worker._can_read(entry):
                worker.dead_letter(entry.member)

    # ---- moves ----------------------------------------------------------------------------------------------------

    def start(self) -> State:
        """The state in which all begin."""
        memories = [self._freeze_memory(self._memory())] * (max(self._queues) + 1)
        lives = []
        for number in range(len(self._queues)):
            is_there = number not in (*self.scenario.late, *self.scenario.spare, *self.scenario.anew)
            knows = self._freeze_worker(self._new_worker(number))
            lives.append(Life("alive" if is_there else "new", knows))
        return State(tuple(memories), World(faults=self.scenario.faults), tuple(lives))

    def moves(self, state: State) -> Iterator[Move]:
        """Everything that can happen next."""
        for number, life in enumerate(state.lives):
            if life.state == "new":
                yield from self._starting(state, number)
            elif life.flushing:
                yield from self._flushing(state, number)
            elif life.state == "alive":
                yield from self._events(state, number)
                yield from self._suspicions(state, number)
                yield from self._operation(state, number)
        yield from self._late(state)
        yield from self._losses(state)

    def _starting(self, state: State, number: int) -> Iterator[Move]:
        others = [life for other, life in enumerate(state.lives) if other != number]
        has_died = any(state.lives[peer].state == "crashed" for peer in self._peers[number])
        is_late = number in self.scenario.late
        if number in self.scenario.anew:
            yield Move(lambda: f"w{number} starts, and flushes the queue", self._anew(state, number), True)
        elif is_late or (has_died and all(life.state != "alive" for life in others)):
            started = replace(state.lives[number], state="alive")
            yield Move(lambda: f"w{number} starts", self._with(state, number, started), is_late)

    def _flushing(self, state: State, number: int) -> Iterator[Move]:
        """The next step of a worker that begins the crawl anew."""
        if state.world.faults and "crash" in self._kinds:
            yield Move(lambda: f"w{number} CRASHES", self._crashed(state, number), True)
        life = state.lives[number]
        done = self._with(state, number, replace(life, flushing=life.flushing[1:]))
        if life.flushing[0] == "clear":
            done = done._replace(world=replace(done.world, marks=NOTHING, users=frozenset()))
        else:
            done = self._carried_out(done, number, ops.EndClosing(f"w{number}", clears=False))
        yield Move(lambda: f"w{number}: {life.flushing[0]}", done)

    def _anew(self, state: State, number: int) -> State:
        """Flush the queue; from here on, what workers hold or offer is to be fetched, whatever was before."""
        state = self._carried_out(state, number, ops.Flush(f"w{number}", lease=LEASE))
        held: set[str] = set()
        # Their workers hold what they led to.
        finished: set[str] = set()
        for other, life in enumerate(state.lives):
            if life.state == "alive":
                held |= self._in_memory(life)
                finished |= {self._item[member] for member, _ in self._pairs(life, "finished")}
                state = self._with(state, other, replace(life, is_stale=True))
        state = self._with(state, number, replace(state.lives[number], state="alive", flushing=("clear", "end")))
        begun = World(
            marks=state.world.marks,
            users=state.world.users,
            offered=frozenset(held),
            fetched=frozenset(finished),
            faults=state.world.faults,
        )
        return state._replace(world=begun)

    def _carried_out(self, state: State, number: int, operation: ops.QueueOperation) -> State:
        """The state after an operation of a worker that needs no answer."""
        queue = self._queues[number]
        after, _, changed = self._apply(state.memories[queue], operation)
        return self._noticed(self._stored(state, queue, after), queue, changed)

    def _events(self, state: State, number: int) -> Iterator[Move]:
        life, world = state.lives[number], state.world
        phase = self._part(life, "phase")
        if world.faults and "crash" in self._kinds:
            yield Move(lambda: f"w{number} CRASHES", self._crashed(state, number), True)
        if number in self.scenario.stop and life.has_started and not life.is_stopped:
            stopped, _ = self._tell(number, replace(life, is_stopped=True), "stop")
            yield Move(lambda: f"w{number} is stopped", self._with(state, number, stopped), True)
        if phase in (Phase.WORKING, Phase.JOINING, Phase.JOINED):
            for member, _ in self._part(life, "running"):
                finished = self._finished(state, number, member)
                yield Move(lambda member=member: f"w{number} finishes {member.decode()}", finished)  # type: ignore[misc]
        ending = self._ending_of(number, life)
        if ending is not None:
            left, _ = self._tell(number, life, "leave", ending)
            yield Move(lambda: f"w{number} decides to leave: {ending}", self._with(state, number, left))
        if phase in (Phase.WORKING, Phase.JOINED) and self._is_registered(state, number):
            beaten = self._noticed(state, self._queues[number], frozenset({f"w{number}"}))
            if beaten != state:
                yield Move(lambda: f"w{number} beats", beaten)

    def _ending_of(self, number: int, life: Life) -> Ending | None:
        if self._part(life, "phase") is not Phase.WORKING:
            return None
        if self._part(life, "may_finish"):
            return Ending.KEEP if self.scenario.persist else Ending.FINISHED
        is_over = life.is_stopped and not self._part(life, "running") and self._next(number, life) is None
        if is_over:
            return Ending.KEEP if self.scenario.persist else Ending.STOPPED
        return None

    def _suspicions(self, state: State, number: int) -> Iterator[Move]:
        life, world = state.lives[number], state.world
        if self._part(life, "_ending") is not None and "beats to the end" not in self._rules:
            return
        known = dict(life.suspects)
        memory = state.memories[self._queues[number]]
        workers = dict(self._memories.things[memory].workers)
        for peer in self._peers[number]:
            text = workers.get(f"w{peer}")
            if text is None:
                continue
            is_closing = Registration.parse(text).is_closing
            if not life.has_started and not is_closing:
                continue
            is_dead = state.lives[peer].state != "alive"
            may_err = world.faults and "false" in self._kinds
            if peer not in known:
                if is_dead or may_err or self._rules & {"nocas", "ownlease"}:
                    suspecting = replace(life, suspects=life.suspects | {(peer, False)})
                    yield Move(
                        lambda peer=peer: f"w{number} finds w{peer} silent",  # type: ignore[misc]
                        self._with(state, number, suspecting),
                        not is_dead,
                    )
                continue
            costs = not is_dead and not known[peer] and "ownlease" not in self._rules
            if costs and not may_err:
                continue
            value = OTHER if known[peer] and "nocas" not in self._rules else text
            operation = ops.Requeue(f"w{number}", f"w{peer}", value, LEASE, NUMBER, self.scenario.max_deliveries)
            after, answer, changed = self._apply(memory, operation)
            self._check_dead_letters(state, peer, answer)
            calm = replace(life, suspects=life.suspects - {(peer, known[peer])})
            done = self._with(state, number, calm)
            done = self._noticed(self._stored(done, self._queues[number], after), self._queues[number], changed)
            if costs:
                done = self._charged(done)
            yield Move(
                lambda peer=peer, answer=answer: f"w{number} requeues w{peer}: {answer.status}",  # type: ignore[misc]
                done,
                not is_dead,
            )

    def _operation(self, state: State, number: int) -> Iterator[Move]:
        life, world = state.lives[number], state.world
        operation = self._next(number, life)
        if operation is None:
            return
        if isinstance(operation, AskFilter):
            yield from self._asked(state, number, operation)
        elif isinstance(operation, (UseFilter, ReleaseFilter)):
            yield from self._used(state, number, operation)
        else:
            queue = self._queues[number]
            if isinstance(operation, ops.Join):
                self._check_filter_found(state, number)
            after, answer, changed = self._apply(state.memories[queue], operation)
            carried_out = self._noticed(self._stored(state, queue, after), queue, changed)
            if isinstance(operation, ops.Leave) and answer.status is Status.LAST:
                discarding = (
                    world.discarding | {queue} if operation.ending is Ending.STOPPED else world.discarding - {queue}
                )
                carried_out = carried_out._replace(world=replace(carried_out.world, discarding=discarding))
            if world.faults and "lost" in self._kinds:
                yield from self._lost(state, carried_out, number, operation, answer)
            yield Move(
                lambda: f"w{number} {_shown(operation)}: {answer.status} {_shown(answer.entries)}",
                self._replied(carried_out, number, operation, answer),
            )

    def _replied(self, state: State, number: int, operation: ops.QueueOperation, answer: Reply) -> State:
        before = state.lives[number]
        life, by = self._tell(number, before, "reply", operation, answer)
        if answer.loss:
            state = state._replace(world=replace(state.world, is_untold=False))
        if state.replica is not None and answer.status is Status.OK and isinstance(operation, ops.Sync):
            memories, ahead = state.replica
            state = state._replace(replica=(memories, ahead | {number}))
        if isinstance(operation, ops.Join) and answer.status in REGISTERED and state.has_failed_over is not None:
            state = state._replace(has_failed_over=state.has_failed_over - {number})
        state = self._forgotten(state, number, answer)
        state = self._numbered(self._begun(state, self._with(state, number, life), number), number, by)
        if isinstance(operation, ops.Sync):
            state = self._calmed(state, number)
        return self._over(self._started(state, number), number)

    def _forgotten(self, state: State, number: int, answer: Reply) -> State:
        """Forget a late operation that can have no effect any more."""
        if state.late is None or state.late.worker != number:
            return state
        if isinstance(state.late.operation, ops.Join):
            # One that comes after the end leaves a worker that nobody is, until its lease is over.
            is_over = answer.status in (Status.LAST, Status.LEFT)
        else:
            said = self._apply(state.memories[self._queues[number]], state.late.operation)[1].status
            is_over = said in (Status.AGAIN, Status.LATE)
        return state._replace(late=None) if is_over else state

    def _started(self, state: State, number: int) -> State:
        """A worker that has begun to work offers its start requests, once."""
        life = state.lives[number]
        if self._part(life, "phase") is not Phase.WORKING or life.has_started:
            return state
        offered = self._offers(state.world, self.scenario.roots[number])
        life, _ = self._tell(number, replace(life, has_started=True), "start")
        return self._with(state, number, life)._replace(world=offered)

    def _calmed(self, state: State, number: int) -> State:
        """A worker that has leased again what it had, and has doubts no more, is as any other."""
        life = state.lives[number]
        if not life.is_stale or self._part(life, "phase") is not Phase.WORKING or self._part(life, "_to_reclaim"):
            return state
        waiting = (*self._part(life, "outbox"), *self._part(life, "asked"))
        is_unsure = any(isinstance(each, OutboxEntry) and each.is_unsure for each in waiting)
        if is_unsure or self._part(life, "new"):
            return state
        return self._with(state, number, replace(life, is_stale=False))

    def _over(self, state: State, number: int) -> State:
        life = state.lives[number]
        if self._part(life, "phase") is Phase.GONE:
            fresh = self._freeze_worker(self._new_worker(number))
            life = Life("gone", fresh, is_stopped=life.is_stopped)
            if state.late is not None and state.late.worker == number:
                state = state._replace(late=None)
        return self._with(state, number, life)

    def _lost(
        self, state: State, carried_out: State, number: int, operation: ops.QueueOperation, answer: Reply
    ) -> Iterator[Move]:
        if answer.status is Status.EXPIRED:
            return
        for done, name in ((carried_out, "carried out"), (state, "not carried out")):
            life, by = self._tell(number, done.lives[number], "lose", operation)
            lost = self._numbered(self._with(self._charged(done), number, life), number, by)
            yield Move(lambda name=name: f"w{number} {_shown(operation)}: LOST, {name}", lost, True)  # type: ignore[misc]
            if done is state and state.late is None and isinstance(operation, (ops.Sync, ops.Join)):
                moved = replace(operation, number=operation.number + by)
                yield Move(
                    lambda: f"w{number} {_shown(operation)}: LATE", lost._replace(late=Late(number, moved)), True
                )

    def _late(self, state: State) -> Iterator[Move]:
        if state.late is None:
            return
        number, operation = state.late
        yield Move(lambda: "what is late is never carried out", state._replace(late=None), True)
        queue = self._queues[number]
        after, answer, changed = self._apply(state.memories[queue], operation)
        done = self._noticed(self._stored(state._replace(late=None), queue, after), queue, changed)
        if done.lives[number].state == "crashed":
            done = self._with(done, number, replace(done.lives[number], is_left=True))
        yield Move(lambda: f"late: w{number} {_shown(operation)}: {answer.status}", done, True)

    def _asked(self, state: State, number: int, operation: AskFilter) -> Iterator[Move]:
        life, world = state.lives[number], state.world
        asked = [(self._item[entry.member], entry.is_unsure) for entry in operation.entries]
        unsure = {item for item, is_unsure in asked if is_unsure}
        are_new, met = [], set()
        for item, _ in asked:
            are_new.append(item not in met and (item in unsure or item not in world.marks))
            met.add(item)
        marked = state._replace(world=replace(world, marks=world.marks | met))
        if world.faults and "lost filter" in self._kinds:
            doubting, _ = self._tell(number, life, "lose", operation)
            lost = self._with(self._charged(marked), number, doubting)
            yield Move(lambda: f"w{number} asks the filter: LOST", lost, True)
        told, _ = self._tell(number, life, "answer", operation, tuple(are_new))
        yield Move(lambda: f"w{number} asks for {asked}: {are_new}", self._with(marked, number, told))

    def _used(self, state: State, number: int, operation: UseFilter | ReleaseFilter) -> Iterator[Move]:
        queue = self._queues[number]
        if isinstance(operation, UseFilter):
            done = state._replace(world=replace(state.world, users=state.world.users | {queue}))
        else:
            done = self._released(state, number)
            if state.world.faults and "lost" in self._kinds:
                yield Move(lambda: f"w{number} releases the filter: LOST", self._charged(done), True)
        is_kept = isinstance(operation, ReleaseFilter) and bool(done.world.users) and "nousers" not in self._rules
        if is_kept:
            # What waits stays with the filter that knows it.
            done = done._replace(world=replace(done.world, discarding=done.world.discarding - {queue}))
        yield Move(
            lambda: f"w{number} {type(operation).__name__}",
            self._replied(done, number, operation, Reply(Status.KEPT if is_kept else Status.OK)),  # type: ignore[arg-type]
        )

    def _losses(self, state: State) -> Iterator[Move]:
        world = state.world
        if world.faults and "flush" in self._kinds and not world.is_flushed:
            yield Move(lambda: "FLUSHALL", self._flushed(state), True)
        at_work = any(life.state == "alive" and self._part(life, "_ending") is None for life in state.lives)
        is_queued = any(self._memories.things[memory].queue for memory in state.memories)
        if world.faults and "delete" in self._kinds and at_work and is_queued:
            yield Move(lambda: "the queue is DELETED", self._deleted(state), True)
        if "failover" in self._kinds:
            if world.faults and state.replica is None and state.has_failed_over is None:
                behind = self._charged(state)._replace(replica=(state.memories, frozenset()))
                yield Move(lambda: "the replica falls behind", behind, True)
            if state.replica is not None:
                yield Move(lambda: "FAILOVER", self._failed_over(state), True)

    # ---- what moves change ----------------------------------------------------------------------------------------

    def _with(self, state: State, number: int, life: Life) -> State:
        if state.lives[number] == life:
            return state
        return state._replace(lives=(*state.lives[:number], life, *state.lives[number + 1 :]))

    def _stored(self, state: State, queue: int, memory: int) -> State:
        return state._replace(memories=(*state.memories[:queue], memory, *state.memories[queue + 1 :]))

    def _charged(self, state: State) -> State:
        return state._replace(world=replace(state.world, faults=state.world.faults - 1))

    def _numbered(self, state: State, number: int, by: int) -> State:
        """Put the number of a worker's last exchange where it always is."""
        if not by:
            return state
        queue, name = self._queues[number], f"w{number}"
        state = self._stored(state, queue, self._shifted(state.memories[queue], name, by))
        if state.late is not None and state.late.worker == number:
            late: Any = state.late.operation
            state = state._replace(late=Late(number, replace(late, number=max(OLDEST, late.number + by))))
        if state.replica is not None:
            memories, ahead = state.replica
            shifted = self._shifted(memories[queue], name, by)
            state = state._replace(replica=((*memories[:queue], shifted, *memories[queue + 1 :]), ahead))
        return state

    def _noticed(self, state: State, queue: int, names: frozenset[str]) -> State:
        """Others that have noted the values of these workers see that they have changed."""
        if not names:
            return state
        for number, life in enumerate(state.lives):
            if self._queues[number] != queue or life.state != "alive":
                continue
            suspects = frozenset((peer, has or f"w{peer}" in names) for peer, has in life.suspects)
            noted = self._part(life, "_heartbeats_seen")
            if noted is not None and any(name in names and value != OTHER for name, value in noted):
                life, _ = self._tell(number, life, "changed", names)  # noqa: PLW2901
            state = self._with(state, number, replace(life, suspects=suspects))
        return state

    def _is_registered(self, state: State, number: int) -> bool:
        return f"w{number}" in dict(self._memories.things[state.memories[self._queues[number]]].workers)

    def _offers(self, world: World, names: Iterable[str]) -> World:
        items = frozenset(self.scenario.tree[name][0] for name in names)
        owed = frozenset(self.scenario.tree[name][0] for name in names if name in self.scenario.unfiltered)
        return replace(world, offered=world.offered | items, owed=world.owed | owed)

    def _finished(self, state: State, number: int, member: bytes) -> State:
        life, world = state.lives[number], state.world
        name, item = member.decode(), self._item[member]
        if item in world.fetched and self._once and name not in self.scenario.unfiltered:
            raise ViolationError(f"S5 fetched twice without a fault: {item}")
        world = self._offers(replace(world, fetched=world.fetched | {item}), self.scenario.tree[name][1])
        told, _ = self._tell(number, life, "finish", member)
        return self._begun(state, self._with(state, number, told)._replace(world=world), number)

    def _begun(self, before: State, after: State, number: int) -> State:
        """A request that begins is one that nobody is owed any more."""
        begun = {*self._part(after.lives[number], "running")} - {*self._part(before.lives[number], "running")}
        owed = after.world.owed - {self._item[member] for member, _ in begun}
        return after if owed == after.world.owed else after._replace(world=replace(after.world, owed=owed))

    # ---- faults ---------------------------------------------------------------------------------------------------

    def _crashed(self, state: State, number: int) -> State:
        life, world = state.lives[number], state.world
        held, elsewhere = self._in_memory(life), self._stored_items(state)
        for other, its in enumerate(state.lives):
            if other != number and its.state == "alive":
                elsewhere |= self._in_memory(its)
        exempt = world.exempt
        has_lapsed = life.is_stale or (life.has_started and not self._is_registered(state, number))
        if has_lapsed:
            # Lost with Redis's data and then with the worker, before it could lease again.
            exempt |= {item for item in held if item in world.marks or item not in elsewhere}
        # Start requests that were not leased yet come again with the next start.
        roots = {self.scenario.tree[name][0] for name in self.scenario.roots[number]}
        waiting = {self._item[each.member] for each in self._part(life, "outbox") if isinstance(each, OutboxEntry)}
        gone = (waiting & roots) - elsewhere - world.fetched - world.marks
        running = {self._item[member] for member, _ in self._part(life, "running") if self._is_unfiltered(member)}
        owed = world.owed | running
        world = replace(
            world, offered=world.offered - gone, exempt=frozenset(exempt), owed=owed, faults=world.faults - 1
        )
        if has_lapsed:
            world = replace(world, owed=world.owed - world.exempt)
        fresh = self._freeze_worker(self._new_worker(number))
        crashed = Life("crashed", fresh, is_stopped=life.is_stopped, had_begun=self._begun_by(life))
        state = self._with(state, number, crashed)._replace(world=world)
        rest = [
            state.lives[peer]
            for peer in self._peers[number]
            if state.lives[peer].state == "alive"
            and self._part(state.lives[peer], "phase") in (Phase.WORKING, Phase.JOINING, Phase.JOINED)
            and self._part(state.lives[peer], "_ending") is None
        ]
        if all(self._part(other, "_heartbeats_seen") is not None for other in rest):
            for other, its in enumerate(state.lives):
                if its.state == "crashed":
                    state = self._with(state, other, replace(its, is_left=True))
        return state

    def _is_unfiltered(self, member: bytes) -> bool:
        return member.decode() in self.scenario.unfiltered

    def _flushed(self, state: State) -> State:
        world = state.world
        kept: set[str] = set()
        for number, life in enumerate(state.lives):
            if life.state == "alive":
                kept |= self._in_memory(life)
                state = self._with(state, number, replace(life, is_stale=True))
        exempt = world.exempt | (world.offered - world.fetched - kept)
        world = replace(world, faults=world.faults - 1, is_flushed=True, exempt=exempt)
        if self.scenario.filter_is_flushed:
            world = replace(world, marks=NOTHING, users=frozenset())
        empty = self._freeze_memory(self._memory())
        state = state._replace(memories=tuple(empty for _ in state.memories), world=world)
        for queue in set(self._queues):
            state = self._noticed(state, queue, frozenset(f"w{number}" for number in range(len(self._queues))))
        return state

    def _deleted(self, state: State) -> State:
        """The queue is deleted, and nothing beside it."""
        memories = []
        for frozen in state.memories:
            memory = self._thaw_memory(frozen)
            memory.queue = {}
            memories.append(self._freeze_memory(memory))
        after = self._charged(state)._replace(memories=tuple(memories))
        world = after.world
        exempt = world.exempt | (world.offered - world.fetched - self._sure_to_come(after))
        return after._replace(world=replace(world, exempt=exempt, owed=world.owed - exempt, is_untold=True))

    def _sure_to_come(self, state: State) -> set[str]:
        """The items that are fetched although the queue is gone; the filter takes the others for seen."""
        kept = {self._item[member] for memory in state.memories for member, _ in self._memories.things[memory].dead}
        for number, life in enumerate(state.lives):
            if life.state == "alive":
                names = ["ready", "running", "finished", "unreadable"]
                names += [] if self._part(life, "_in_doubt") is not None else ["new"]
                kept |= {self._item[member] for name in names for member, _ in self._pairs(life, name)}
                kept |= self._in_memory(life) - state.world.marks
            else:
                leases = dict(self._memories.things[state.memories[self._queues[number]]].leases)
                kept |= {self._item[member] for member, _ in leases.get(f"w{number}", ())}
        return kept

    def _failed_over(self, state: State) -> State:
        if state.replica is None:
            return state
        memories, ahead = state.replica
        state = state._replace(memories=memories, replica=None, has_failed_over=ahead)
        kept = self._stored_items(state)
        for number, life in enumerate(state.lives):
            if life.state != "alive":
                continue
            if number in ahead or not self._is_registered(state, number):
                kept |= self._in_memory(life)
            else:
                # It does not notice, and trusts the filter.
                sure = ("ready", "running", "finished", "unreadable")
                kept |= {self._item[entry[0]] for name in sure for entry in self._pairs(life, name)}
                kept -= self._doubtful(life)
            state = self._with(state, number, replace(life, is_stale=True))
        world = state.world
        state = state._replace(world=replace(world, exempt=world.exempt | (world.offered - world.fetched - kept)))
        for queue in set(self._queues):
            state = self._noticed(state, queue, frozenset(f"w{number}" for number in range(len(self._queues))))
        return state

    def _doubtful(self, life: Life) -> set[str]:
        return {self._item[entry.member] for name in ("asked", "repeats") for entry in self._part(life, name)}

    # ---- who has what ---------------------------------------------------------------------------------------------

    def _pairs(self, life: Life, name: str) -> Iterator[tuple[bytes, Any]]:
        for each in self._part(life, name):
            yield (each.member, each) if isinstance(each, (QueueEntry, OutboxEntry)) else each

    def _in_memory(self, life: Life, *, finished: bool = False) -> set[str]:
        """The items that a worker has."""
        names = ["asked", "new", "repeats", "ready", "running", "unreadable", *(["finished"] if finished else [])]
        items = {self._item[member] for name in names for member, _ in self._pairs(life, name)}
        waiting = {self._item[each.member] for each in self._part(life, "outbox") if isinstance(each, OutboxEntry)}
        doubt = self._part(life, "_in_doubt")
        returned = {self._item[entry.member] for entry in doubt.returned} if doubt is not None else set()
        return items | waiting | returned

    def _stored_items(self, state: State) -> set[str]:
        """The items that the server has."""
        return {self._item[member] for memory in state.memories for member in self._members(memory)}

    def _members(self, memory: int, *, leased: bool = True) -> set[bytes]:
        stored = self._memories.things[memory]
        held = [pair for _, of_worker in stored.leases for pair in of_worker] if leased else []
        return {member for member, _ in (*stored.queue, *stored.dead, *held)}

    def _closure(self, items: Iterable[str]) -> set[str]:
        """The items and all that they lead to."""
        todo, seen = list(items), set(items)
        while todo:
            item = todo.pop()
            for its, children in self.scenario.tree.values():
                if its == item:
                    following = {self.scenario.tree[child][0] for child in children} - seen
                    seen |= following
                    todo += following
        return seen

    # ---- promises -------------------------------------------------------------------------------------------------

    def _check_filter_found(self, state: State, number: int) -> None:
        """S3: a crawl that begins does not find the filter of one that is over."""
        world = state.world
        stored = self._memories.things[state.memories[self._queues[number]]]
        # One whose queue was deleted alone is over, too, and the worker that begins is told.
        is_over = not (stored.queue or stored.leases) and stored.audit == Audit()
        if len(state.memories) > 1 or self.scenario.persist or not world.marks - world.exempt or not is_over:
            return
        lost = world.is_flushed and not self.scenario.filter_is_flushed
        anybody = stored.workers or any(life.state == "alive" and life.has_started for life in state.lives)
        if not anybody and not lost and state.has_failed_over is None and not self._rules & {"nofence"}:
            raise ViolationError("S3 a new crawl finds the filter of one that is over")

    def _released(self, state: State, number: int) -> State:
        """The filter after a queue needs it no more: without any user it is cleared."""
        own, world = self._queues[number], state.world
        state = state._replace(world=replace(world, users=world.users - {own}))
        if state.world.users and "nousers" not in self._rules:
            return state
        text = dict(self._memories.things[state.memories[own]].workers).get(f"w{number}", "")
        is_deposed = not text.endswith("closing") and "noclosing" not in self._rules
        for other, life in enumerate(state.lives):
            queue = self._queues[other]
            works = self._is_registered(state, other) or self._memories.things[state.memories[queue]].queue
            at_work = life.state == "alive" and self._part(life, "phase") in (Phase.WORKING, Phase.LEAVING)
            if queue != own and works and at_work and not world.is_flushed:
                raise ViolationError("S6 the filter is cleared under another queue's user")
        if (world.marks or world.offered) and not is_deposed:
            state = self._cleared(state, number)
        world = replace(state.world, marks=NOTHING, has_cleared=state.world.has_cleared or not is_deposed)
        return state._replace(world=world)

    def _cleared(self, state: State, number: int) -> State:
        """S1 and S2 at the moment of the clear."""
        world, own = state.world, self._queues[number]
        stored = self._memories.things[state.memories[own]]
        dead = {self._item[member] for member, _ in stored.dead}
        held = set(dead)
        for other, life in enumerate(state.lives):
            if life.state == "alive":
                held |= self._in_memory(life, finished=True)
            if self._queues[other] != own:
                held |= {self._item[member] for member in self._members(state.memories[self._queues[other]])}
        if "noclosing" in self._rules:
            held |= {self._item[member] for member in self._members(state.memories[own])}
        covered = self._closure(held)
        lost = world.offered - world.exempt - world.fetched - covered
        if own in world.discarding:
            # On purpose, and with a warning.
            world = replace(world, exempt=world.exempt | lost, owed=NOTHING)
        elif lost:
            raise ViolationError(f"S1 lost at the clear: {sorted(lost)}")
        if world.owed - covered:
            raise ViolationError("S1 an equal request was not fetched again")
        if (stored.queue or stored.leases) and "noclosing" not in self._rules and not world.discarding:
            raise ViolationError("S2 something is left in the queue, or leased, at the clear")
        if not held - dead and not (len(state.memories) > 1 and self.scenario.faults):
            # Nobody holds anything: what is offered from here on belongs to another crawl.
            world = replace(world, offered=NOTHING, fetched=NOTHING, exempt=NOTHING)
        return state._replace(world=world)

    def _begun_by(self, life: Life) -> frozenset[bytes]:
        """The requests that a worker has given to the engine, or is about to."""
        if not self.scenario.max_deliveries:
            return frozenset()
        doubt = self._part(life, "_in_doubt")
        starts = doubt.sync.starts if doubt is not None else ()
        begun = {member for name in ("running", "finished", "unreadable") for member, _ in self._part(life, name)}
        started = self._part(life, "suspects").started
        return frozenset({*begun, *starts, *([] if started is None else [started])})

    def _check_dead_letters(self, state: State, peer: int, answer: Reply) -> None:
        """S8: a request becomes a dead letter only for the death of a worker that had begun it, and nothing else."""
        life = state.lives[peer]
        begun = self._begun_by(life) if life.state == "alive" else life.had_begun
        innocent = {entry.member for entry in answer.entries} - begun
        if innocent and answer.status is Status.REQUEUED:
            raise ViolationError(f"S8 dead letters that the dead worker had not begun: {sorted(innocent)}")
        others = begun - {entry.member for entry in answer.entries}
        if answer.status is Status.REQUEUED and answer.entries and (others or len(answer.entries) > 1):
            raise ViolationError(f"S8 dead letters for the death of a worker that had begun others: {sorted(others)}")

    def check_end(self, state: State) -> None:
        """All are gone: nothing is lost, and nothing is left that should not be."""
        world, lives = state.world, state.lives
        has_crashed = any(life.state == "crashed" for life in lives)
        has_stopped = any(life.is_stopped for life in lives)
        is_anyone = any(life.state == "gone" for life in lives)
        unstopped = any(life.state == "gone" and not life.is_stopped for life in lives)
        kept = self._closure(self._stored_items(state))
        if (
            not self.scenario.spare
            and self._kinds <= {"crash", "lost", "lost filter"}
            and unstopped
            and not has_stopped
        ):
            # Whoever finished has seen to it that nothing was left.
            kept = kept if world.has_cleared else set()
        lost = world.offered - world.exempt - world.fetched - kept
        if lost and not world.discarding:
            raise ViolationError(f"S1 lost: {sorted(lost)}")
        if world.owed - kept and not world.discarding:
            raise ViolationError("S1 an equal request was not fetched again")
        self._check_left(state)
        self._check_told(state)
        if state.has_failed_over is not None:
            return
        parts = [self._memories.things[memory] for memory in state.memories]
        is_left = any(part.queue or part.leases for part in parts)
        if not has_crashed and not has_stopped and is_anyone and is_left:
            raise ViolationError("S2 all have finished, and something is left in Redis")
        has_workers = any(part.workers for part in parts)
        if not has_crashed and is_anyone:
            if has_workers:
                raise ViolationError("S3 a registration is left")
            is_waiting = any(part.queue for part in parts)
            if not self.scenario.persist and not is_waiting and ((world.marks and not world.is_flushed) or world.users):
                raise ViolationError("S3 the filter is left")
        if is_anyone and not has_stopped and not world.is_flushed:
            for number, life in enumerate(lives):
                if life.state == "crashed" and not life.is_left and self._is_registered(state, number):
                    raise ViolationError("S3 whoever finished left a dead one behind, who had died before")
        is_unspent = any(lives[number].state == "new" for number in self.scenario.spare)
        stored = any(part.queue or part.dead or part.leases or part.workers for part in parts)
        over = has_crashed and is_anyone and not is_unspent and not has_stopped and not self.scenario.persist
        if over and not stored and world.marks - world.exempt and not world.is_flushed:
            raise ViolationError("S3 the filter is left although nobody is registered")

    def _check_told(self, state: State) -> None:
        states = {life.state for life in state.lives}
        if state.world.is_untold and "gone" in states and "crashed" not in states:
            raise ViolationError("S7 a queue was lost, and no worker was told")

    def _check_left(self, state: State) -> None:
        for memory in state.memories:
            stored = self._memories.things[memory]
            if {name for name, _ in stored.leases} - dict(stored.workers).keys():
                raise ViolationError("S1 entries are leased by a worker that nobody knows: they are never requeued")

    # ---- the search -----------------------------------------------------------------------------------------------

    def run(self) -> Found:
        """Look at every state; the first broken promise ends the search."""
        first = self.start()
        states, numbers = [first], {first: 0}
        parents, ends, sources, targets = array("i", [-1]), [], array("i"), array("i")
        number = moves = 0
        while number < len(states):
            state = states[number]
            try:
                if all(life.state != "alive" for life in state.lives):
                    self.check_end(state)
                    ends.append(number)
                for move in self.moves(state):
                    moves += 1
                    following = numbers.get(move.state)
                    if following is None:
                        following = numbers[move.state] = len(states)
                        states.append(move.state)
                        parents.append(number)
                    if not move.is_fault and following != number:
                        sources.append(number)
                        targets.append(following)
            except ViolationError as violation:
                return Found(len(states), moves, str(violation), self._trace(states, parents, number))
            number += 1
            if len(states) > self.scenario.limit:
                return Found(len(states), moves, "too many states", [])
        stuck = _cannot_reach(ends, sources, targets, len(states))
        if stuck is not None:
            trace = self._trace(states, parents, stuck)
            return Found(len(states), moves, "S4 from here nobody can finish", trace)
        return Found(len(states), moves)

    def _trace(self, states: Sequence[State], parents: Sequence[int], number: int) -> list[str]:
        path = [number]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        path.reverse()
        lines = []
        for before, after in pairwise(path):
            move = next(move for move in self.moves(states[before]) if move.state == states[after])
            lines.append(move.label())
        return lines


def _cannot_reach(ends: Sequence[int], sources: Sequence[int], targets: Sequence[int], count: int) -> int | None:
    """The first state from which none of the ends can be reached, or None."""
    before: list[list[int]] = [[] for _ in range(count)]
    for source, target in zip(sources, targets, strict=True):
        before[target].append(source)
    good = bytearray(count)
    todo = list(ends)
    for end in ends:
        good[end] = 1
    while todo:
        for source in before[todo.pop()]:
            if not good[source]:
                good[source] = 1
                todo.append(source)
    stuck = good.find(0)
    return None if stuck < 0 else stuck


def _hashable(said: Any) -> Hashable:
    if isinstance(said, Reply):
        values = (getattr(said, each.name) for each in fields(said))
        return tuple(tuple(sorted(value.items())) if isinstance(value, dict) else value for value in values)
    return said  # type: ignore[no-any-return]


def _shown(thing: Any) -> str:
    if isinstance(thing, ops.Sync):
        lists = ("leases", "pushes", "asides", "acks", "starts")
        parts = [f"{name} {_shown(getattr(thing, name))}" for name in lists if getattr(thing, name)]
        return " ".join(["exchanges", *parts, f"want {thing.want}"])
    if isinstance(thing, tuple):
        return ",".join(each.member.decode() if isinstance(each, QueueEntry) else str(each) for each in thing)
    return str(thing)
