"""The state machine of one queue worker: no I/O, no clock, no randomness.

`next_operation` returns the worker's next step; `receive_reply`, `receive_filter_reply`, `doubt` and
`lose_reply` report its outcome. One operation is under way at a time. The phases:

    JOINING ─Join─> JOINED ─UseFilter─> WORKING ─leave()─> LEAVING ─Leave: left─> GONE
     │ ^ ^                                 │                │   │                  ^
     │ │ └─ expired or late, in any phase ─┴────────────────┘   │ Leave: last      │
     │ │    but CLOSED                                          v                  │
     └─│────────────── Join: yours, to close for a dead one ─> CLOSING             │
       │                                                        │ ReleaseFilter    │
       └─ EndClosing, and not leaving ───────────────────────── CLOSED ─EndClosing─┘

A worker that completes a flush is FLUSHING instead of CLOSING: ClearFilter deletes the filter, which
knows the deleted requests, also if other queues use it.

`leave()` works in every phase before CLOSING or FLUSHING. A leaving worker whose registration
expired rejoins, so that its leases are requeued, and leaves then; an idle worker with nothing to
clear is GONE.

A request in one worker, by the fields of `WorkerState`; one `Sync` does all of its steps
atomically:

    offer() ─> outbox ─lease─> to_check ─AskFilter─> new ─push─> the queue
                                             └─> repeats ─acknowledge─> done
    the queue ─take─> ready ─take()─> running ─finish()─> finished ─acknowledge─> done
                        └─push back      └─dead_letter()─> unreadable ─> a dead letter

The promises; `tests/support/queue_promises.py` checks them by these numbers in every state of every
search:

    S1  No request is lost: it is fetched, in Redis, or held by its worker. Requests that only Redis
        had when Redis lost its data are exempt.
    S2  A queue is cleared only when no request waits or is leased, or when a user stops the crawl.
    S3  A finished crawl leaves no filter, no registration and no dead worker behind.
    S4  From every state all workers can leave.
    S5  Without a fault, each page is fetched once.
    S6  A filter is not cleared while another queue uses it, except by a flush.
    S7  If a queue is lost, a worker reports the loss.
    S8  A request becomes a dead letter only for the death of a worker that had started it and
        nothing else.
    S9  A failed request is new to the filter again, in Redis, or held by its worker.

Why they hold:

*   Lease before acting. The filter is asked only for leased entries, and the engine runs only
    leased entries. A crash leaves every request in Redis, where another worker requeues it (S1).
*   Acknowledge after the children. `finish` appends a marker behind a request's children, and a
    sync that carries the marker leases the children first (S1). Equal requests are one member:
    `leased_after` keeps the lease while any copy needs it.
*   In doubt, resolve. Syncs are numbered, and the script executes each number once. After a lost
    reply the worker sends only `ResolveInDoubt`: the sync was executed, or its number becomes void,
    so that a late packet has no effect. Entries that the sync took go back to the queue, since
    their worker never saw them (S1, S5).
*   A failed check may have marked items without a reply. `doubt` makes all entries of these items
    `is_unsure`: the filter may know them from this very worker, so "seen" no longer counts, and a
    page may be fetched twice (S1 before S5). For the rest of the batch "seen" still counts. Once one
    of the entries is new, this worker holds it, and "seen" counts again for others of the same item.
*   A worker whose registration expired keeps everything that it holds, leases it again
    (`to_reclaim`) and distrusts earlier replies of the filter, which may have been cleared
    meanwhile (S1).
*   An idle worker finishes only after a heartbeat of every other worker: a dead one may hold
    requests that no worker has requeued yet (S2, S3). The last worker stays registered while it
    clears, so that no worker joins in between, and another worker completes the closing if it dies
    (S3, S4). The mark of a flush stays with the closing, and the worker that completes it clears
    the filter under all references: a filter that stays would call the deleted requests seen (S1).
*   The filter has a reference for each queue that uses it (S6). If the filter is replaced, as by a
    flush, each worker that uses the new one adds its queue's reference again, before its first
    check. The audit in Redis counts the waiting requests, so that a reply reports a queue that
    vanished (S7).
*   A request that a worker has died with is started in Redis before it runs: `queue.worker_state`
    (S8).
*   Forget before acknowledging. A request fails while it runs, before its marker is in the outbox,
    and no sync of new entries or acknowledgements goes before a `ForgetFailed`. A lost one is sent
    again: at worst the request is new once more (S9).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from itertools import chain

from scrapy_bloom._runtime import TUNING, Tuning
from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.entries import AdaptiveWindow, Finished, OutboxEntry, QueueEntry, Receipt, members_of
from scrapy_bloom.queue.operations import (
    REGISTERED,
    AskFilter,
    ClearFilter,
    Ending,
    FilterOperation,
    ForgetFailed,
    QueueOperation,
    ReleaseFilter,
    Reply,
    Status,
    Sync,
    UseFilter,
)
from scrapy_bloom.queue.worker_state import PendingSync, Phase, Suspects, WorkerState

# The phase of a worker that is to complete a closing, its own or a dead worker's.
_TO_COMPLETE = {Status.YOURS: Phase.CLOSING, Status.LAST: Phase.CLOSING, Status.FLUSHED: Phase.FLUSHING}


class QueueWorker:
    """One worker of a queue.

    Args:
        name: the worker's name in the registration.
        lease_seconds: the lease, as Redis stores it: a decimal number in text.
        batch_size: requests that one sync leases at most.
        can_read: returns whether a dead letter can be deserialized here.
        spider: the name of the worker's spider, or "".
        tuning: further sizes.
        max_deliveries: deaths of workers that make a request a dead letter; 0 is no bound.
    """

    def __init__(
        self,
        name: str,
        lease_seconds: str,
        batch_size: int,
        can_read: Callable[[QueueEntry], bool] = lambda _: False,
        *,
        spider: str = "",
        tuning: Tuning = TUNING,
        max_deliveries: int = 0,
    ) -> None:
        window = AdaptiveWindow(tuning.sync_bytes, tuning.sync_bytes)
        self.state = WorkerState(window=window, suspects=Suspects(max_deliveries))
        self.name = name
        self._lease_seconds = lease_seconds
        self._spider = spider
        self._batch_size = batch_size
        self._tuning = tuning
        self._can_read = can_read

    @property
    def phase(self) -> Phase:
        """The worker's phase."""
        return self.state.phase

    # Events of the process.

    def offer(self, entry: OutboxEntry) -> None:
        """Accept an entry to check and queue."""
        state = self.state
        state.outbox.append(entry)
        state.may_finish = False
        if entry.fingerprint is not None:
            state.fingerprints.add(entry.fingerprint)

    def has_offered(self, fingerprint: bytes) -> bool:
        """Return whether an entry with this fingerprint awaits the filter."""
        return fingerprint in self.state.fingerprints

    def ask_for_receipt(self, call: Callable[[], object]) -> None:
        """Request a receipt, due when all entries offered so far are leased or queued."""
        self.state.outbox.append(Receipt(call))

    def take_receipts(self) -> list[Receipt]:
        """Return the receipts that are due, each once."""
        due, self.state.receipts = self.state.receipts, []
        return due

    def take(self) -> QueueEntry | None:
        """Return the next entry for the engine, running from now on, or None.

        A suspect must have been started in Redis, and some suspects run alone (S8).
        """
        state = self.state
        first = self.first_ready()
        if first is None or first.member in state.suspects.waiting:
            return None
        state.ready = tuple(entry for entry in state.ready if entry is not first)
        state.running[first.member] = first
        return first

    @property
    def can_take(self) -> bool:
        """True if `take` returns an entry."""
        first = self.first_ready()
        return first is not None and first.member not in self.state.suspects.waiting

    @property
    def needs_start(self) -> bool:
        """True if the next entry for the engine is a suspect that the next sync may start."""
        first = self.first_ready()
        return first is not None and first.member in self.state.suspects.waiting and not self.state.is_stopping

    def first_ready(self) -> QueueEntry | None:
        """Return the ready entry that the engine gets next, or None if all have to wait."""
        state = self.state
        # A finished request stays leased until its acknowledgement: if this worker dies, another
        # one runs it again. So it counts as busy.
        is_busy = bool(state.running or state.finished or state.unreadable)
        held = (entry.member for entry in state.held())
        return state.suspects.first_of(state.ready, held, is_busy=is_busy)

    def finish(self, member: bytes) -> None:
        """Note that the engine is done with a request whose children were all offered."""
        state = self.state
        state.finished[member] = state.running.pop(member)
        state.outbox.append(Finished(member))

    def forget(self, fingerprints: Iterable[bytes]) -> None:
        """Have the filter forget requests that failed, before any of them is finished."""
        self.state.to_forget += tuple(fingerprints)

    def dead_letter(self, member: bytes) -> None:
        """Note that a running entry cannot be deserialized."""
        self.state.unreadable[member] = self.state.running.pop(member)

    def stop(self) -> None:
        """Take no further requests, and return the ready ones to the queue."""
        self.state.is_stopping = True
        self.state.may_finish = False

    def leave(self, ending: Ending) -> None:
        """Leave the queue from the next operation on, after a closing in progress."""
        self.state.ending = ending
        if self.state.phase not in (Phase.CLOSING, Phase.FLUSHING, Phase.CLOSED):
            self.state.phase = Phase.LEAVING

    @property
    def is_leaving(self) -> bool:
        """True if this worker leaves the queue, or has left it."""
        return self.state.ending is not None

    @property
    def is_idle(self) -> bool:
        """True if this worker holds nothing."""
        state = self.state
        is_holding = any(True for _ in state.held())
        is_behind = state.outbox or state.to_forget or state.in_doubt or state.dead_letter_scan.readable
        return not (is_holding or is_behind)

    @property
    def has_news(self) -> bool:
        """True if the queue or the filter is to be informed of something."""
        state = self.state
        news = state.outbox or state.to_check or state.new or state.repeats or state.unreadable or state.to_reclaim
        is_behind = state.to_forget or state.in_doubt or state.phase is not Phase.WORKING
        return bool(news or is_behind or (state.is_stopping and state.ready))

    @property
    def is_urgent(self) -> bool:
        """True if a batch is full, or if an unqueued entry goes before the ready ones."""
        state = self.state
        if not state.ready or len(state.outbox) >= self._batch_size:
            return len(state.outbox) >= self._batch_size
        first = state.ready[0].score
        return any(item.score < first for item in chain(state.outbox, state.to_check, state.new))

    def undelivered(self) -> list[OutboxEntry]:
        """Return all entries that are not known to be queued or leased."""
        state = self.state
        waiting = [item for item in state.outbox if isinstance(item, OutboxEntry)]
        to_check = {entry.member for entry in state.to_check}
        others = (entry for entry in state.to_reclaim if entry.member not in to_check)
        # The filter knows the new entries from this worker.
        new = (replace(entry, is_unsure=True) for entry in state.new)
        return [*state.to_check, *new, *waiting, *(OutboxEntry(entry.member, entry.score, None) for entry in others)]

    # The next operation.

    def next_operation(self, want: int = 0) -> QueueOperation | FilterOperation | None:
        """Return the next operation, or None if there is no news and nothing is wanted.

        Args:
            want: entries to take from the queue at most.
        """
        state = self.state
        if state.phase is Phase.WORKING:
            return self._next_while_working(0 if state.is_stopping else want)
        operations: dict[Phase, QueueOperation | FilterOperation | None] = {
            Phase.JOINING: ops.Join(self.name, self._lease_seconds, state.number, state.is_new, self._spider),
            Phase.JOINED: UseFilter(),
            Phase.LEAVING: ops.Leave(self.name, state.number, state.ending or Ending.KEEP),
            Phase.CLOSING: ReleaseFilter(),
            Phase.FLUSHING: ClearFilter(),
            Phase.CLOSED: ops.EndClosing(self.name, state.clears),
        }
        return operations.get(state.phase)

    def _next_while_working(self, want: int) -> QueueOperation | FilterOperation | None:
        state = self.state
        if state.in_doubt is not None:
            kept = ops.digests(state.in_doubt.kept) if state.in_doubt.sync.want else None
            return ops.ResolveInDoubt(self.name, state.number, kept)
        if state.to_reclaim:
            return self._reclaim()
        size = state.window.share_of(self._batch_size)
        if state.to_forget or state.to_check:
            return ForgetFailed(state.to_forget[:size]) if state.to_forget else AskFilter(state.to_check[:size])
        scan = state.dead_letter_scan
        if scan.readable:
            return ops.Redrive(self.name, members_of(state.window.budget().first_of(scan.readable)))
        if scan.place is not None and want and self.is_idle:
            return ops.ReadDeadLetters(self.name, scan.place, state.window.share_of(self._tuning.dead_letter_batch))
        return self._sync(want)

    def _reclaim(self) -> Sync:
        state = self.state
        part = state.window.budget().first_of(state.to_reclaim[: self._batch_size])
        sync = Sync(self.name, state.number + 1, 0, leases=part)
        state.pending_sync = PendingSync(sync, frozenset(members_of(state.held())), reclaimed=len(part))
        return sync

    def _sync(self, want: int) -> Sync | None:
        state = self.state
        batch = state.next_batch(self._batch_size)
        returned = state.outranked_by(batch.queued)
        leased = state.leased_after(batch, returned)
        # The script ends the leases of the first pushes only, so these come first.
        pushes = tuple(sorted((*batch.queued, *returned), key=lambda entry: entry.member in leased))
        first = self.first_ready() if want and self.needs_start else None
        starts = () if first is None or first in returned else (first.member,)
        want = want if state.suspects.has_room(leased) else 0
        if not (want or pushes or batch.acknowledged or batch.outbox or starts):
            return None
        # If its reply is lost, a sync that takes entries must list every lease that it leaves.
        may_take = len(leased) - len(state.running) <= self._tuning.kept_leases
        sync = Sync(
            self.name,
            state.number + 1,
            state.window.share_of(want) if may_take else 0,
            tuple(entry.in_queue for entry in batch.to_lease),
            pushes,
            len([entry for entry in pushes if entry.member not in leased]),
            batch.unreadable,
            tuple(member for member in batch.acknowledged if member not in leased),
            starts,
        )
        state.pending_sync = PendingSync(sync, frozenset(leased), batch, returned)
        return sync

    # Outcomes.

    def lose_reply(self, operation: QueueOperation | FilterOperation) -> None:
        """Note a lost reply: the operation was executed, will be executed later, or never.

        Other operations than these are simply sent again.
        """
        state = self.state
        if isinstance(operation, AskFilter):
            # `doubt` gets the items that the check may have marked.
            state.window = state.window.halved()
        elif isinstance(operation, Sync) and state.pending_sync is not None:
            state.number = operation.number
            state.in_doubt, state.pending_sync = state.pending_sync, None
            state.ready = tuple(entry for entry in state.ready if entry not in state.in_doubt.returned)
        elif isinstance(operation, ForgetFailed | ops.Redrive | ops.ReadDeadLetters):
            state.window = state.window.halved()

    def receive_reply(self, operation: QueueOperation | FilterOperation, reply: Reply) -> None:
        """Apply the reply to an operation."""
        state = self.state
        if reply.status in (Status.EXPIRED, Status.LATE) and state.phase is not Phase.CLOSED:
            if isinstance(operation, ops.Leave) and operation.ending is Ending.KEEP and self.is_idle:
                # An earlier attempt has left, or there is nothing to requeue or clear.
                state.phase = Phase.GONE
            else:
                self._expire()
            return
        match operation:
            case Sync():
                self._synced(operation, reply)
            case ops.ResolveInDoubt():
                self._resolved(reply)
            case ops.ReadDeadLetters():
                # Requests that too many workers died with are left to `scrapy bloom requeue`.
                state.dead_letter_scan = state.dead_letter_scan.read(
                    reply.entries,
                    operation.count,
                    lambda entry: entry.member not in reply.suspects and self._can_read(entry),
                )
            case ForgetFailed():
                state.to_forget = state.to_forget[len(operation.fingerprints) :]
            case ops.Redrive():
                state.dead_letter_scan = state.dead_letter_scan.redriven(len(operation.members))
            case _:
                self._enter_phase(operation, reply.status)

    def receive_filter_reply(self, operation: AskFilter, are_new: Sequence[bool]) -> tuple[OutboxEntry, ...]:
        """Apply the filter's reply, and return the repeats."""
        state = self.state
        answered = list(zip(operation.entries, are_new, strict=True))
        repeats = tuple(entry for entry, is_new in answered if not is_new)
        state.to_check = state.to_check[len(answered) :]
        state.fingerprints.difference_update(entry.fingerprint for entry, _ in answered)
        state.new += tuple(entry for entry, is_new in answered if is_new)
        state.repeats += repeats
        # This worker holds a new entry of each of these items.
        self._set_unsure({entry.fingerprint for entry, is_new in answered if is_new and entry.is_unsure}, False)
        return repeats

    def doubt(self, fingerprints: Set[bytes]) -> None:
        """Distrust the filter about these items: a check that failed may have marked them."""
        self._set_unsure(fingerprints, True)

    def _set_unsure(self, fingerprints: Set[bytes | None], is_unsure: bool) -> None:
        """Set `is_unsure` of all entries of these items that the filter has not checked yet."""
        state = self.state

        def changed(item: OutboxEntry) -> OutboxEntry:
            return replace(item, is_unsure=is_unsure) if item.fingerprint in fingerprints else item

        if fingerprints:
            state.to_check = tuple(map(changed, state.to_check))
            state.outbox = deque(changed(item) if isinstance(item, OutboxEntry) else item for item in state.outbox)

    def _enter_phase(self, operation: QueueOperation | FilterOperation, status: Status) -> None:
        state = self.state
        match operation:
            case ops.Join() if status in REGISTERED:
                # A leaving worker takes no reference: the filter may be deleted already.
                state.phase = Phase.LEAVING if self.is_leaving else Phase.JOINED
            case ops.Join() | ops.Leave() if status in _TO_COMPLETE:
                state.phase = _TO_COMPLETE[status]
            case ops.Join() if self.is_leaving:
                state.phase = Phase.GONE
            case UseFilter():
                state.is_new = False
                state.phase = Phase.WORKING
            case ops.Leave():
                state.phase = Phase.GONE
            case ReleaseFilter() | ClearFilter():
                # A filter that another queue keeps knows these requests: nothing would fetch them.
                state.clears = state.ending is Ending.STOPPED and status is Status.OK
                state.phase = Phase.CLOSED
            case ops.EndClosing():
                state.phase = Phase.GONE if self.is_leaving else Phase.JOINING

    def _synced(self, sync: Sync, reply: Reply) -> None:
        state = self.state
        if state.pending_sync is None:
            return
        state.number = sync.number
        if sync.leases or sync.pushes or sync.acks or reply.entries:
            state.window = state.window.grown()
        self._apply(state.pending_sync)
        # A reply `again` lists all leases, of which most are known.
        known = {entry.member for entry in state.held()}
        taken = (entry for entry in reply.entries if entry.member not in known)
        state.ready = tuple(sorted((*state.ready, *taken)))
        state.suspects = state.suspects.counted(reply.suspects, members_of(state.ready))
        if sync.want and not reply.entries and self.is_idle:
            self._detect_termination(reply)
        else:
            state.may_finish, state.heartbeats_seen = False, None

    def _resolved(self, reply: Reply) -> None:
        state = self.state
        if state.in_doubt is None:
            return
        pending, state.in_doubt = state.in_doubt, None
        # Even an executed sync was too slow for the socket timeout.
        state.window = state.window.halved()
        if reply.status is Status.DONE:
            self._apply(pending)
        else:
            state.ready = tuple(sorted((*state.ready, *pending.returned)))

    def _apply(self, pending: PendingSync) -> None:
        """Apply an executed sync to the state."""
        state, batch, sync = self.state, pending.batch, pending.sync
        for _ in batch.outbox:
            item = state.outbox.popleft()
            if isinstance(item, Receipt):
                state.receipts.append(item)
        state.ready = tuple(entry for entry in state.ready if entry not in pending.returned)
        for member in batch.finished:
            state.finished.pop(member, None)
        for entry in batch.unreadable:
            state.unreadable.pop(entry.member, None)
        state.to_check += batch.to_lease
        state.new, state.repeats = state.new[len(batch.new) :], state.repeats[len(batch.repeats) :]
        state.to_reclaim = state.to_reclaim[pending.reclaimed :]
        released = members_of(sync.pushes[: sync.released])
        state.suspects = state.suspects.ended((*sync.acks, *released)).among(members_of(state.ready))
        for member in sync.starts:
            state.suspects = state.suspects.begun(member)
        state.pending_sync = None

    def _detect_termination(self, reply: Reply) -> None:
        """Let this idle worker finish if no work is left and all others are alive.

        Another worker is alive if its registration has changed since the first such reply; a dead
        one may still hold requests (S2).
        """
        state = self.state
        others = {name: value for name, value in (reply.workers or {}).items() if name != self.name}
        has_work = reply.waiting or reply.leased
        if has_work or reply.dead != state.dead_letter_scan.reviewed:
            state.may_finish, state.heartbeats_seen = False, None
            if not has_work:
                # This worker may be able to read dead letters of the others.
                state.dead_letter_scan = state.dead_letter_scan.begun(reply.dead)
        elif state.heartbeats_seen is None:
            state.may_finish, state.heartbeats_seen = not others, others
        else:
            state.may_finish = all(state.heartbeats_seen.get(name) != value for name, value in others.items())

    def _expire(self) -> None:
        """Rejoin with the held entries after a presumed death, or a loss of Redis's data.

        The fate of a sync in doubt stays unknown, and earlier replies of the filter count no more.
        """
        state = self.state
        if state.in_doubt is not None:
            state.ready = tuple(sorted((*state.ready, *state.in_doubt.returned)))
        state.in_doubt = state.pending_sync = state.heartbeats_seen = None
        state.dead_letter_scan = state.dead_letter_scan.broken_off()
        state.may_finish = False
        unsure = (replace(entry, is_unsure=True) for entry in (*state.to_check, *state.new, *state.repeats))
        state.to_check, state.new, state.repeats = tuple(unsure), (), ()
        state.outbox = deque(
            replace(item, is_unsure=True) if isinstance(item, OutboxEntry) else item for item in state.outbox
        )
        state.to_reclaim = tuple(state.held())
        state.suspects = state.suspects.doubted()
        state.phase = Phase.JOINING
