"""Scenarios of the search of the queue, and mistakes that it must find."""

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.entries import Finished, OutboxEntry, QueueEntry, members_of
from scrapy_bloom.queue.operations import (
    REGISTERED,
    ClearFilter,
    Ending,
    FilterOperation,
    ReleaseFilter,
    Reply,
    Status,
)
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.queue.worker_state import PendingSync, Phase
from tests.support.queue_memory import Audit, QueueMemory, Registration, SortedSet
from tests.support.queue_model import FAULTS, Rule, Scenario

Tree = Mapping[str, tuple[str, Sequence[str]]]

TINY: Tree = {"A": ("A", ["B"]), "B": ("B", [])}
# A leads to B and C, and B to C again: the same item in other bytes.
SMALL: Tree = {"A": ("A", ["B", "Ca"]), "B": ("B", ["Cb"]), "Ca": ("C", []), "Cb": ("C", [])}
TREE: Tree = {"A": ("A", ["B", "Ca"]), "B": ("B", ["Cb"]), "Ca": ("C", ["D"]), "Cb": ("C", ["D"]), "D": ("D", [])}
WIDE: Tree = {"A": ("A", ["B", "C"]), "B": ("B", []), "C": ("C", [])}
# A and B lead to X with the same bytes.
EQUAL: Tree = {"A": ("A", ["B", "X"]), "B": ("B", ["X"]), "X": ("X", [])}
EQUAL_LATER: Tree = {
    "A": ("A", ["B", "C", "D", "X"]), "B": ("B", ["X"]), "C": ("C", []), "D": ("D", []), "X": ("X", [])
}  # fmt: skip
ITSELF: Tree = {"A": ("A", ["A", "B"]), "B": ("B", ["A"])}
# B leads to two repeats.
REPEATS: Tree = {"A": ("A", ["B"]), "B": ("B", ["C", "D"]), "C": ("A", []), "D": ("B", [])}
TWO: Tree = {"A": ("A", ["B"]), "B": ("B", []), "P": ("P", ["R"]), "R": ("R", [])}
BESIDE: Tree = {"A": ("A", []), "P": ("P", ["R"]), "R": ("R", [])}
# B leads to the item of the request behind it.
BEHIND: Tree = {"B": ("B", ["Cb"]), "Ca": ("C", []), "Cb": ("C", [])}
# Two workers begin with different requests; P leads to more than a batch of one carries.
APART: Tree = {"A": ("A", []), "P": ("P", ["R", "S"]), "R": ("R", []), "S": ("S", [])}
# Both queues lead to B.
SHARED: Tree = {"A": ("A", ["Ba"]), "Ba": ("B", []), "P": ("P", ["Bp"]), "Bp": ("B", [])}

# All workers begin with A.
two = partial(Scenario, roots=[["A"]] * 2)
apart = partial(Scenario, APART, [["A"], ["P"], ["A"]], spare=(2,))
three = partial(Scenario, roots=[["A"]] * 3)
spare = partial(three, spare=(2,))
# A queue outside the search uses the filter, too, and keeps it.
shared = partial(Scenario, BEHIND, [["B", "Ca"]] * 3, spare=(2,), anew=(1,), persist=True, is_shared=True)
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
    **{f"{kind}, one request a sync": spare(TINY, want=2, max_bytes=1, faults=1, kinds=(kind,)) for kind in FAULTS},
    "replies of the queue lost, one request a sync, each page once": two(
        SMALL, want=2, max_bytes=1, faults=1, kinds=("lost",), loses_replies_of_filter=False
    ),
    "replies of the queue lost twice, one or two requests a sync, each page once": two(
        REPEATS, max_bytes=2, faults=2, kinds=("lost",), loses_replies_of_filter=False
    ),
    "no fault, one request a sync, unreadable to some": two(SMALL, want=2, max_bytes=1, unreadable=UNREADABLE),
    "lost, one request a sync, equal requests": two(
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
    "failed pages": two(SMALL, want=2, failing=("B", "Ca"), persist=True),
    "failed pages, crash": spare(SMALL, want=2, failing=("Ca",), persist=True, faults=1, kinds=("crash",)),
    "failed pages, any fault": spare(
        TINY, failing=("B",), persist=True, faults=1, kinds=FAULTS, filter_is_flushed=False
    ),
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
    "two queues, one is begun anew": Scenario(BESIDE, [["A"], ["P"], ["A"]], anew=(2,), queues=(0, 1, 0)),
    "a shared filter, begun anew by another": shared(),
    "a shared filter, begun anew by another, a crash": shared(faults=1, kinds=("crash",)),
    "two queues, any fault": Scenario(TWO, [["A"], ["P"], ["A"]], spare=(2,), queues=(0, 1, 0), faults=1, kinds=FAULTS),
}
"""Searched by `make test`."""

DEEP: dict[str, Scenario] = {
    "any two faults, tiny": spare(TINY, faults=2, kinds=FAULTS),
    "any two faults, kept": spare(TINY, faults=2, kinds=FAULTS, persist=True),
    "false twice": spare(SMALL, faults=2, kinds=("false",)),
    "any fault, a tree": spare(TREE, want=2, faults=1, kinds=FAULTS),
    "failed pages, any fault, with children": spare(TINY, failing=("A", "B"), persist=True, faults=1, kinds=FAULTS),
    "any fault, wide, batches of one": spare(WIDE, want=2, batch=1, faults=1, kinds=FAULTS),
    "any fault, one request a sync": spare(SMALL, want=2, max_bytes=1, faults=1, kinds=FAULTS),
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
    "a shared filter, begun anew by another, two crashes": shared(faults=2, kinds=("crash",)),
    "begun anew beside two workers": three(TINY, anew=(2,)),
    "three workers, a crash": three(SMALL, want=2, faults=1, kinds=("crash",)),
    "three workers, a lost reply": three(TINY, faults=1, kinds=("lost",)),
    "two queues, any two faults": Scenario(
        TWO, [["A"], ["P"], ["A"]], spare=(2,), queues=(0, 1, 0), faults=2, kinds=FAULTS
    ),
}
"""Searched by `make search`, too."""


# Mistakes: each replaces a public method of the worker, or of the queue's twin.

Operation = ops.QueueOperation | FilterOperation


class NoFence(QueueMemory):
    """Let an unregistered worker have effects."""

    def apply(self, operation: object) -> Reply:
        if not isinstance(operation, (ops.Sync, ops.ResolveInDoubt, ops.Leave)) or operation.worker in self.workers:
            return super().apply(operation)
        before = operation.number if isinstance(operation, ops.Leave) else operation.number - 1
        self.record(operation.worker, Registration("5", before))
        reply = super().apply(operation)
        if reply.status is not Status.LAST:
            self.workers.pop(operation.worker, None)
        return reply


class NoNumbers(QueueMemory):
    """Execute a sync each time it arrives, and call every lost sync void."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, ops.ResolveInDoubt) and operation.worker in self.workers:
            return Reply(Status.VOID)
        if isinstance(operation, (ops.Sync, ops.Leave)):
            mine = self.find(operation.worker)
            if mine is not None:
                before = operation.number if isinstance(operation, ops.Leave) else operation.number - 1
                self.record(operation.worker, replace(mine, number=before))
        return super().apply(operation)


class NoVoid(QueueMemory):
    """Execute a sync after it was found void."""

    def apply(self, operation: object) -> Reply:
        mine = self.find(operation.worker) if isinstance(operation, ops.ResolveInDoubt) else None
        reply = super().apply(operation)
        if mine is not None and reply.status is Status.VOID and isinstance(operation, ops.ResolveInDoubt):
            self.record(operation.worker, mine)
        return reply


class AckEarly(QueueWorker):
    """Acknowledge a request before its children are leased."""

    def next_operation(self, want: int = 0) -> Operation | None:
        if self.phase is Phase.WORKING:
            self.state.outbox = deque(sorted(self.state.outbox, key=lambda item: not isinstance(item, Finished)))
        return super().next_operation(want)


class MarkFirst(QueueWorker):
    """Ask the filter before the lease."""

    def next_operation(self, want: int = 0) -> Operation | None:
        state = self.state
        waiting = tuple(item for item in state.outbox if isinstance(item, OutboxEntry))
        if waiting and self.phase is Phase.WORKING and not (state.to_check or state.in_doubt or state.to_reclaim):
            state.to_check = waiting
            state.outbox = deque(item for item in state.outbox if isinstance(item, Finished))
        return super().next_operation(want)


class BlindClear(QueueMemory):
    """Clear the queue although requests wait."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, ops.Leave) and operation.ending is Ending.FINISHED and len(self.workers) <= 1:
            self.queue, self.dead_letters, self.leases = {}, {}, {}
        return super().apply(operation)


class IdleBlind(QueueWorker):
    """Ignore the leases of other workers."""

    def receive_reply(self, operation: Operation, reply: Reply) -> None:
        super().receive_reply(operation, replace(reply, leased=0))


class NoSign(QueueWorker):
    """Finish without a heartbeat of the other workers."""

    def receive_reply(self, operation: Operation, reply: Reply) -> None:
        super().receive_reply(operation, reply)
        if isinstance(operation, ops.Sync) and operation.want and reply.status is Status.OK and not reply.entries:
            self.state.may_finish = self.is_idle and not (reply.waiting or reply.leased)


class NoClosing(QueueMemory):
    """Remove the last worker's registration before it clears."""

    def apply(self, operation: object) -> Reply:
        reply = super().apply(operation)
        if isinstance(operation, ops.Leave) and reply.status is Status.LAST:
            self.workers.pop(operation.worker, None)
        return reply


class NoSkip(QueueMemory):
    """Take entries that the worker has leased already."""

    def take(self, want: int, leased: SortedSet) -> tuple[QueueEntry, ...]:
        mine = dict(leased)
        leased.clear()
        taken = super().take(want, leased)
        leased.update({**mine, **leased})
        return taken


class NoPutBack(QueueMemory):
    """Keep the entries leased that a lost sync took."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, ops.ResolveInDoubt):
            operation = replace(operation, kept=ops.digests(self.leases.get(operation.worker, ())))
        return super().apply(operation)


class KeepsNothing(QueueWorker):
    """Requeue all leases when a reply was lost."""

    def next_operation(self, want: int = 0) -> Operation | None:
        operation = super().next_operation(want)
        return replace(operation, kept=()) if isinstance(operation, ops.ResolveInDoubt) else operation


class KeepsAllHeld(QueueWorker):
    """Keep everything that was held at a lost sync, although it took an equal request."""

    def next_operation(self, want: int = 0) -> Operation | None:
        operation = super().next_operation(want)
        if not isinstance(operation, ops.ResolveInDoubt) or self.state.in_doubt is None:
            return operation
        held = (*self.state.held(), *self.state.in_doubt.sync.leases)
        return replace(operation, kept=ops.digests(entry.member for entry in held))


class RepeatsGo(QueueWorker):
    """Requeue deferred repeats when a reply was lost."""

    def next_operation(self, want: int = 0) -> Operation | None:
        operation = super().next_operation(want)
        pending = self.state.pending_sync
        if pending is not None and operation is pending.sync:
            waiting = {entry.member for entry in self.state.repeats[len(pending.batch.repeats) :]}
            self.state.pending_sync = replace(pending, kept=pending.kept - waiting)
        return operation


class YoursEnds(QueueWorker):
    """End after closing the queue for a dead worker, although requests are held."""

    def receive_reply(self, operation: Operation, reply: Reply) -> None:
        super().receive_reply(operation, reply)
        if isinstance(operation, ops.Join) and reply.status is Status.YOURS:
            self.state.ending = Ending.KEEP


class AnyRequeue(QueueMemory):
    """Let an unregistered worker requeue leases."""

    def apply(self, operation: object) -> Reply:
        if not isinstance(operation, ops.Requeue) or operation.worker in self.workers:
            return super().apply(operation)
        if " closing" in operation.value:
            return super().apply(operation)
        self.record(operation.worker, Registration("5", 0))
        reply = super().apply(operation)
        self.workers.pop(operation.worker)
        return reply


class JoinClosing(QueueMemory):
    """Let a worker join while another one closes the queue."""

    def apply(self, operation: object) -> Reply:
        if not isinstance(operation, ops.Join):
            return super().apply(operation)
        closing = {name: text for name, text in self.workers.items() if " closing" in text}
        for name in closing.keys() - {operation.worker}:
            del self.workers[name]
        reply = super().apply(operation)
        self.workers = {**closing, **self.workers}
        return reply


class NoTakeover(QueueMemory):
    """Only remove a worker that died while it closed the queue."""

    def apply(self, operation: object) -> Reply:
        reply = super().apply(operation)
        if isinstance(operation, ops.Requeue) and reply.status is Status.YOURS:
            del self.workers[operation.worker]
        return reply


class NoGap(QueueMemory):
    """Hide from a worker that a failover has lost its last syncs."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, (ops.Sync, ops.ResolveInDoubt, ops.Leave)):
            mine = self.find(operation.worker)
            expected = operation.number if isinstance(operation, ops.Leave) else operation.number - 1
            if mine is not None and not mine.is_closing and mine.number < expected:
                self.record(operation.worker, replace(mine, number=expected))
        return super().apply(operation)


class JoinKeeps(QueueMemory):
    """Keep the leases of a worker that joins again."""

    def apply(self, operation: object) -> Reply:
        mine = dict(self.leases.get(operation.worker, {})) if isinstance(operation, ops.Join) else {}
        reply = super().apply(operation)
        if isinstance(operation, ops.Join) and reply.status in REGISTERED and mine:
            for member in mine:
                self.queue.pop(member, None)
            self.leases[operation.worker] = mine
        return reply


class JoinsTwice(QueueMemory):
    """Execute a late join although the worker has joined since."""

    def apply(self, operation: object) -> Reply:
        if isinstance(operation, ops.Join):
            mine = self.find(operation.worker)
            if mine is not None and not mine.is_closing:
                del self.workers[operation.worker]
        return super().apply(operation)


class NoBar(QueueMemory):
    """Let workers join between the deletion of the queue and that of the filter."""

    def apply(self, operation: object) -> Reply:
        return super().apply(replace(operation, lease_seconds="") if isinstance(operation, ops.Flush) else operation)


class NoFlushMark(QueueMemory):
    """Close the queue for a flush like the last worker of a crawl."""

    def apply(self, operation: object) -> Reply:
        reply = super().apply(operation)
        if isinstance(operation, ops.Flush):
            self.workers = {name: text.removesuffix(" flush") for name, text in self.workers.items()}
        return reply


class TakesOverPlainly(QueueMemory):
    """Forget at a takeover that the dead worker was flushing the queue."""

    def apply(self, operation: object) -> Reply:
        reply = super().apply(operation)
        if isinstance(operation, ops.Requeue) and reply.status is Status.YOURS:
            self.workers[operation.worker] = self.workers[operation.worker].removesuffix(" flush")
        return reply


class ReleasesOnly(QueueWorker):
    """Only remove the reference when a flush is to be completed."""

    def next_operation(self, want: int = 0) -> Operation | None:
        operation = super().next_operation(want)
        return ReleaseFilter() if isinstance(operation, ClearFilter) else operation


class NoReclaim(QueueWorker):
    """Lease nothing again after the registration expired."""

    def receive_reply(self, operation: Operation, reply: Reply) -> None:
        super().receive_reply(operation, reply)
        if reply.status in (Status.EXPIRED, Status.LATE):
            self.state.to_reclaim = ()


class NoDoubt(QueueWorker):
    """Trust the filter's earlier replies after the registration expired."""

    def receive_reply(self, operation: Operation, reply: Reply) -> None:
        state = self.state
        before = state.to_check, state.new, state.repeats, state.outbox
        super().receive_reply(operation, reply)
        if reply.status in (Status.EXPIRED, Status.LATE):
            state.to_check, state.new, state.repeats, state.outbox = before


class TrustsAll(QueueWorker):
    """Trust the filter after a failed check."""

    def doubt(self, fingerprints: Set[bytes]) -> None:
        pass


class DoubtsOne(QueueWorker):
    """Doubt a single item of a failed check."""

    def doubt(self, fingerprints: Set[bytes]) -> None:
        super().doubt(set(sorted(fingerprints)[:1]))


class DoubtsOthers(QueueWorker):
    """Doubt the wrong items after a failed check."""

    def doubt(self, fingerprints: Set[bytes]) -> None:
        super().doubt({entry.fingerprint for entry in self.state.to_check if entry.fingerprint} - fingerprints)


class AckEqual(QueueWorker):
    """Release the lease of a request although an equal one needs it."""

    def next_operation(self, want: int = 0) -> Operation | None:
        operation = super().next_operation(want)
        pending = self.state.pending_sync
        if pending is None or operation is not pending.sync or pending.reclaimed:
            return operation
        sync = replace(pending.sync, released=len(pending.sync.pushes), acks=pending.batch.acknowledged)
        self.state.pending_sync = replace(pending, sync=sync, kept=frozenset())
        return sync


class UsesAgain(QueueWorker):
    """Add a reference to the filter while leaving."""

    def receive_reply(self, operation: Operation, reply: Reply) -> None:
        super().receive_reply(operation, reply)
        if isinstance(operation, ops.Join) and reply.status in REGISTERED:
            self.state.phase = Phase.JOINED
        if self.phase is Phase.WORKING and self.is_leaving:
            self.state.phase = Phase.LEAVING


class SameIsOld(QueueWorker):
    """Take a new entry for an equal one in the outbox."""

    def next_operation(self, want: int = 0) -> Operation | None:
        state = self.state
        first = next((item for item in state.outbox if isinstance(item, OutboxEntry)), None)
        if not (state.in_doubt or state.to_reclaim or state.to_check):
            state.new = tuple(entry for entry in state.new if first is None or entry != first)
        return super().next_operation(want)


class Hasty(QueueWorker):
    """Finish as decided although dead letters were requeued since."""

    def next_operation(self, want: int = 0) -> Operation | None:
        had_decided = self.state.may_finish
        operation = super().next_operation(want)
        if isinstance(operation, ops.Redrive):
            self.state.may_finish = had_decided or not self.state.heartbeats_seen
        return operation


class NoAudit(QueueMemory):
    """Do not notice that the queue has vanished."""

    def apply(self, operation: object) -> Reply:
        self.audit = Audit(len(self.queue))
        return super().apply(operation)


class ToldOnce(QueueMemory):
    """Report a loss in one reply only."""

    def apply(self, operation: object) -> Reply:
        reply = super().apply(operation)
        self.audit = replace(self.audit, loss=0)
        return reply


class CountsAll(QueueMemory):
    """Count each death of a worker for all its leases."""

    def count_death(self, op: ops.Requeue, member: bytes) -> bool:
        count, _ = self.deliveries.get(member, (0, ""))
        self.deliveries[member] = count, op.dead
        return super().count_death(op, member)


class StartsAhead(QueueWorker):
    """Start suspects when they are taken ahead."""

    def next_operation(self, want: int = 0) -> Operation | None:
        operation = super().next_operation(want)
        if not want or self.phase is not Phase.WORKING or not isinstance(operation, ops.Sync | None):
            return operation
        pending = self.state.pending_sync
        if pending is None:
            sync = ops.Sync(self.name, self.state.number + 1, 0)
            pending = PendingSync(sync, frozenset(members_of(self.state.held())))
        ready = (entry for entry in self.state.ready if entry not in pending.returned)
        starts = tuple(entry.member for entry in ready if entry.member in self.state.suspects.waiting)
        if operation is None and not starts:
            return None
        self.state.pending_sync = replace(pending, sync=replace(pending.sync, starts=starts))
        return self.state.pending_sync.sync


class NeverAlone(QueueWorker):
    """Run other requests beside a suspect on its last delivery."""

    def receive_reply(self, operation: Operation, reply: Reply) -> None:
        super().receive_reply(operation, reply)
        self.state.suspects = replace(self.state.suspects, alone=frozenset())


class AloneUntilDone(QueueWorker):
    """Start a suspect on its last delivery beside unacknowledged requests."""

    def first_ready(self) -> QueueEntry | None:
        finished, self.state.finished = self.state.finished, {}
        try:
            return super().first_ready()
        finally:
            self.state.finished = finished


class ClearsAlways(QueueWorker):
    """Delete a stopped queue although its filter stays."""

    def receive_reply(self, operation: Operation, reply: Reply) -> None:
        is_kept = isinstance(operation, ReleaseFilter) and reply.status is Status.KEPT
        super().receive_reply(operation, replace(reply, status=Status.OK) if is_kept else reply)


class LeftOut(QueueWorker):
    """Lease only the first part of the held requests again."""

    def next_operation(self, want: int = 0) -> Operation | None:
        operation = super().next_operation(want)
        pending = self.state.pending_sync
        if pending is not None and operation is pending.sync and pending.reclaimed:
            self.state.pending_sync = replace(pending, reclaimed=len(self.state.to_reclaim))
        return operation


class ForgetsLate(QueueWorker):
    """Acknowledge failed requests before the filter forgets them."""

    def next_operation(self, want: int = 0) -> Operation | None:
        to_forget, self.state.to_forget = self.state.to_forget, ()
        try:
            operation = super().next_operation(want)
        finally:
            self.state.to_forget = to_forget
        return super().next_operation(want) if operation is None else operation


class ForgetsOnce(QueueWorker):
    """Do not repeat a lost `ForgetFailed`."""

    def lose_reply(self, operation: Operation) -> None:
        super().lose_reply(operation)
        if isinstance(operation, ops.ForgetFailed):
            self.state.to_forget = ()


@dataclass(frozen=True)
class Mistake:
    """A mistake in the worker, the queue or the search, and its scenario."""

    scenario: Scenario
    worker: type[QueueWorker] = QueueWorker
    memory: type[QueueMemory] = QueueMemory
    rules: Set[Rule] = frozenset()


MISTAKES: dict[str, Mistake] = {
    "no registration fence": Mistake(
        spare(SMALL, faults=2, kinds=("false", "crash")), memory=NoFence, rules={Rule.FENCE}
    ),
    "no numbers": Mistake(two(SMALL, faults=1, kinds=("lost",), want=2), memory=NoNumbers),
    "no numbers, late syncs": Mistake(spare(TINY, faults=2, kinds=("lost", "crash")), memory=NoNumbers),
    "a void sync is executed": Mistake(spare(SMALL, faults=1, kinds=("lost",)), memory=NoVoid),
    "acknowledged before the children are leased": Mistake(
        spare(WIDE, faults=1, kinds=("crash",), batch=1), worker=AckEarly
    ),
    "the filter is asked before the lease": Mistake(spare(SMALL, faults=1, kinds=("crash",)), worker=MarkFirst),
    "cleared although requests wait": Mistake(two(SMALL, want=2, unreadable=UNREADABLE, stop=(0,)), memory=BlindClear),
    "requeued without comparing the registration": Mistake(two(TINY), rules={Rule.COMPARED}),
    "the leases of other workers are ignored": Mistake(two(TINY, faults=1, kinds=("crash",)), worker=IdleBlind),
    "finished without a heartbeat of the others": Mistake(spare(TINY, faults=1, kinds=("crash",)), worker=NoSign),
    "no closing mark": Mistake(spare(TINY, faults=1, kinds=("crash",)), memory=NoClosing, rules={Rule.CLOSING}),
    "joined while another one closes": Mistake(two(TINY), memory=JoinClosing),
    "a dead closer is only removed": Mistake(spare(TINY, faults=1, kinds=("crash",)), memory=NoTakeover),
    "a worker that closes for a dead one ends": Mistake(
        spare(TINY, faults=2, kinds=("false", "crash")), worker=YoursEnds
    ),
    "requeued by an unregistered worker": Mistake(
        spare(TINY, faults=2, kinds=("crash", "lost")), memory=AnyRequeue, rules={Rule.LAST_BEATS}
    ),
    "taken although this worker has leased it": Mistake(
        two(EQUAL_LATER, faults=1, kinds=("lost",), want=2, unfiltered=("X",)), memory=NoSkip
    ),
    "entries that a lost sync took stay leased": Mistake(two(TINY, faults=1, kinds=("lost",)), memory=NoPutBack),
    "all leases are requeued after a lost sync": Mistake(
        two(SMALL, want=2, faults=1, kinds=("lost",), loses_replies_of_filter=False), worker=KeepsNothing
    ),
    "an equal entry that a lost sync took stays leased": Mistake(
        two(EQUAL_LATER, want=2, faults=1, kinds=("lost",), unfiltered=("X",)), worker=KeepsAllHeld
    ),
    "deferred repeats are requeued": Mistake(
        two(REPEATS, faults=2, kinds=("lost",), loses_replies_of_filter=False, max_bytes=2), worker=RepeatsGo
    ),
    "nothing is leased again after an expiry": Mistake(
        spare(SMALL, faults=2, kinds=("flush", "crash"), filter_is_flushed=False), worker=NoReclaim
    ),
    "only the first part is leased again": Mistake(
        spare(WIDE, want=2, batch=1, faults=2, kinds=("flush", "crash")), worker=LeftOut
    ),
    "the filter is trusted after an expiry": Mistake(
        spare(SMALL, faults=1, kinds=("flush",), filter_is_flushed=False), worker=NoDoubt
    ),
    "the filter is trusted after a failed check": Mistake(two(WIDE, faults=1, kinds=("lost",)), worker=TrustsAll),
    "one item of a failed check is in doubt": Mistake(two(WIDE, faults=1, kinds=("lost",)), worker=DoubtsOne),
    "the other items of a failed check are in doubt": Mistake(
        two(WIDE, faults=1, kinds=("lost",)), worker=DoubtsOthers
    ),
    "a gap of numbers goes unnoticed": Mistake(
        spare(SMALL, faults=2, kinds=("failover", "crash"), want=2), memory=NoGap
    ),
    "a join keeps the leases": Mistake(two(TINY, faults=1, kinds=("failover",)), memory=JoinKeeps),
    "a late join is executed": Mistake(
        two(SMALL, faults=1, kinds=("lost",), want=2, loses_replies_of_filter=False), memory=JoinsTwice
    ),
    "released although an equal request needs the lease": Mistake(
        spare(EQUAL, faults=1, kinds=("crash",), want=2), worker=AckEqual
    ),
    "the filter is cleared under its references": Mistake(
        Scenario(TWO, [["A"], ["P"]], queues=(0, 1)), rules={Rule.REFERENCES}
    ),
    "a filter that replaced another one lacks a reference": Mistake(
        Scenario(BESIDE, [["A"], ["P"], ["A"]], anew=(2,), queues=(0, 1, 0)), rules={Rule.RENEWED}
    ),
    "a queue is deleted whose filter stays": Mistake(
        Scenario(SHARED, [["A"], ["P"]], queues=(0, 1), stop=(0,)), worker=ClearsAlways
    ),
    "a vanished queue goes unnoticed": Mistake(two(SMALL, want=2, faults=1, kinds=("delete",)), memory=NoAudit),
    "a loss is reported once": Mistake(two(SMALL, faults=2, kinds=("delete", "lost")), memory=ToldOnce),
    "each death counts for all leases": Mistake(
        spare(SMALL, want=2, faults=2, kinds=("crash",), max_deliveries=2), memory=CountsAll
    ),
    "suspects are started ahead": Mistake(
        spare(WIDE, want=3, faults=2, kinds=("crash",), max_deliveries=2), worker=StartsAhead
    ),
    "others run beside a suspect on its last delivery": Mistake(
        spare(WIDE, want=2, at_once=2, faults=2, kinds=("crash",), max_deliveries=2), worker=NeverAlone
    ),
    "a suspect on its last delivery runs beside finished requests": Mistake(
        apart(want=2, batch=1, faults=2, kinds=("crash",), max_deliveries=2), worker=AloneUntilDone
    ),
    "other workers are presumed dead after one's own lease": Mistake(two(TINY), rules={Rule.OWN_LEASES}),
    "a leaving worker adds a reference": Mistake(spare(TINY, faults=2, kinds=("false",)), worker=UsesAgain),
    "a new entry is taken for an offered one": Mistake(
        spare(TREE, want=2, faults=1, kinds=("crash",)), worker=SameIsOld
    ),
    "joined while another one begins the crawl anew": Mistake(two(SMALL, want=2, anew=(1,)), memory=NoBar),
    "half a flush is never completed": Mistake(spare(SMALL, anew=(1,), faults=1, kinds=("crash",)), memory=NoBar),
    "half a flush of a shared filter is completed like the end of a crawl": Mistake(
        shared(faults=1, kinds=("crash",)), memory=NoFlushMark
    ),
    "the worker that takes over a flush does not know it": Mistake(
        shared(faults=1, kinds=("crash",)), memory=TakesOverPlainly
    ),
    "half a flush of a shared filter is completed by a release": Mistake(
        shared(faults=1, kinds=("crash",)), worker=ReleasesOnly
    ),
    "acknowledged before it is forgotten": Mistake(
        two(TINY, failing=("B",), persist=True, faults=1, kinds=("crash",)), worker=ForgetsLate
    ),
    "a lost order to forget is dropped": Mistake(
        two(TINY, failing=("B",), persist=True, faults=1, kinds=("lost",)), worker=ForgetsOnce
    ),
    "finished although dead letters were requeued": Mistake(two(SMALL, want=2, unreadable=UNREADABLE), worker=Hasty),
}
"""The mistakes that the search must find."""
