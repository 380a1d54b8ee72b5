"""The scenarios of the search of the queue: small crawls, the faults in them, and the mistakes that it must find."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.dead_letters import Suspects
from scrapy_bloom.queue.entries import Finished, OutboxEntry, QueueEntry
from scrapy_bloom.queue.operations import REGISTERED, Ending, Reply, Status
from scrapy_bloom.queue.sync import FilterOperation
from scrapy_bloom.queue.worker import Phase, QueueWorker
from tests.support.queue_memory import Audit, QueueMemory, Registration, SortedSet
from tests.support.queue_search import FAULTS, Scenario

Tree = Mapping[str, tuple[str, Sequence[str]]]

TINY: Tree = {"A": ("A", ["B"]), "B": ("B", [])}
# A leads to B and C, and B to C again: other bytes, the same item.
SMALL: Tree = {"A": ("A", ["B", "Ca"]), "B": ("B", ["Cb"]), "Ca": ("C", []), "Cb": ("C", [])}
TREE: Tree = {"A": ("A", ["B", "Ca"]), "B": ("B", ["Cb"]), "Ca": ("C", ["D"]), "Cb": ("C", ["D"]), "D": ("D", [])}
WIDE: Tree = {"A": ("A", ["B", "C"]), "B": ("B", []), "C": ("C", [])}
# X is asked for by A and by B with the same bytes.
EQUAL: Tree = {"A": ("A", ["B", "X"]), "B": ("B", ["X"]), "X": ("X", [])}
EQUAL_LATER: Tree = {
    "A": ("A", ["B", "C", "D", "X"]), "B": ("B", ["X"]), "C": ("C", []), "D": ("D", []), "X": ("X", [])
}  # fmt: skip
ITSELF: Tree = {"A": ("A", ["A", "B"]), "B": ("B", ["A"])}
# B leads to two that are known.
REPEATS: Tree = {"A": ("A", ["B"]), "B": ("B", ["C", "D"]), "C": ("A", []), "D": ("B", [])}
TWO: Tree = {"A": ("A", ["B"]), "B": ("B", []), "P": ("P", ["R"]), "R": ("R", [])}
# Two workers begin with other requests, one of which leads to more than a batch of one has.
APART: Tree = {"A": ("A", []), "P": ("P", ["R", "S"]), "R": ("R", []), "S": ("S", [])}
# B is asked for in both queues.
SHARED: Tree = {"A": ("A", ["Ba"]), "Ba": ("B", []), "P": ("P", ["Bp"]), "Bp": ("B", [])}

# Both workers begin with A; so does the third, where there is one.
two = partial(Scenario, roots=[["A"]] * 2)
apart = partial(Scenario, APART, [["A"], ["P"], ["A"]], spare=(2,))
three = partial(Scenario, roots=[["A"]] * 3)
spare = partial(three, spare=(2,))
FAILOVER = ("failover", "crash", "lost")
UNREADABLE = [("B",), ("Ca", "B"), ()]

SCENARIOS: dict[str, Scenario] = {
    "no fault, one ahead": two(TREE),
    "no fault, two ahead": two(TREE, want=2),
    "no fault, batches of one": two(TREE, want=2, batch=1),
    "no fault, one joins late": three(SMALL, late=(2,)),
    "no fault, one is stopped": two(TREE, want=2, stop=(0,)),
    "no fault, both are stopped": two(SMALL, want=2, stop=(0, 1)),
    "no fault, both are stopped, kept": two(SMALL, want=2, stop=(0, 1), persist=True),
    "no fault, unreadable to some": two(SMALL, want=2, unreadable=UNREADABLE),
    "no fault, two queues": Scenario(TWO, [["A"], ["P"], ["A"]], late=(2,), queues=(0, 1, 0)),
    "no fault, two queues, one is stopped": Scenario(SHARED, [["A"], ["P"]], queues=(0, 1), stop=(0,)),
    **{f"{kind}, a tree": spare(TREE, want=2, faults=1, kinds=(kind,)) for kind in FAULTS},
    **{f"{kind}, one thing an exchange": spare(TINY, want=2, max_bytes=1, faults=1, kinds=(kind,)) for kind in FAULTS},
    "replies of the queue lost, one thing an exchange, each page once": two(
        SMALL, want=2, max_bytes=1, faults=1, kinds=("lost",), loses_replies_of_filter=False
    ),
    "replies of the queue lost twice, one or two things an exchange, each page once": two(
        REPEATS, max_bytes=2, faults=2, kinds=("lost",), loses_replies_of_filter=False
    ),
    "no fault, one thing an exchange, unreadable to some": two(SMALL, want=2, max_bytes=1, unreadable=UNREADABLE),
    "lost, one thing an exchange, equal requests": two(
        EQUAL, want=2, max_bytes=1, faults=1, kinds=("lost",), unfiltered=("X",)
    ),
    "lost twice": spare(SMALL, faults=2, kinds=("lost",)),
    "crash twice": spare(SMALL, faults=2, kinds=("crash",)),
    "flush twice": spare(SMALL, faults=2, kinds=("flush",)),
    "replies of the queue lost twice, each page once": two(
        SMALL, want=2, faults=2, kinds=("lost",), loses_replies_of_filter=False
    ),
    "any fault, tiny": spare(TINY, faults=1, kinds=FAULTS),
    "any fault, kept": spare(TINY, faults=1, kinds=FAULTS, persist=True),
    "any fault, the filter elsewhere": spare(TINY, faults=1, kinds=FAULTS, filter_is_flushed=False),
    "any fault, one is stopped": spare(TINY, want=2, faults=1, kinds=FAULTS, stop=(0,)),
    "crash or lost, equal requests": spare(EQUAL, want=2, faults=1, kinds=("lost", "crash"), unfiltered=("X",)),
    "crash or lost, a request that leads to itself": spare(ITSELF, want=2, faults=1, kinds=("lost", "crash")),
    "the queue is deleted": spare(TREE, want=2, faults=1, kinds=("delete",)),
    "the queue is deleted, and another fault": spare(TINY, faults=2, kinds=("delete", "lost", "crash")),
    "dead letters after two deaths": spare(WIDE, want=2, faults=2, kinds=("crash",), max_deliveries=2),
    "dead letters after two deaths, two at once": spare(
        WIDE, want=2, at_once=2, faults=2, kinds=("crash",), max_deliveries=2
    ),
    "dead letters after two deaths, batches of one": apart(
        want=2, batch=1, at_once=2, faults=2, kinds=("crash",), max_deliveries=2
    ),
    "failover": spare(TINY, faults=1, kinds=FAILOVER),
    "begun anew by another": two(SMALL, want=2, anew=(1,)),
    "begun anew by another, a crash": spare(SMALL, anew=(1,), faults=1, kinds=("crash",)),
    "begun anew by another, a false death": spare(TINY, anew=(1,), faults=1, kinds=("false",)),
    "two queues, any fault": Scenario(TWO, [["A"], ["P"], ["A"]], spare=(2,), queues=(0, 1, 0), faults=1, kinds=FAULTS),
}
"""Searched by `make test`."""

DEEP: dict[str, Scenario] = {
    "any two faults, tiny": spare(TINY, faults=2, kinds=FAULTS),
    "any two faults, kept": spare(TINY, faults=2, kinds=FAULTS, persist=True),
    "false twice": spare(SMALL, faults=2, kinds=("false",)),
    "any fault, a tree": spare(TREE, want=2, faults=1, kinds=FAULTS),
    "any fault, wide, batches of one": spare(WIDE, want=2, batch=1, faults=1, kinds=FAULTS),
    "any fault, one thing an exchange": spare(SMALL, want=2, max_bytes=1, faults=1, kinds=FAULTS),
    "any fault, a tree, one is stopped": spare(TREE, want=2, faults=1, kinds=FAULTS, stop=(0,)),
    "any fault, a tree, one is stopped, kept": spare(TREE, want=2, faults=1, kinds=FAULTS, stop=(0,), persist=True),
    "any fault, unreadable to some": spare(SMALL, want=2, faults=1, kinds=FAULTS, unreadable=UNREADABLE),
    "crash or lost twice, equal requests": spare(
        EQUAL_LATER, want=2, faults=2, kinds=("lost", "crash"), unfiltered=("X",)
    ),
    "any two faults, a request that leads to itself": spare(ITSELF, want=2, faults=2, kinds=("lost", "crash", "false")),
    "the queue is deleted twice": spare(SMALL, want=2, faults=2, kinds=("delete",)),
    "dead letters after two deaths, ahead": spare(SMALL, want=3, faults=2, kinds=("crash", "false"), max_deliveries=2),
    "dead letters after two deaths, two at once, one of them false": spare(
        WIDE, want=2, at_once=2, faults=2, kinds=("crash", "false"), max_deliveries=2
    ),
    "dead letters after two deaths, one of them false": spare(
        WIDE, want=2, faults=2, kinds=("crash", "false", "lost"), max_deliveries=2, loses_replies_of_filter=False
    ),
    "dead letters after two deaths, kept": spare(
        SMALL, want=2, faults=2, kinds=("crash",), max_deliveries=2, persist=True
    ),
    "failover, small": spare(SMALL, want=2, faults=1, kinds=FAILOVER),
    "failover, with another fault": spare(TINY, faults=2, kinds=FAILOVER),
    "begun anew by another, any fault": spare(TINY, anew=(1,), faults=1, kinds=("lost", "crash", "false")),
    "begun anew beside two workers": three(TINY, anew=(2,)),
    "three workers, a crash": three(SMALL, want=2, faults=1, kinds=("crash",)),
    "three workers, a lost reply": three(TINY, faults=1, kinds=("lost",)),
    "two queues, any two faults": Scenario(
        TWO, [["A"], ["P"], ["A"]], spare=(2,), queues=(0, 1, 0), faults=2, kinds=FAULTS
    ),
}
"""Searched by `make search`, beside the others."""


# Mistakes.


class NoFence(QueueMemory):
    """A worker that is not registered works on."""

    def apply(self, operation: object) -> Reply:
        if not isinstance(operation, (ops.Sync, ops.ResolveInDoubt, ops.Leave)) or operation.worker in self.workers:
            return super().apply(operation)
        before = operation.number if isinstance(operation, ops.Leave) else operation.number - 1
        self._record(operation.worker, Registration("5", before))
        answer = super().apply(operation)
        if answer.status is not Status.LAST:
            self.workers.pop(operation.worker, None)
        return answer


class NoNumbers(QueueMemory):
    """An exchange is carried out as often as it comes, and what was lost is sent once more."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, ops.ResolveInDoubt) and operation.worker in self.workers:
            return Reply(Status.VOID)
        if isinstance(operation, (ops.Sync, ops.Leave)):
            mine = self._find(operation.worker)
            if mine is not None:
                before = operation.number if isinstance(operation, ops.Leave) else operation.number - 1
                self._record(operation.worker, replace(mine, number=before))
        return super().apply(operation)


class NoVoid(QueueMemory):
    """An exchange that was found not carried out may be carried out still."""

    def apply(self, operation: object) -> Reply:
        mine = self._find(operation.worker) if isinstance(operation, ops.ResolveInDoubt) else None
        answer = super().apply(operation)
        if mine is not None and answer.status is Status.VOID and isinstance(operation, ops.ResolveInDoubt):
            self._record(operation.worker, mine)
        return answer


class AckEarly(QueueWorker):
    """A request is acknowledged before what it led to is leased."""

    def _sync(self, want: int) -> ops.Sync | None:
        self.outbox = type(self.outbox)(sorted(self.outbox, key=lambda item: not isinstance(item, Finished)))
        return super()._sync(want)


class MarkFirst(QueueWorker):
    """The filter is asked before the lease."""

    def _next_while_working(self, want: int) -> ops.QueueOperation | FilterOperation | None:
        waiting = tuple(item for item in self.outbox if isinstance(item, OutboxEntry))
        if waiting and not (self.asked or self._in_doubt or self._to_reclaim):
            self.asked = waiting
            self.outbox = type(self.outbox)(item for item in self.outbox if isinstance(item, Finished))
        return super()._next_while_working(want)


class BlindClear(QueueMemory):
    """The last one clears without looking at what waits."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, ops.Leave) and operation.ending is Ending.FINISHED and len(self.workers) <= 1:
            self.queue, self.dead_letters, self.leases = {}, {}, {}
        return super().apply(operation)


class IdleBlind(QueueWorker):
    """Leases of others are not looked at."""

    def _detect_termination(self, answer: Reply) -> None:
        super()._detect_termination(replace(answer, leased=0))


class NoSign(QueueWorker):
    """No sign of life is waited for."""

    def _detect_termination(self, answer: Reply) -> None:
        super()._detect_termination(answer)
        self.may_finish = not answer.waiting and not answer.leased


class NoClosing(QueueMemory):
    """The last one is not registered any more while it clears."""

    def apply(self, operation: object) -> Reply:
        answer = super().apply(operation)
        if isinstance(operation, ops.Leave) and answer.status is Status.LAST:
            self.workers.pop(operation.worker, None)
        return answer


class NoSkip(QueueMemory):
    """A worker takes what it has leased already."""

    def _take(self, want: int, leased: SortedSet) -> tuple[QueueEntry, ...]:
        return super()._take(want, leased) if not leased else self._take_any(want, leased)

    def _take_any(self, want: int, leased: SortedSet) -> tuple[QueueEntry, ...]:
        mine = dict(leased)
        leased.clear()
        taken = super()._take(want, leased)
        leased.update({**mine, **leased})
        return taken


class NoPutBack(QueueMemory):
    """Entries that an exchange took whose reply was lost stay leased."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, ops.ResolveInDoubt):
            operation = replace(operation, kept=ops.digests(self.leases.get(operation.worker, ())))
        return super().apply(operation)


class KeepsNothing(QueueWorker):
    """All that is leased goes back to the queue when a reply was lost."""

    def _next_while_working(self, want: int) -> ops.QueueOperation | FilterOperation | None:
        operation = super()._next_while_working(want)
        return replace(operation, kept=()) if isinstance(operation, ops.ResolveInDoubt) else operation


class KeepsAllHeld(QueueWorker):
    """Each that was held when a reply was lost counts as kept, although an equal one was taken since it was over."""

    def _next_while_working(self, want: int) -> ops.QueueOperation | FilterOperation | None:
        operation = super()._next_while_working(want)
        if not isinstance(operation, ops.ResolveInDoubt) or self._in_doubt is None:
            return operation
        held = (*self._held(), *self._in_doubt.sync.leases)
        return replace(operation, kept=ops.digests(entry.member for entry in held))


class RepeatsGo(QueueWorker):
    """Repeats go back to the queue when they have to wait and a reply was lost."""

    def _sync(self, want: int) -> ops.Sync | None:
        sync = super()._sync(want)
        if sync is not None and self._pending_sync is not None:
            waiting = {entry.member for entry in self.repeats[len(self._pending_sync.batch.repeats) :]}
            self._pending_sync = replace(self._pending_sync, kept=self._pending_sync.kept - waiting)
        return sync


class YoursEnds(QueueWorker):
    """One that has closed the queue for a dead worker ends then, whatever it has."""

    def _joined(self, said: Status) -> None:
        super()._joined(said)
        if said is Status.YOURS:
            self._ending = Ending.KEEP


class AnyRequeue(QueueMemory):
    """A worker that is not registered requeues what a dead one had."""

    def apply(self, operation: object) -> Reply:
        if not isinstance(operation, ops.Requeue) or operation.worker in self.workers:
            return super().apply(operation)
        if operation.value.endswith("closing"):
            return super().apply(operation)
        self._record(operation.worker, Registration("5", 0))
        answer = super().apply(operation)
        self.workers.pop(operation.worker)
        return answer


class JoinClosing(QueueMemory):
    """A worker joins while another one closes the queue."""

    def apply(self, operation: object) -> Reply:
        if not isinstance(operation, ops.Join):
            return super().apply(operation)
        closing = {name: text for name, text in self.workers.items() if text.endswith("closing")}
        for name in closing.keys() - {operation.worker}:
            del self.workers[name]
        answer = super().apply(operation)
        self.workers = {**closing, **self.workers}
        return answer


class NoTakeover(QueueMemory):
    """A worker that died while it closed the queue is only taken out."""

    def apply(self, operation: object) -> Reply:
        answer = super().apply(operation)
        if isinstance(operation, ops.Requeue) and answer.status is Status.YOURS:
            del self.workers[operation.worker]
        return answer


class NoGap(QueueMemory):
    """A worker is not told that what it did was forgotten."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, (ops.Sync, ops.ResolveInDoubt, ops.Leave)):
            mine = self._find(operation.worker)
            expected = operation.number if isinstance(operation, ops.Leave) else operation.number - 1
            if mine is not None and not mine.is_closing and mine.number < expected:
                self._record(operation.worker, replace(mine, number=expected))
        return super().apply(operation)


class JoinKeeps(QueueMemory):
    """A worker that joins again does not give back what it had leased."""

    def apply(self, operation: object) -> Reply:
        mine = dict(self.leases.get(operation.worker, {})) if isinstance(operation, ops.Join) else {}
        answer = super().apply(operation)
        if isinstance(operation, ops.Join) and answer.status in REGISTERED and mine:
            for member in mine:
                self.queue.pop(member, None)
            self.leases[operation.worker] = mine
        return answer


class JoinsTwice(QueueMemory):
    """A join that comes late is carried out, although the worker has joined since."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, ops.Join):
            mine = self._find(operation.worker)
            if mine is not None and not mine.is_closing:
                del self.workers[operation.worker]
        return super().apply(operation)


class NoBar(QueueMemory):
    """Workers join between the deletion of the queue and that of the filter."""

    def apply(self, operation: object) -> Reply:
        return super().apply(replace(operation, lease="") if isinstance(operation, ops.Flush) else operation)


class NoRelease(QueueWorker):
    """A worker that was taken for dead does not lease again what it has."""

    def _expire(self) -> None:
        super()._expire()
        self._to_reclaim = ()


class NoDoubt(QueueWorker):
    """A worker that was taken for dead believes what the filter said."""

    def _expire(self) -> None:
        before = self.asked, self.new, self.repeats, self.outbox
        super()._expire()
        self.asked, self.new, self.repeats, self.outbox = before


class AckEqual(QueueWorker):
    """A request is acknowledged although an equal one is not finished."""

    def _needed(self, *_: object) -> set[bytes]:
        return set()


class UsesAgain(QueueWorker):
    """A worker that ends keeps the filter from being deleted."""

    def _joined(self, said: Status) -> None:
        super()._joined(said)
        if said in REGISTERED:
            self.phase = Phase.JOINED

    def reply(self, operation: object, answer: Reply) -> None:
        super().reply(operation, answer)  # type: ignore[arg-type]
        if self.phase is Phase.WORKING and self._ending is not None:
            self.phase = Phase.LEAVING


class SameIsOld(QueueWorker):
    """A new entry is told from one that is asked for by what it looks like."""

    def _sync(self, want: int) -> ops.Sync | None:
        first = next((item for item in self.outbox if isinstance(item, OutboxEntry)), None)
        self.new = tuple(entry for entry in self.new if first is None or entry != first)
        return super()._sync(want)


class Hasty(QueueWorker):
    """A worker that has made another's dead letters wait again may end as it had decided."""

    def next_operation(self, want: int = 0) -> ops.QueueOperation | FilterOperation | None:
        had_decided = self.may_finish
        operation = super().next_operation(want)
        if isinstance(operation, ops.Redrive):
            self.may_finish = had_decided or not self._heartbeats_seen
        return operation


class NoAudit(QueueMemory):
    """Nobody looks whether the queue is there."""

    def apply(self, operation: object) -> Reply:
        self.audit = Audit(len(self.queue))
        return super().apply(operation)


class ToldOnce(QueueMemory):
    """A loss is told by the reply that finds it alone."""

    def apply(self, operation: object) -> Reply:
        answer = super().apply(operation)
        self.audit = replace(self.audit, loss=0)
        return answer


class CountsAll(QueueMemory):
    """Each death of a worker counts for all that it had leased."""

    def _count_death(self, op: ops.Requeue, member: bytes) -> bool:
        count, _ = self.deliveries.get(member, (0, ""))
        self.deliveries[member] = count, op.dead
        return super()._count_death(op, member)


class StartsAhead(QueueWorker):
    """Suspects are started when they are taken ahead."""

    def _starts(self, returned: Sequence[QueueEntry]) -> tuple[bytes, ...]:
        suspects = self.suspects.waiting
        return tuple(entry.member for entry in self.ready if entry.member in suspects and entry not in returned)


class NeverAlone(QueueWorker):
    """Others run beside a suspect on its last delivery."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.suspects = Suspects()


class AloneUntilDone(QueueWorker):
    """A suspect on its last delivery is started beside requests that are done and not acknowledged."""

    def _first_ready(self) -> QueueEntry | None:
        finished, self.finished = self.finished, {}
        try:
            return super()._first_ready()
        finally:
            self.finished = finished


class ClearsAlways(QueueWorker):
    """A queue that was stopped is deleted, although its filter stays."""

    def _enter_phase(self, operation: ops.QueueOperation | FilterOperation, said: Status) -> None:
        super()._enter_phase(operation, Status.OK if said is Status.KEPT else said)


class LeftOut(QueueWorker):
    """Of what is leased again, only the first part is."""

    def _reclaim(self) -> ops.Sync:
        sync = super()._reclaim()
        if self._pending_sync is not None:
            self._pending_sync = replace(self._pending_sync, reclaimed=len(self._to_reclaim))
        return sync


@dataclass(frozen=True)
class Mistake:
    """A rule that is broken, by another worker, another queue or another course of things, and what finds it."""

    scenario: Scenario
    worker: type[QueueWorker] = QueueWorker
    memory: type[QueueMemory] = QueueMemory
    rules: frozenset[str] = frozenset()


def _rules(*names: str) -> frozenset[str]:
    return frozenset(names)


MISTAKES: dict[str, Mistake] = {
    "no registration fence": Mistake(
        spare(SMALL, faults=2, kinds=("false", "crash")), memory=NoFence, rules=_rules("nofence")
    ),
    "no numbers": Mistake(two(SMALL, faults=1, kinds=("lost",), want=2), memory=NoNumbers),
    "no numbers, exchanges that come late": Mistake(spare(TINY, faults=2, kinds=("lost", "crash")), memory=NoNumbers),
    "an exchange that was found void is carried out": Mistake(spare(SMALL, faults=1, kinds=("lost",)), memory=NoVoid),
    "acknowledged before the children are leased": Mistake(
        spare(WIDE, faults=1, kinds=("crash",), batch=1), worker=AckEarly
    ),
    "the filter is asked before the lease": Mistake(spare(SMALL, faults=1, kinds=("crash",)), worker=MarkFirst),
    "cleared without looking at the queue": Mistake(
        two(SMALL, want=2, unreadable=UNREADABLE, stop=(0,)), memory=BlindClear
    ),
    "requeued without comparing the value": Mistake(two(TINY), rules=_rules("nocas")),
    "leases of others are not looked at": Mistake(two(TINY, faults=1, kinds=("crash",)), worker=IdleBlind),
    "no sign of life is waited for": Mistake(spare(TINY, faults=1, kinds=("crash",)), worker=NoSign),
    "no closing mark": Mistake(spare(TINY, faults=1, kinds=("crash",)), memory=NoClosing, rules=_rules("noclosing")),
    "joined while another one closes": Mistake(two(TINY), memory=JoinClosing),
    "a dead closer is only taken out": Mistake(spare(TINY, faults=1, kinds=("crash",)), memory=NoTakeover),
    "the heir of a closer ends": Mistake(spare(TINY, faults=2, kinds=("false", "crash")), worker=YoursEnds),
    "requeued by one that is not registered": Mistake(
        spare(TINY, faults=2, kinds=("crash", "lost")), memory=AnyRequeue, rules=_rules("beats to the end")
    ),
    "taken although it is leased here": Mistake(
        two(EQUAL_LATER, faults=1, kinds=("lost",), want=2, unfiltered=("X",)), memory=NoSkip
    ),
    "what a lost exchange took is not put back": Mistake(two(TINY, faults=1, kinds=("lost",)), memory=NoPutBack),
    "all is put back after a lost exchange": Mistake(
        two(SMALL, want=2, faults=1, kinds=("lost",), loses_replies_of_filter=False), worker=KeepsNothing
    ),
    "an equal one that a lost exchange took is not put back": Mistake(
        two(EQUAL_LATER, want=2, faults=1, kinds=("lost",), unfiltered=("X",)), worker=KeepsAllHeld
    ),
    "repeats that wait are put back": Mistake(
        two(REPEATS, faults=2, kinds=("lost",), loses_replies_of_filter=False, max_bytes=2), worker=RepeatsGo
    ),
    "not leased again after it expired": Mistake(
        spare(SMALL, faults=2, kinds=("flush", "crash"), filter_is_flushed=False), worker=NoRelease
    ),
    "only the first part is leased again": Mistake(
        spare(WIDE, want=2, batch=1, faults=2, kinds=("flush", "crash")), worker=LeftOut
    ),
    "the filter is believed after it expired": Mistake(
        spare(SMALL, faults=1, kinds=("flush",), filter_is_flushed=False), worker=NoDoubt
    ),
    "a gap of numbers is not noticed": Mistake(
        spare(SMALL, faults=2, kinds=("failover", "crash"), want=2), memory=NoGap
    ),
    "a join keeps what was leased": Mistake(two(TINY, faults=1, kinds=("failover",)), memory=JoinKeeps),
    "a join is carried out late": Mistake(
        two(SMALL, faults=1, kinds=("lost",), want=2, loses_replies_of_filter=False), memory=JoinsTwice
    ),
    "acknowledged although an equal one is needed": Mistake(
        spare(EQUAL, faults=1, kinds=("crash",), want=2), worker=AckEqual
    ),
    "the filter is cleared under its users": Mistake(
        Scenario(TWO, [["A"], ["P"]], queues=(0, 1)), rules=_rules("nousers")
    ),
    "a queue is deleted whose filter stays": Mistake(
        Scenario(SHARED, [["A"], ["P"]], queues=(0, 1), stop=(0,)), worker=ClearsAlways
    ),
    "nobody looks whether the queue is there": Mistake(two(SMALL, want=2, faults=1, kinds=("delete",)), memory=NoAudit),
    "a loss is told once": Mistake(two(SMALL, faults=2, kinds=("delete", "lost")), memory=ToldOnce),
    "each death counts for all that was leased": Mistake(
        spare(SMALL, want=2, faults=2, kinds=("crash",), max_deliveries=2), memory=CountsAll
    ),
    "suspects are started ahead": Mistake(
        spare(WIDE, want=3, faults=2, kinds=("crash",), max_deliveries=2), worker=StartsAhead
    ),
    "others run beside a suspect on its last delivery": Mistake(
        spare(WIDE, want=2, at_once=2, faults=2, kinds=("crash",), max_deliveries=2), worker=NeverAlone
    ),
    "a suspect on its last delivery runs beside those that are done": Mistake(
        apart(want=2, batch=1, faults=2, kinds=("crash",), max_deliveries=2), worker=AloneUntilDone
    ),
    "others are judged by one's own lease": Mistake(two(TINY), rules=_rules("ownlease")),
    "one that ends uses the filter again": Mistake(spare(TINY, faults=2, kinds=("false",)), worker=UsesAgain),
    "a new request is taken for one that is asked for": Mistake(
        spare(TREE, want=2, faults=1, kinds=("crash",)), worker=SameIsOld
    ),
    "joined while another one begins the crawl anew": Mistake(two(SMALL, want=2, anew=(1,)), memory=NoBar),
    "nobody completes half a flush": Mistake(spare(TINY, anew=(1,), faults=1, kinds=("crash",)), memory=NoBar),
    "ended although dead letters wait again": Mistake(two(SMALL, want=2, unreadable=UNREADABLE), worker=Hasty),
}
"""The mistakes that the search must find."""
