"""The state of a queue worker, which `queue.worker` changes and searches compare."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from scrapy_bloom.queue.dead_letters import DeadLetterScan, Suspects
from scrapy_bloom.queue.entries import Finished, OutboxEntry, OutboxItem, QueueEntry, Receipt
from scrapy_bloom.queue.operations import Ending
from scrapy_bloom.queue.sync import AdaptiveWindow, PendingSync, SyncBatch, members_of


class Phase(Enum):
    """The phases of a worker; the head of `queue.worker` pictures their transitions."""

    JOINING = auto()
    JOINED = auto()
    WORKING = auto()
    LEAVING = auto()
    CLOSING = auto()
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
