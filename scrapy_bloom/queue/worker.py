"""The state of one worker of a queue, and its next step. It has no input or output, no clock and no chance.

A worker never holds a request that Redis does not hold too. It leases a request before it acts on it, and acknowledges
it after what it led to is leased. So the search in `tests/queue` can try every order of several workers' operations,
lost replies, crashes and false deaths on this code.

A request that a worker has died with is a suspect: `queue.suspects` tells when it may run.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from itertools import chain

from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.dead_letters import DeadLetterScan, Suspects
from scrapy_bloom.queue.entries import Finished, OutboxEntry, OutboxItem, QueueEntry, Receipt
from scrapy_bloom.queue.operations import REGISTERED, Ending, QueueOperation, Reply, Status, Sync
from scrapy_bloom.queue.sync import (
    AdaptiveWindow,
    AskFilter,
    FilterOperation,
    PendingSync,
    ReleaseFilter,
    SyncBatch,
    UseFilter,
    members_of,
)
from scrapy_bloom.queue.tuning import TUNING, Tuning


class Phase(Enum):
    """The stages of a worker's life."""

    JOINING = auto()
    JOINED = auto()
    WORKING = auto()
    LEAVING = auto()
    CLOSING = auto()
    CLOSED = auto()
    GONE = auto()


class QueueWorker:
    """One worker of a queue: `next_operation` says what it does, `reply` and `lose` what became of that.

    One operation is under way at a time. `can_read` says of an entry whether it can be made a request again.
    `max_deliveries` workers may die with a request; 0 is no bound.
    """

    def __init__(
        self,
        name: str,
        lease: str,
        batch_size: int,
        can_read: Callable[[QueueEntry], bool] = lambda _: False,
        *,
        spider: str = "",
        tuning: Tuning = TUNING,
        max_deliveries: int = 0,
    ) -> None:
        self.name = name
        self.phase = Phase.JOINING
        self.may_finish = False
        self.is_stopping = False
        self.outbox: deque[OutboxItem] = deque()
        self.asked: tuple[OutboxEntry, ...] = ()
        self.new: tuple[OutboxEntry, ...] = ()
        self.repeats: tuple[OutboxEntry, ...] = ()
        self.ready: tuple[QueueEntry, ...] = ()
        self.running: dict[bytes, QueueEntry] = {}
        self.finished: dict[bytes, QueueEntry] = {}
        self.unreadable: dict[bytes, QueueEntry] = {}
        self.suspects = Suspects(max_deliveries)
        self.receipts: list[Receipt] = []
        self._fingerprints: set[bytes] = set()
        self._lease = lease
        self._spider = spider
        self._batch_size = batch_size
        self._tuning = tuning
        self._window = AdaptiveWindow(tuning.sync_bytes, tuning.sync_bytes)
        self._can_read = can_read
        self._number = 0
        self._is_new = True
        self._pending_sync: PendingSync | None = None
        self._in_doubt: PendingSync | None = None
        self._to_reclaim: tuple[QueueEntry, ...] = ()
        self._heartbeats_seen: Mapping[str, str] | None = None
        self._dead_letter_scan = DeadLetterScan()
        self._ending: Ending | None = None
        self._clears = False

    # What happens in the process.

    def offer(self, entry: OutboxEntry) -> None:
        """Take over an entry that is to be checked and queued."""
        self.outbox.append(entry)
        self.may_finish = False
        if entry.fingerprint is not None:
            self._fingerprints.add(entry.fingerprint)

    def has_offered(self, fingerprint: bytes) -> bool:
        """Return whether an entry with this fingerprint waits to be checked."""
        return fingerprint in self._fingerprints

    def ask_for_receipt(self, call: Callable[[], object]) -> None:
        """Have it told in `receipts` when all that was offered until now is leased or queued."""
        self.outbox.append(Receipt(call))

    def take_receipts(self) -> list[Receipt]:
        """Return those that are due, once."""
        due, self.receipts = self.receipts, []
        return due

    def take(self) -> QueueEntry | None:
        """Return the entry that goes first of those that are ready, if it may run; it is running then.

        A suspect may not run before it is started, which the next exchange that wants entries does, nor beside another.
        """
        first = self._first_ready()
        if first is None or first.member in self.suspects.waiting:
            return None
        self.ready = tuple(entry for entry in self.ready if entry is not first)
        self.running[first.member] = first
        return first

    @property
    def can_take(self) -> bool:
        """True if `take` returns an entry."""
        first = self._first_ready()
        return first is not None and first.member not in self.suspects.waiting

    @property
    def needs_start(self) -> bool:
        """True if the entry that goes first of those that are ready is a suspect that may be started."""
        first = self._first_ready()
        return first is not None and first.member in self.suspects.waiting and not self.is_stopping

    def _first_ready(self) -> QueueEntry | None:
        """Return the entry that goes first of those that are ready and may go now."""
        # A request that is done counts until it is acknowledged: others repeat it if this worker dies.
        is_busy = bool(self.running or self.finished or self.unreadable)
        held = (entry.member for entry in self._held())
        return self.suspects.first_of(self.ready, held, is_busy=is_busy)

    def finish(self, member: bytes) -> None:
        """Note that a request is done, and all that it led to was offered."""
        self.finished[member] = self.running.pop(member)
        self.outbox.append(Finished(member))

    def dead_letter(self, member: bytes) -> None:
        """Note that an entry that was taken cannot be read."""
        self.unreadable[member] = self.running.pop(member)

    def stop(self) -> None:
        """Take nothing more, and give back what is ready."""
        self.is_stopping = True
        self.may_finish = False

    def leave(self, ending: Ending) -> None:
        """End, from the next operation on; one that closes the queue does that first."""
        self._ending = ending
        if self.phase not in (Phase.CLOSING, Phase.CLOSED):
            self.phase = Phase.LEAVING

    @property
    def is_leaving(self) -> bool:
        """True if this worker ends, or has ended."""
        return self._ending is not None

    @property
    def is_idle(self) -> bool:
        """True if this worker holds nothing."""
        return not (self.outbox or any(True for _ in self._held()) or self._in_doubt or self._dead_letter_scan.readable)

    @property
    def has_news(self) -> bool:
        """True if there is something to tell the queue."""
        told = self.outbox or self.asked or self.new or self.repeats or self.unreadable or self._to_reclaim
        is_behind = self._in_doubt or self.phase is not Phase.WORKING
        return bool(told or is_behind or (self.is_stopping and self.ready))

    @property
    def is_urgent(self) -> bool:
        """True if something that waits here goes before what is ready, or if a batch waits."""
        if not self.ready or len(self.outbox) >= self._batch_size:
            return len(self.outbox) >= self._batch_size
        first = self.ready[0].score
        return any(item.score < first for item in chain(self.outbox, self.asked, self.new))

    def undelivered(self) -> list[OutboxEntry]:
        """Return all that is not known to be in the queue, or leased."""
        waiting = [item for item in self.outbox if isinstance(item, OutboxEntry)]
        asked = {entry.member for entry in self.asked}
        others = (entry for entry in self._to_reclaim if entry.member not in asked)
        # The filter has the new ones from this worker.
        new = (replace(entry, is_unsure=True) for entry in self.new)
        return [*self.asked, *new, *waiting, *(OutboxEntry(entry.member, entry.score, None) for entry in others)]

    # What it does next.

    def next_operation(self, want: int = 0) -> QueueOperation | FilterOperation | None:
        """Return what to do next, or None: there is nothing to tell, and nothing wanted.

        Up to `want` entries are taken with the next exchange.
        """
        if self.phase is Phase.WORKING:
            return self._next_while_working(0 if self.is_stopping else want)
        following: dict[Phase, QueueOperation | FilterOperation | None] = {
            Phase.JOINING: ops.Join(self.name, self._lease, self._number, self._is_new, self._spider),
            Phase.JOINED: UseFilter(),
            Phase.LEAVING: ops.Leave(self.name, self._number, self._ending or Ending.KEEP),
            Phase.CLOSING: ReleaseFilter(),
            Phase.CLOSED: ops.EndClosing(self.name, self._clears),
        }
        return following.get(self.phase)

    def _next_while_working(self, want: int) -> QueueOperation | FilterOperation | None:
        if self._in_doubt is not None:
            kept = ops.digests(self._in_doubt.kept) if self._in_doubt.sync.want else None
            return ops.ResolveInDoubt(self.name, self._number, kept)
        if self._to_reclaim:
            return self._reclaim()
        if self.asked:
            return AskFilter(self.asked[: self._window.share_of(self._batch_size)])
        if self._dead_letter_scan.readable:
            return self._redrive()
        if self._dead_letter_scan.place is not None and want and self.is_idle:
            return ops.ReadDeadLetters(
                self.name, self._dead_letter_scan.place, self._window.share_of(self._tuning.dead_letter_batch)
            )
        return self._sync(want)

    def _reclaim(self) -> Sync:
        part = self._window.budget().first_of(self._to_reclaim[: self._batch_size])
        sync = Sync(self.name, self._number + 1, 0, leases=part)
        held = frozenset(members_of(self._held()))
        self._pending_sync = PendingSync(sync, held, reclaimed=len(part))
        return sync

    def _redrive(self) -> ops.Redrive:
        part = self._window.budget().first_of(self._dead_letter_scan.readable)
        return ops.Redrive(self.name, members_of(part))

    def _sync(self, want: int) -> Sync | None:
        batch = self._load()
        returned = self._outranked_by(batch.queued)
        needed = self._needed(batch, returned)
        # Those that are leased no longer come first.
        pushes = tuple(sorted((*batch.queued, *returned), key=lambda entry: entry.member in needed))
        starts = self._starts(returned) if want else ()
        want = want if self.suspects.has_room(needed) else 0
        if not (want or pushes or batch.over or batch.outbox or starts):
            return None
        # A settle would tell of all that it leaves leased.
        takes = len(needed) - len(self.running) <= self._tuning.kept_leases
        sync = Sync(
            self.name,
            self._number + 1,
            self._window.share_of(want) if takes else 0,
            tuple(entry.in_queue for entry in batch.asked),
            pushes,
            sum(entry.member not in needed for entry in pushes),
            batch.unreadable,
            tuple(member for member in batch.over if member not in needed),
            starts,
        )
        self._pending_sync = PendingSync(sync, frozenset(needed), batch, returned)
        return sync

    def _load(self) -> SyncBatch:
        """Return what one exchange has room for."""
        budget = self._window.budget()
        new, repeats = budget.first_of(self.new), budget.first_of(self.repeats)
        unreadable = budget.first_of(self.unreadable.values())
        batch: list[OutboxItem] = []
        entries = 0
        for item in self.outbox:
            entries += isinstance(item, OutboxEntry)
            if entries > self._batch_size or not budget.takes(item):
                break
            batch.append(item)
        return SyncBatch(new, repeats, unreadable, tuple(batch))

    def _outranked_by(self, queued: Sequence[QueueEntry]) -> tuple[QueueEntry, ...]:
        """Return what is ready, if something goes before a part of it or the worker stops; else nothing.

        Of more than an exchange carries, what goes last.
        """
        last = self.ready[-1].score if self.ready else None
        is_outranked = last is not None and any(entry.score < last for entry in queued)
        return self._window.budget().first_of(reversed(self.ready)) if self.is_stopping or is_outranked else ()

    def _starts(self, returned: Sequence[QueueEntry]) -> tuple[bytes, ...]:
        """Return the suspect that the engine is to get next, if there is one."""
        first = self._first_ready() if self.needs_start else None
        return () if first is None or first in returned else (first.member,)

    def _needed(self, batch: SyncBatch, returned: Sequence[QueueEntry]) -> set[bytes]:
        """Return the members that stay leased: an equal request, which is the same member, may be over."""
        ready = (entry for entry in self.ready if entry not in returned)
        unfinished = self.finished.keys() - set(batch.finished)
        # What has to wait for the next exchange.
        later = (*self.new[len(batch.new) :], *self.repeats[len(batch.repeats) :])
        unreadable = [*self.unreadable][len(batch.unreadable) :]
        leased = (*members_of(ready), *members_of(batch.asked), *members_of(later))
        return {*leased, *self.running, *unfinished, *unreadable}

    # What became of it.

    def lose(self, operation: QueueOperation | FilterOperation) -> None:
        """Note that the reply to an operation was lost: it may have been carried out, or be carried out later."""
        if isinstance(operation, AskFilter):
            self.asked = tuple(replace(entry, is_unsure=True) for entry in self.asked)
            self._window = self._window.halved()
        elif isinstance(operation, Sync) and self._pending_sync is not None:
            self._number = operation.number
            self._in_doubt = self._pending_sync
            self.ready = tuple(entry for entry in self.ready if entry not in self._pending_sync.returned)
        elif isinstance(operation, ops.Redrive | ops.ReadDeadLetters):
            self._window = self._window.halved()

    def reply(self, operation: QueueOperation | FilterOperation, answer: Reply) -> None:
        """Note the answer to an operation."""
        if answer.status in (Status.EXPIRED, Status.LATE) and self.phase is not Phase.CLOSED:
            if isinstance(operation, ops.Leave) and operation.ending is Ending.KEEP and self.is_idle:
                # It has left before, and the reply was lost. If not, nothing of it is left to requeue or to clear.
                self.phase = Phase.GONE
            else:
                self._expire()
            return
        match operation:
            case Sync():
                self._synced(operation, answer)
            case ops.ResolveInDoubt():
                self._resolved_in_doubt(answer)
            case ops.ReadDeadLetters():
                # A request that too many workers died with is left to `scrapy bloom requeue`.
                self._dead_letter_scan = self._dead_letter_scan.read(
                    answer.entries,
                    operation.count,
                    lambda entry: entry.member not in answer.suspects and self._can_read(entry),
                )
            case ops.Redrive():
                self._dead_letter_scan = self._dead_letter_scan.redriven(len(operation.members))
            case _:
                self._enter_phase(operation, answer.status)

    def answer(self, operation: AskFilter, are_new: Sequence[bool]) -> tuple[OutboxEntry, ...]:
        """Note which entries are new to the filter, and return the others."""
        answered = list(zip(operation.entries, are_new, strict=True))
        repeats = tuple(entry for entry, is_new in answered if not is_new)
        self.asked = self.asked[len(answered) :]
        self._fingerprints.difference_update(entry.fingerprint for entry, _ in answered)
        self.new += tuple(entry for entry, is_new in answered if is_new)
        self.repeats += repeats
        return repeats

    def _enter_phase(self, operation: QueueOperation | FilterOperation, said: Status) -> None:
        match operation:
            case ops.Join():
                self._joined(said)
            case UseFilter():
                self._is_new = False
                self.phase = Phase.WORKING
            case ops.Leave():
                self.phase = Phase.CLOSING if said is Status.LAST else Phase.GONE
            case ReleaseFilter():
                # Where another queue keeps the filter, it knows what waits here: without the queue nobody fetches that.
                self._clears = self._ending is Ending.STOPPED and said is Status.OK
                self.phase = Phase.CLOSED
            case ops.EndClosing():
                # One that closed for a dead worker goes on with what it has.
                self.phase = Phase.JOINING if self._ending is None else Phase.GONE

    def _joined(self, said: Status) -> None:
        if said in REGISTERED:
            # One that ends does not keep the filter from being deleted by another that ended meanwhile.
            self.phase = Phase.JOINED if self._ending is None else Phase.LEAVING
        elif said is Status.YOURS:
            self.phase = Phase.CLOSING
        elif self._ending is not None:
            self.phase = Phase.GONE

    def _synced(self, sync: Sync, answer: Reply) -> None:
        if self._pending_sync is None:
            return
        self._number = sync.number
        if sync.leases or sync.pushes or sync.acks or answer.entries:
            self._window = self._window.grown()
        self._carry_out(self._pending_sync)
        # `again` shows all that is leased.
        self._get_ready(answer.entries)
        self.suspects = self.suspects.told(answer.suspects, members_of(self.ready))
        if sync.want and not answer.entries and self.is_idle:
            self._detect_termination(answer)
        else:
            self.may_finish, self._heartbeats_seen = False, None

    def _resolved_in_doubt(self, answer: Reply) -> None:
        if self._in_doubt is None:
            return
        plan, self._in_doubt = self._in_doubt, None
        # Also one that was carried out may have taken longer than a socket waits.
        self._window = self._window.halved()
        if answer.status is Status.DONE:
            self._carry_out(plan)
        else:
            self.ready = tuple(sorted((*self.ready, *plan.returned)))

    def _carry_out(self, plan: PendingSync) -> None:
        batch = plan.batch
        consumed = [self.outbox.popleft() for _ in batch.outbox]
        self.receipts += [item for item in consumed if isinstance(item, Receipt)]
        self.ready = tuple(entry for entry in self.ready if entry not in plan.returned)
        for member in batch.finished:
            self.finished.pop(member, None)
        for entry in batch.unreadable:
            self.unreadable.pop(entry.member, None)
        self.asked += batch.asked
        self.new, self.repeats = self.new[len(batch.new) :], self.repeats[len(batch.repeats) :]
        self._to_reclaim = self._to_reclaim[plan.reclaimed :]
        sync = plan.sync
        released = members_of(sync.pushes[: sync.released])
        self.suspects = self.suspects.ended((*sync.acks, *released)).among(members_of(self.ready))
        for member in sync.starts:
            self.suspects = self.suspects.begun(member)
        self._pending_sync = None

    def _get_ready(self, leased: Iterable[QueueEntry]) -> None:
        known = {entry.member for entry in self._held()}
        self.ready = tuple(sorted((*self.ready, *(entry for entry in leased if entry.member not in known))))

    def _detect_termination(self, answer: Reply) -> None:
        """Decide whether a worker that has nothing may end: no other has anything, and all others are alive.

        An other is alive if its value has changed since it was noted. One that is dead may hold what only it knows.
        """
        others = {name: value for name, value in (answer.workers or {}).items() if name != self.name}
        has_work = answer.waiting or answer.leased
        if has_work or answer.dead != self._dead_letter_scan.reviewed:
            self.may_finish, self._heartbeats_seen = False, None
            if not has_work:
                # Of those of other workers this one may be able to read some.
                self._dead_letter_scan = self._dead_letter_scan.begun(answer.dead)
        elif self._heartbeats_seen is None:
            self.may_finish, self._heartbeats_seen = not others, others
        else:
            self.may_finish = all(self._heartbeats_seen.get(name) != value for name, value in others.items())

    def _expire(self) -> None:
        """Begin again with what this worker has: others have taken it for dead, or Redis has lost its data.

        Nobody knows what became of the rest. Whatever the filter said of it counts no longer.
        """
        if self._in_doubt is not None:
            self.ready = tuple(sorted((*self.ready, *self._in_doubt.returned)))
        self._in_doubt = self._pending_sync = self._heartbeats_seen = None
        self._dead_letter_scan = self._dead_letter_scan.broken_off()
        self.may_finish = False
        unsure = (replace(entry, is_unsure=True) for entry in (*self.asked, *self.new, *self.repeats))
        self.asked, self.new, self.repeats = tuple(unsure), (), ()
        self.outbox = deque(
            replace(item, is_unsure=True) if isinstance(item, OutboxEntry) else item for item in self.outbox
        )
        self._to_reclaim = tuple(self._held())
        self.suspects = self.suspects.doubted()
        self.phase = Phase.JOINING

    def _held(self) -> Iterator[QueueEntry]:
        """Yield what this worker has leased, as far as it knows."""
        yield from (entry.in_queue for entry in (*self.asked, *self.new, *self.repeats))
        yield from (*self.ready, *self.running.values(), *self.finished.values(), *self.unreadable.values())
