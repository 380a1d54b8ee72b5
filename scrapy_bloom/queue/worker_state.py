"""The state of a queue worker, which `queue.worker` changes and searches compare.

Suspects are requests that a worker has died with. A suspect is started in Redis before the engine gets it, and a worker
runs one suspect at a time, beside other requests. So a death counts for one suspect, which need not have caused it.

A suspect whose next death makes it a dead letter runs alone: the worker starts it when all its other requests are
acknowledged, and takes none until the suspect is acknowledged itself. So no request becomes a dead letter for another
one (S8 at the head of `queue.worker`).

An idle worker also scans the dead letters: it may be able to deserialize some that others could not.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Self

from scrapy_bloom.queue.entries import (
    AdaptiveWindow,
    Finished,
    OutboxEntry,
    OutboxItem,
    QueueEntry,
    Receipt,
    members_of,
)
from scrapy_bloom.queue.operations import Ending, Sync


@dataclass(frozen=True)
class Suspects:
    """The suspects of a worker.

    Attributes:
        max_deliveries: deaths of workers that make a request a dead letter; 0 is no bound.
        waiting: ready suspects that are not started.
        alone: suspects that run alone.
        started: the suspect that was started last, until it is acknowledged or pushed back.
    """

    max_deliveries: int = 0
    waiting: frozenset[bytes] = frozenset()
    alone: frozenset[bytes] = frozenset()
    started: bytes | None = None

    def first_of(self, ready: Iterable[QueueEntry], held: Iterable[bytes], *, is_busy: bool) -> QueueEntry | None:
        """Return the ready entry that may go next, or None.

        A suspect waits for the started one. A suspect that runs alone waits for all other requests,
        and these wait for it.

        Args:
            ready: ready entries in their order.
            held: members that the worker has leased.
            is_busy: whether the worker has run a request that is not acknowledged.
        """
        if not self.waiting and self.started not in self.alone:
            return next(iter(ready), None)
        started = self._under_way(held)
        own = next((entry for entry in ready if entry.member == started), None)
        if started in self.alone:
            return own
        for entry in ready:
            if entry.member not in self.waiting:
                return entry
            if entry.member in self.alone:
                return own if is_busy or started is not None else entry
            if started is None:
                return entry
        return None

    def has_room(self, held: Collection[bytes]) -> bool:
        """Return False if further entries would wait for a suspect that runs alone."""
        return not self.alone & {*self.waiting, self._under_way(held)}

    def counted(self, deaths: Mapping[bytes, int], ready: Collection[bytes]) -> Self:
        """Return the suspects after a reply with the number of deaths of ready members."""
        new = deaths.keys() & ready
        last = {member for member in new if 0 < self.max_deliveries <= deaths[member] + 1}
        return replace(self, waiting=self.waiting | new, alone=(self.alone - new) | last)

    def among(self, ready: Collection[bytes]) -> Self:
        """Return the suspects when only these members are ready."""
        waiting = self.waiting & set(ready)
        return replace(self, waiting=waiting, alone=self.alone & {*waiting, self.started})

    def begun(self, member: bytes) -> Self:
        """Return the suspects after one was started."""
        return replace(self, waiting=self.waiting - {member}, started=member)

    def ended(self, members: Collection[bytes]) -> Self:
        """Return the suspects after members were acknowledged or pushed back."""
        return replace(self, started=None, alone=self.alone - {self.started}) if self.started in members else self

    def doubted(self) -> Self:
        """Return the suspects after an expiry: others may have died with waiting ones."""
        return replace(self, alone=self.alone | self.waiting) if self.max_deliveries else self

    def _under_way(self, held: Iterable[bytes]) -> bytes | None:
        """Return the started suspect that is not acknowledged: a death would count for it."""
        if self.started is None or self.started in self.waiting:
            return None
        return self.started if self.started in held else None


@dataclass(frozen=True)
class DeadLetterScan:
    """Progress of a scan of the dead letters.

    Attributes:
        place: the place of the next dead letter to read, or None if no scan is under way.
        number: dead letters at the start of this scan.
        reviewed: dead letters at the start of the last complete scan.
        readable: dead letters to requeue.
    """

    place: int | None = None
    number: int = 0
    reviewed: int = 0
    readable: tuple[QueueEntry, ...] = ()

    def begun(self, number: int) -> Self:
        """Return the scan at the first of `number` dead letters."""
        return replace(self, place=0, number=number)

    def read(self, entries: Sequence[QueueEntry], wanted: int, can_read: Callable[[QueueEntry], bool]) -> Self:
        """Return the scan after the next dead letters; fewer than `wanted` are the last."""
        if self.place is None:
            return self
        readable = tuple(entry for entry in entries if can_read(entry))
        if len(entries) < wanted:
            return replace(self, place=None, reviewed=self.number, readable=readable)
        return replace(self, place=self.place + len(entries), readable=readable)

    def redriven(self, count: int) -> Self:
        """Return the scan after the first `count` readable dead letters were requeued."""
        return replace(self, readable=self.readable[count:])

    def broken_off(self) -> Self:
        """Return the scan without progress."""
        return replace(self, place=None, readable=())


@dataclass(frozen=True)
class SyncBatch:
    """The part of a worker's state that fits into one sync.

    Attributes:
        new: the first entries that are new to the filter.
        repeats: the first repeats.
        unreadable: the first entries that cannot be deserialized.
        outbox: the first items of the outbox.
        to_lease: the entries of the outbox to lease, for the filter to check.
        queued: the entries to push: new ones, and those of the outbox that bypass the filter.
        finished: the finished requests whose children all stand before their markers.
    """

    new: tuple[OutboxEntry, ...] = ()
    repeats: tuple[OutboxEntry, ...] = ()
    unreadable: tuple[QueueEntry, ...] = ()
    outbox: tuple[OutboxItem, ...] = ()
    # They follow from the others.
    to_lease: tuple[OutboxEntry, ...] = field(default=(), compare=False)
    queued: tuple[QueueEntry, ...] = field(default=(), compare=False)
    finished: tuple[bytes, ...] = field(default=(), compare=False)

    @property
    def acknowledged(self) -> tuple[bytes, ...]:
        """The members whose leases end, unless an equal request needs them."""
        return (*members_of(self.repeats), *members_of(self.unreadable), *self.finished)


@dataclass(frozen=True)
class PendingSync:
    """A sync that was handed out, and its effect on the worker if it is executed.

    Attributes:
        sync: the operation.
        kept: members that are leased afterwards, without the entries that the sync takes.
        batch: the part of the state that the sync carries.
        returned: ready entries that the sync pushes back.
        reclaimed: the number of `to_reclaim` entries that the sync leases.
    """

    sync: Sync
    kept: frozenset[bytes]
    batch: SyncBatch = SyncBatch()
    returned: tuple[QueueEntry, ...] = ()
    reclaimed: int = 0


class Phase(Enum):
    """The phases of a worker; the head of `queue.worker` pictures their transitions."""

    JOINING = auto()
    JOINED = auto()
    WORKING = auto()
    LEAVING = auto()
    CLOSING = auto()
    FLUSHING = auto()
    CLOSED = auto()
    GONE = auto()


@dataclass(slots=True)
class WorkerState:
    """Everything a worker knows beside its settings.

    Attributes:
        phase: the worker's phase.
        may_finish: no work is left in the queue, and all other workers are alive.
        is_stopping: the worker takes no further requests, and returns the ready ones.
        is_new: the worker has not worked yet; its first join requeues the dead letters.
        ending: how the worker leaves the queue, or None while it does not leave.
        clears: the end of the closing deletes the waiting requests.
        number: the number of the last sync that was carried out or resolved.
        window: bytes that one sync carries at most.
        outbox: offered entries and markers, in the order of the engine's calls.
        fingerprints: fingerprints of the offered entries that the filter has not checked yet.
        to_check: leased entries that the filter has not checked yet.
        new: leased entries that are new to the filter, to be pushed to the queue.
        repeats: leased entries that the filter knew, to be acknowledged.
        ready: leased entries for the engine, the lowest score first.
        running: leased entries in the engine, by member.
        finished: leased entries that the engine is done with, until they are acknowledged.
        unreadable: leased entries that cannot be deserialized, until they are dead letters.
        to_reclaim: held entries to lease again after the registration expired.
        to_forget: fingerprints of failed requests, for the filter to forget.
        suspects: ready and running entries that a worker has died with.
        receipts: receipts that are due.
        pending_sync: the sync that was handed out last, until its reply.
        in_doubt: a sync whose reply was lost, until it is resolved.
        heartbeats_seen: the other workers' registrations when the queue was first found without
            work.
        dead_letter_scan: progress of the scan for readable dead letters.
    """

    phase: Phase = Phase.JOINING
    may_finish: bool = False
    is_stopping: bool = False
    is_new: bool = True
    ending: Ending | None = None
    clears: bool = False
    number: int = 0
    window: AdaptiveWindow = field(default_factory=AdaptiveWindow)
    outbox: deque[OutboxItem] = field(default_factory=deque)
    fingerprints: set[bytes] = field(default_factory=set)
    to_check: tuple[OutboxEntry, ...] = ()
    new: tuple[OutboxEntry, ...] = ()
    repeats: tuple[OutboxEntry, ...] = ()
    ready: tuple[QueueEntry, ...] = ()
    running: dict[bytes, QueueEntry] = field(default_factory=dict)
    finished: dict[bytes, QueueEntry] = field(default_factory=dict)
    unreadable: dict[bytes, QueueEntry] = field(default_factory=dict)
    to_reclaim: tuple[QueueEntry, ...] = ()
    to_forget: tuple[bytes, ...] = ()
    suspects: Suspects = field(default_factory=Suspects)
    receipts: list[Receipt] = field(default_factory=list)
    pending_sync: PendingSync | None = None
    in_doubt: PendingSync | None = None
    heartbeats_seen: Mapping[str, str] | None = None
    dead_letter_scan: DeadLetterScan = field(default_factory=DeadLetterScan)

    def held(self) -> Iterator[QueueEntry]:
        """Yield the entries that this worker believes to have leased."""
        yield from (entry.in_queue for entry in (*self.to_check, *self.new, *self.repeats))
        yield from (*self.ready, *self.running.values(), *self.finished.values(), *self.unreadable.values())

    def next_batch(self, batch_size: int) -> SyncBatch:
        """Return the part of the state that fits into one sync."""
        budget = self.window.budget()
        new, repeats = budget.first_of(self.new), budget.first_of(self.repeats)
        unreadable = budget.first_of(self.unreadable.values())
        items: list[OutboxItem] = []
        to_lease: list[OutboxEntry] = []
        queued = [entry.in_queue for entry in new]
        finished: list[bytes] = []
        entries = 0
        for item in self.outbox:
            if isinstance(item, OutboxEntry):
                entries += 1
            if entries > batch_size or not budget.takes(item):
                break
            items.append(item)
            if isinstance(item, Finished):
                finished.append(item.member)
            elif isinstance(item, OutboxEntry) and item.fingerprint is None:
                queued.append(item.in_queue)
            elif isinstance(item, OutboxEntry):
                to_lease.append(item)
        return SyncBatch(new, repeats, unreadable, tuple(items), tuple(to_lease), tuple(queued), tuple(finished))

    def outranked_by(self, queued: Sequence[QueueEntry]) -> tuple[QueueEntry, ...]:
        """Return the ready entries to push back in one sync, the last first.

        Ready entries go back if the worker stops, or if a queued entry goes before the last of
        them.
        """
        last = self.ready[-1].score if self.ready else None
        is_outranked = last is not None and any(entry.score < last for entry in queued)
        return self.window.budget().first_of(reversed(self.ready)) if self.is_stopping or is_outranked else ()

    def leased_after(self, batch: SyncBatch, returned: Sequence[QueueEntry]) -> set[bytes]:
        """Return the members that stay leased after a sync of this batch.

        An equal request is the same member: one copy may be finished while another is still needed.
        """
        ready = (entry for entry in self.ready if entry not in returned)
        unfinished = self.finished.keys() - set(batch.finished)
        deferred = (*self.new[len(batch.new) :], *self.repeats[len(batch.repeats) :])
        unreadable = [*self.unreadable][len(batch.unreadable) :]
        leased = (*members_of(ready), *members_of(batch.to_lease), *members_of(deferred))
        return {*leased, *self.running, *unfinished, *unreadable}
