"""One worker of a crawl: the pages of its process, and its lines to one or several queues. No I/O, no clock.

A request on its way, where each arrow through Redis is a part of one sync, which is atomic:

    offer() ─> outbox ──new──> queue ──taken──> ready ──take()──> running ──finish()──> finished ──acknowledged──> gone
                 └───seen──> dropped    │              └─ give_back() ─> requeued
                                        └─ stop() ─> requeued

Why nothing is lost:

1. Check, mark and push are one script, so "seen" means queued, leased, or done.
2. A page is acknowledged in or after the sync that offers the last link found before its end.
3. Each sync is executed once, also if its reply is lost, see `queue`.
4. REJOIN says that others have presumed this worker dead, or that the server has lost data. Then the worker lets go of
   all that it holds, forgets which links are repeats, and joins again: its leases wait again. If the join finds that
   the server has lost some of them, the worker *requeues all*: pages are fetched again rather than missed. If some of
   its calls are lost, it offers its last start requests again, to which no page leads.
5. Several queues: a request belongs to that of its fingerprint. A *round* is a reply of each queue to a call that was
   sent after the round's beginning. A page is acknowledged at the end of a round that began `SETTLING` seconds after
   the end of one that followed its links. So what a failover of one queue may have lost is still in hand when its
   REJOIN comes, which requeues the pages of all queues. The first queue decides about the crawl: it is joined, synced
   and left first.
6. The crawl is finished if an idle sync of each queue found it quiet, and each other worker has synced since; with
   several queues in two rounds, since a request may move from one to another between two calls.
7. A request that cannot be serialized is marked as any other, and run by this process. If that ends before, it is lost.
8. A *suspect* is a request that a worker has died with. A worker holds one at a time, of all queues, and acknowledges
   it as soon as its links are executed: so a death is that of the right one.
9. A worker that stops gives back requests of the engine that have not begun. They have led to no links, are requeued
   as ready ones are, and stay leased until the sync that does it. Their end in the engine acknowledges nothing.

The tests search this class together with the scripts themselves: every order, lost replies, crashes, losses of data.
"""

import math
from bisect import insort
from collections import deque
from typing import Any

from scrapy_bloom.cache import TwoGenerationCache
from scrapy_bloom.queue.keys import partition_of
from scrapy_bloom.queue.messages import (
    Call,
    Crawl,
    Entry,
    Joined,
    Offer,
    Orders,
    Others,
    Outcome,
    Page,
    Phase,
    Received,
    Rejoin,
    Synced,
)
from scrapy_bloom.queue.queue import Queue

# Seconds in which a failover may lose what a server has executed: longer than `appendfsync everysec` and the delay of
# replication.
SETTLING = 2.0
# Seconds between two rounds at least, while pages wait for one.
_ROUND_SECONDS = 1.0
# Start requests that a worker remembers.
MAX_STARTS = 10_000


class Worker:
    """One worker of a crawl.

    Args:
        queues: the lines to its queues.
        cache_size: fingerprints of repeats that are remembered.

    Attributes:
        queues: these.
        ready: requests for the engine, lowest score first, each with the index of its queue.
        running: requests in the engine.
        local: requests that cannot be serialized, by their names.
        repeats: fingerprints that a queue knows.
        is_stopping: it takes nothing more.
        may_finish: the crawl is finished.
        urgency: the lowest score on the way to a queue, infinite without any.
        dropped: how many requests that only this process could run were dropped by a stop.
    """

    def __init__(self, queues: list[Queue], cache_size: int = 100_000) -> None:
        self.queues = queues
        self.ready: list[tuple[Entry, int]] = []
        self.running: dict[bytes, Page] = {}
        self.local: dict[bytes, Any] = {}
        self.repeats: TwoGenerationCache[bytes, bool] = TwoGenerationCache(cache_size)
        self.is_stopping = self.may_finish = False
        self.urgency = math.inf
        self.dropped = 0
        self._offered: set[bytes] = set()
        self._starts: deque[Offer] = deque(maxlen=MAX_STARTS)
        self._sequence = 0
        self._suspect: bytes | None = None
        self._mode = ""
        self._must_rejoin = False
        self._rounds = _Rounds(len(queues))

    # What the process tells it.

    def is_repeat(self, fingerprint: bytes) -> bool:
        """Return whether a request is a known repeat, which the caller drops: no need to serialize it."""
        return bool(self.repeats.get(fingerprint)) or fingerprint in self._offered

    def offer(self, offer: Offer, *, is_start: bool = False) -> bool:
        """Accept a request to check and queue. No page leads to a start request.

        Returns:
            True if there is a full batch to send.
        """
        if offer.fingerprint is not None:
            self._offered.add(offer.fingerprint)
        if is_start and offer.request is None:
            self._starts.append(offer)
        queues = self.queues
        queue = queues[partition_of(offer.fingerprint or offer.member, len(queues)) if len(queues) > 1 else 0]
        queue.outbox.append((self._sequence, offer))
        self._sequence += 1
        self.urgency = min(self.urgency, offer.score)
        if self._rounds.quiet:
            self._forget_quiet()
        return queue.is_full

    def take(self) -> Entry | None:
        """Return the next request for the engine, running from now on, or None."""
        if self._must_rejoin or self.is_stopping or not self.is_joined:
            return None
        for place, (entry, index) in enumerate(self.ready):
            if entry.member not in self.running:
                del self.ready[place]
                self.running[entry.member] = Page(entry, index)
                return entry
        return None

    def finish(self, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
        """Note that the engine is done with a request, whose links were all offered."""
        page = self.running.pop(member)
        if self.local.pop(member, None) is None and not page.is_requeued:
            self.queues[page.queue].finished[member] = page._replace(outcome=outcome, end=self._sequence)

    def stop(self) -> None:
        """Take nothing more, requeue what has not begun, and drop what only this process could run."""
        self.is_stopping = True
        for entry, index in self.ready:
            self._put_back(entry, index)
        self.ready = []

    def give_back(self, member: bytes) -> None:
        """Requeue a running request that has not begun, or drop one that only this process could run.

        Its `finish`, which still comes, acknowledges nothing.
        """
        page = self.running[member]
        if not page.is_requeued:
            self._put_back(page.entry, page.queue)
            self.running[member] = page._replace(is_requeued=True)

    def _put_back(self, entry: Entry, index: int) -> None:
        if self.local.pop(entry.member, None) is None:
            self.queues[index].requeued.append(entry)
        else:
            self.dropped += 1

    def leave(self, mode: str) -> None:
        """Leave with the next calls: `finished`, `stopped`, or `keep` to keep the crawl."""
        self._mode = mode
        for queue in self.queues:
            if not queue.crawl.id:
                queue.phase = Phase.LEFT

    # State.

    @property
    def is_joined(self) -> bool:
        """True while it works in all queues."""
        return all(queue.phase is Phase.WORK for queue in self.queues)

    @property
    def has_left(self) -> bool:
        """True after the last leave."""
        return all(queue.phase is Phase.LEFT for queue in self.queues)

    @property
    def is_full(self) -> bool:
        """True if a queue has a full batch to send."""
        return any(queue.is_full for queue in self.queues)

    @property
    def is_urgent(self) -> bool:
        """True if a request on its way has a higher priority than all that are ready."""
        return bool(self.ready) and self.urgency // 1 < self.ready[0][0].score // 1

    @property
    def forgets_starts(self) -> bool:
        """True if it has had more start requests than it remembers."""
        return len(self._starts) == MAX_STARTS

    @property
    def is_idle(self) -> bool:
        """True if this worker holds nothing."""
        return not (self.ready or self.running or any(q.outbox or q.finished or q.requeued for q in self.queues))

    # Calls.

    def next_calls(self, want: int, now: float) -> list[tuple[int, Call]]:
        """Return the next calls with the indexes of their queues; all are answered or lost before the next ones.

        Args:
            want: requests wanted.
            now: seconds of a clock that never goes back.
        """
        if self._mode:
            return self._next_leaves()
        if self._must_rejoin:
            self._let_go()
        first = self.queues[0]
        if first.phase is Phase.JOIN:
            return [(0, first.next_join(Crawl()))]
        for queue in self.queues[1:]:
            if queue.crawl.id != first.crawl.id:
                queue.expire()
        if not self.is_joined:
            joining = [(i, queue) for i, queue in enumerate(self.queues) if queue.phase is not Phase.WORK]
            return [(i, queue.next_join(first.crawl if i else Crawl())) for i, queue in joining]
        return self._next_syncs(0 if self.is_stopping else want, now)

    def _next_syncs(self, want: int, now: float) -> list[tuple[int, Call]]:
        count, is_idle, calls = len(self.queues), self.is_idle, []
        waiting = [queue.news.waiting for queue in self.queues]
        is_round = self._rounds.begins(now, self._executed, wants=want > 0, waits=any(q.finished for q in self.queues))
        settled = self._rounds.settled
        if settled is not None:
            settled = self._executed if self.is_stopping else settled
            self._release_suspect()
        # The first one is to last before another one has requests: otherwise these are taken for an ended crawl's.
        is_first = count > 1 and not self.queues[0].has_synced
        for index, queue in enumerate(self.queues[:1] if is_first else self.queues):
            orders = Orders(
                -(-want // count),
                settled,
                is_idle=is_idle,
                may_suspect=self._suspect is None and index == waiting.index(max(waiting)),
                may_start=index == 0 and not any(waiting[1:]),
                must_call=is_round or is_first,
            )
            if call := queue.next_sync(orders):
                calls.append((index, call))
        return calls

    @property
    def _executed(self) -> int:
        """All offers before this number are queued or dropped."""
        return min((queue.outbox[0][0] for queue in self.queues if queue.outbox), default=self._sequence)

    def _release_suspect(self) -> None:
        """Let the suspect be acknowledged, whose links are executed."""
        for queue in self.queues:
            page = queue.finished.get(self._suspect or b"")
            if page is not None and page.end <= self._executed:
                queue.finished[page.entry.member] = page._replace(end=-1)

    def _next_leaves(self) -> list[tuple[int, Call]]:
        first, others = self.queues[0], self.queues[1:]
        losses = sum(queue.news.losses for queue in self.queues)
        if first.phase is not Phase.LEFT:
            return [(0, first.next_leave(self._mode, "", losses))]
        delete = "1" if first.is_gone else "0"
        left = [(index, queue) for index, queue in enumerate(others, 1) if queue.phase is not Phase.LEFT]
        return [(index, queue.next_leave(self._mode, delete, losses)) for index, queue in left]

    def lose(self, index: int) -> None:
        """Note that the call to a queue has no reply, and may be executed late."""
        self.queues[index].lose()
        self._forget_quiet()
        self._rounds.fail()

    # Replies.

    def receive(self, index: int, call: Call, reply: Any) -> Received:
        """Apply the reply to a call to a queue.

        Raises:
            JoinRefusedError: the queue or the filter is not this worker's.
        """
        queue, before = self.queues[index], self.queues[index].news
        found = queue.receive(call, reply)
        if queue.news[-2:] != before[-2:]:  # forgotten items, or lost shards
            self.repeats.clear()
        match found:
            case Joined():
                self._note_kept(queue, found)
            case Rejoin("stale"):
                self.queues[0].expire()
            case Rejoin(reason):
                self._must_rejoin = True
                self._forget_quiet()
                self._rounds.fail()
                return Received(rejoin=reason)
            case Synced():
                return self._receive_sync(index, found)
            case Others():
                return Received(others=found)
        return Received()

    def _note_kept(self, queue: Queue, joined: Joined) -> None:
        if joined.has_leases:
            queue.requeued.clear()
        if not joined.has_calls:
            waiting = {offer for each in self.queues for _, offer in each.outbox}
            for offer in [each for each in self._starts if each not in waiting]:
                self.offer(offer)

    def _receive_sync(self, index: int, synced: Synced) -> Received:
        queue = self.queues[index]
        self._rounds.note_reply(index)
        ended = [(queue.outbox.popleft()[1], is_new) for is_new in synced.flags]
        for offer, is_new in ended:
            self._end_offer(offer, index, is_new=is_new)
        if not any(each.outbox for each in self.queues):
            self.urgency = math.inf
        if self.is_stopping:
            queue.requeued.extend(synced.taken)
        elif synced.taken:
            self.ready = sorted((*self.ready, *((entry, index) for entry in synced.taken)))
        if self._suspect in synced.load.ended:
            self._suspect = None
        self._suspect = synced.suspect or self._suspect
        self._note_quiet(index, synced.others)
        return Received(ended, synced.others, problem=synced.problem)

    def _let_go(self) -> None:
        """Join all queues again, and requeue what this worker holds, unless the joins find that it waits already."""
        self._must_rejoin, self._suspect = False, None
        self.repeats.clear()
        for entry, index in self.ready:
            if entry.member not in self.local:
                self.queues[index].requeued.append(entry)
        self.ready = [each for each in self.ready if each[0].member in self.local]
        for member, page in self.running.items():
            if member not in self.local and not page.is_requeued:
                self.queues[page.queue].requeued.append(page.entry)
                self.running[member] = page._replace(is_requeued=True)
        for index, queue in enumerate(self.queues):
            for offer in queue.expire():
                self._end_offer(offer, index, is_new=True)

    def _end_offer(self, offer: Offer, index: int, *, is_new: bool) -> None:
        if offer.fingerprint is not None:
            self._offered.discard(offer.fingerprint)
            self.repeats.put(offer.fingerprint, True)
        if is_new and offer.request is not None and self.is_stopping:
            self.dropped += 1
        elif is_new and offer.request is not None:
            self.local[offer.member] = offer.request
            insort(self.ready, (Entry(offer.score, offer.member), index))

    def _forget_quiet(self) -> None:
        self.may_finish = False
        self._rounds.forget_quiet()

    def _note_quiet(self, index: int, others: Others | None) -> None:
        if others is None or not others.is_quiet:
            self._forget_quiet()
        elif self._rounds.note_quiet(index, others):
            self.may_finish = self.is_idle


class _Rounds:
    """The rounds of a worker over its queues.

    Attributes:
        settled: pages that end at this number of an offer at the latest are acknowledged. None with one queue: those
            whose links are executed by the same sync.
        quiet: what idle syncs have found in each quiet queue.
    """

    def __init__(self, count: int) -> None:
        self.settled: float | None = None if count == 1 else -1
        self._count = count
        self._began = -math.inf
        self._executed = 0  # all offers before this number were executed when the round began
        self._awaited: set[int] | None = None
        self._following: tuple[float, int] | None = None  # the end of an earlier round, and that number of it
        self.quiet: dict[int, Others] = {}
        self._quiet_again: set[int] = set()

    def begins(self, now: float, executed: int, *, wants: bool, waits: bool) -> bool:
        """Note the end of the last round, if all queues have answered, and return whether another one begins.

        Args:
            now: the time.
            executed: all offers before this number are executed.
            wants: requests are wanted of all queues.
            waits: pages wait for a round.
        """
        if self._awaited is not None and not self._awaited:
            self._awaited = None
            if self._following and self._began >= self._following[0] + SETTLING:
                self.settled, self._following = self._following[1], None
            self._following = self._following or (now, self._executed)
        is_due = self._count > 1 and (wants or (waits and now >= self._began + _ROUND_SECONDS))
        if is_due:
            self._began, self._executed, self._awaited = now, executed, set(range(self._count))
        return is_due

    def note_reply(self, index: int) -> None:
        """Note the reply of a queue."""
        if self._awaited is not None:
            self._awaited.discard(index)

    def fail(self) -> None:
        """Forget the round, of which a call was lost, and the one before if a queue has lost data."""
        self._awaited = self._following = None

    def note_quiet(self, index: int, others: Others) -> bool:
        """Note that a queue is quiet; return whether the crawl is finished."""
        if self._count == 1 and not others.number:
            self.quiet[index] = others
            return True
        if len(self.quiet) < self._count:
            self.quiet[index] = others
            return False
        first = self.quiet[index]
        if others.departures != first.departures:  # one that has left may have moved requests to another queue
            self.forget_quiet()
        elif not others.number or others.earliest > first.now:
            self._quiet_again.add(index)
        return len(self._quiet_again) == self._count

    def forget_quiet(self) -> None:
        """Note that the crawl is not quiet."""
        self.quiet, self._quiet_again = {}, set()
