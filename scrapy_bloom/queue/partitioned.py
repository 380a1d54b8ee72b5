"""One worker of a crawl in several partitions: each has a `Worker`, and this class has the rules between them.

A request belongs to the partition of its fingerprint. Each call is atomic in its partition. A *round* is a call in each
partition that is due; all replies of a round are received before the next one.

1. A page is acknowledged in its partition when all partitions have executed the links that it yielded. So its end is
   told to its own `Worker` only then.
2. A partition that has lost data taints the pages of all partitions that relied on it. While it is silent, or is to be
   joined again, none of these is acknowledged: its reply decides. After a loss in one partition the others must answer
   first, too, since they may have gone back with it. Links of pages that were acknowledged before the worker noticed it
   may be lost, which is reported.
3. The first partition has the crawl's id, and each call carries it. After EXPIRED another partition is joined again
   when the first one has confirmed its id. A new id there ends the work in all others.
4. Finished: two rounds of idle exchanges found every partition quiet, and unchanged between its two visits. All first
   visits were before all second ones, so there was a moment at which all partitions were quiet.
5. The first partition is left first, and decides whether the crawl is deleted. Partitions that a killed worker leaves
   behind are cleared by the next join, or are its crawl, if requests wait there.
6. A suspect starts if no other partition's has started, and on its last delivery it runs alone.
7. An acknowledgement stores its *reliance*, the worker's stamps in all partitions. A worker that joins, or is about to
   finish, has each partition compare: an unknown stamp shows a loss of data, perhaps while no worker ran.
8. Local requests wait for each other, and the pages that may have led to them, across partitions.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from scrapy_bloom.queue.keys import partition_of
from scrapy_bloom.queue.values import Entry, IndexedCall, Offer, Orders, Outcome, Page, Phase, Trouble
from scrapy_bloom.queue.worker import Worker

_LOSSES = {Trouble.LOST, Trouble.FLUSHED, Trouble.ROLLED_BACK, Trouble.FILTER_LOST}
# The end of a page, or a callback of `call_when_queued`.
Waiting = tuple[bytes, Outcome] | Callable[[], object]


class PartitionedWorker:
    """A worker over partitions, with the methods of `Worker`.

    Args:
        parts: a worker for each partition, all with one name.
    """

    def __init__(self, parts: list[Worker]) -> None:
        self.parts = parts
        for part in parts:
            part.partitions = len(parts)
        self.name = parts[0].name
        self.is_stopping = False
        # The counts of links in each partition at the beginning of a page.
        self._began: dict[bytes, list[tuple[int, int]]] = {}
        self._acknowledged: dict[int, tuple[bytes, ...]] = {}  # pages in the call under way of a partition
        # Ends of pages and callbacks. They wait for the offers before these numbers of the partitions, which only grow;
        # or for local requests.
        self._waiting: deque[tuple[list[int], Waiting]] = deque()
        self._unsettled: list[Waiting] = []
        self._due: list[Callable[[], object]] = []
        self._is_settling = False
        self._ends: list[int] = []  # the sequence numbers of the next offers, while a local request was left
        self._to_confirm: set[int] = set()  # partitions that wait for an answer of the first one
        self._asked: frozenset[int] = frozenset()  # these at the beginning of the round
        # Partitions whose last call has no reply, and all others after a loss: each round calls them until they answer.
        self._silent: set[int] = set()
        self._visits: set[int] = set()  # partitions of a round over all of them, whose replies are awaited
        self._quiet: list[int | None] = []  # the findings of the last such round
        self._is_quiet = self._has_compared = False
        self._leaves_as = ""

    # Events of the process.

    def offer(self, offer: Offer, *, is_start: bool = False) -> bool:
        """See `Worker.offer`."""
        self._forget_quiet()
        is_accepted = self._part_of(offer.fingerprint or offer.member).offer(offer, is_start=is_start)
        if is_accepted and offer.request is not None:
            self._settle()
        return is_accepted

    def is_repeat(self, fingerprint: bytes) -> bool:
        """See `Worker.is_repeat`."""
        return self._part_of(fingerprint).is_repeat(fingerprint)

    def _part_of(self, item: bytes) -> Worker:
        return self.parts[partition_of(item, len(self.parts))]

    def take(self) -> Entry | None:
        """Return the next request for the engine, running from now on, or None. Local ones come first."""
        chosen = [part for part in self.parts if part.local_ready]
        if not (chosen or self.is_held_back):
            chosen = sorted((part for part in self.parts if part.ready), key=lambda part: part.next_score)
            if any(part.is_last_chance for part in self.parts):  # nothing begins but a suspect that has started
                chosen = [part for part in chosen if part.runs_suspect and not self._must_wait(part)]
        for part in chosen:
            entry = part.take()
            if entry is not None:
                self._began[entry.member] = [each.counts for each in self.parts]
                self._has_compared = False
                return entry
        return None

    def _must_wait(self, part: Worker) -> bool:
        """Return whether a partition's suspect, on its last delivery, waits for the requests of others."""
        return part.is_last_chance and any(other.running for other in self.parts if other is not part)

    def finish(self, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
        """Note that the engine is done with a request, whose links were all offered."""
        part = self._part_that_runs(member)
        if member in part.local:
            self._settle()
            part.finish(member, outcome)
            self._began.pop(member, None)
            self._settle()
        else:
            self._wait((member, outcome))

    def _part_that_runs(self, member: bytes) -> Worker:
        return next(part for part in self.parts if member in part.running)

    def queue_again(self, kept: Iterable[Offer], index: int) -> None:
        """Queue requests again that failed in an earlier run in this partition, unless another worker has."""
        self.parts[index].queue_again(kept)

    def call_when_queued(self, callback: Callable[[], object]) -> None:
        """See `Worker.call_when_queued`."""
        self._wait(callback)

    def take_receipts(self) -> list[Callable[[], object]]:
        """Return the callbacks that are due, each once."""
        due, self._due = self._due, []
        return due

    def stop(self) -> None:
        """Take nothing more, and return the requests that have not begun."""
        self.is_stopping = True
        forgotten = self._forgotten
        for part in self.parts:
            part.stop()
        self._forget_local(forgotten)

    def leave(self, mode: str) -> None:
        """Leave with the next calls: `finished`, `stopped`, or `keep` to keep the crawl."""
        self._leaves_as = mode
        self.parts[0].leave(mode)

    # State.

    @property
    def phase(self) -> Phase:
        """The phase of all partitions, or `JOIN`."""
        phases = {part.phase for part in self.parts}
        return phases.pop() if len(phases) == 1 else Phase.JOIN

    @property
    def run(self) -> bytes:
        """The run, which the first partition decides."""
        return self.parts[0].run

    @property
    def may_finish(self) -> bool:
        """True if the crawl is finished."""
        is_compared = not any(part.claims for part in self.parts)
        return self._is_quiet and is_compared and self.parts[0].may_finish and self.is_idle

    @property
    def is_idle(self) -> bool:
        """True if this worker holds nothing."""
        return all(part.is_idle for part in self.parts)

    @property
    def is_deleted(self) -> bool:
        """True if this worker has left, and the crawl is deleted."""
        return self.parts[0].is_deleted

    @property
    def waiting(self) -> int:
        """Requests that wait, after the last reply of each partition."""
        return sum(part.waiting for part in self.parts)

    @property
    def pending(self) -> int:
        """Requests in the queue and in this process that wait for the engine."""
        return sum(part.pending for part in self.parts)

    @property
    def is_full(self) -> bool:
        """True if a partition has a full batch to send."""
        return any(part.is_full for part in self.parts)

    @property
    def prospects(self) -> int:
        """How much the next exchanges may bring, see `Worker.prospects`."""
        return sum(part.prospects for part in self.parts)

    @property
    def urgency(self) -> float:
        """The lowest score of these."""
        return min(part.urgency for part in self.parts)

    @property
    def next_score(self) -> float:
        """The lowest score of the requests taken ahead that may begin, infinite without any."""
        return min(part.next_score for part in self.parts)

    @property
    def has_room(self) -> bool:
        """False while start() must wait, which could offer more without an end."""
        return all(part.has_room for part in self.parts) and not self.is_held_back

    @property
    def is_held_back(self) -> bool:
        """True if only local requests begin, see `Worker.is_held_back`."""
        if not self._is_settling:
            return False
        ended = len(self._unsettled) + sum(len(part.finished) for part in self.parts)
        return ended >= self.parts[0].batch or any(part.has_waiting_suspect for part in self.parts)

    def local_request(self, member: bytes) -> Any:
        """Return a local request by its name in this process, or None."""
        return next((part.local[member].request for part in self.parts if member in part.local), None)

    # Calls.

    def next_calls(self, want: int, flush: Collection[int] | None = None) -> list[IndexedCall]:
        """Return the next round: calls with the indexes of their partitions.

        Args:
            want: requests wanted.
            flush: the partitions whose news are sent, by default all; besides full batches, and the news of partitions
                that are asked for requests.
        """
        if self._leaves_as:
            return self._next_leaves()
        wishes, calls = self._wishes(want), []
        first, is_waiting_for_first = self.parts[0], self.parts[0].phase is Phase.JOIN
        unsure, busy = self._unsure(), [part for part in self.parts if not part.is_idle]
        stamps = [part.stamp if part.crawl == first.crawl else 0 for part in self.parts]
        relied = first.crawl + b"".join(b",%d" % stamp for stamp in stamps)
        may_start = not (self._is_settling or any(part.runs_suspect for part in self.parts))
        for index, part in enumerate(self.parts):
            if index and (is_waiting_for_first or index in self._to_confirm):
                continue
            wish = wishes.get(index, 0)
            must_call = index in self._silent or (not index and bool(self._to_confirm))
            is_asked = wish or flush is None or index in flush or must_call
            is_due = is_asked or part.is_full or part.phase is not Phase.WORK
            if not (is_due or part.has_waiting_suspect):
                continue
            part.orders = Orders(
                (first.crawl, first.run, first.origin, b"1" if part.is_stale else b"") if index else Orders().crawl,
                unsure,
                must_call=must_call,
                is_settling=self._is_settling,
                may_start=may_start and not self._must_wait(part),
                is_idle=not busy or busy == [part],
                relied=relied,
            )
            may_start = may_start and not part.needs_start
            if (is_due or part.needs_start) and (call := part.next_call(wish)):
                calls.append((index, call))
                self._acknowledged[index] = call.ended
        self._asked = frozenset(self._to_confirm)
        calls.reverse()  # the reply of the first partition may end the work in the others: it comes last
        if len(calls) == len(self.parts):
            self._visits = set(range(len(self.parts)))
        return calls

    def _wishes(self, want: int) -> dict[int, int]:
        """Return how many requests are wanted of each partition: of the one with the most prospects, or else of all.

        So all queues become equally long, and each exchange takes many.

        While a partition is silent the engine gets nothing, so nothing is wanted.
        """
        count = len(self.parts)
        if not want or self._silent:
            return {}
        if self.urgency < self.next_score < math.inf:
            urgent = min(range(count), key=lambda index: self.parts[index].urgency)
            return {urgent: want}
        best = max(range(count), key=lambda index: self.parts[index].prospects)
        if self.parts[best].prospects:
            return {best: want}
        return dict.fromkeys(range(count), max(1, want // count))

    def _unsure(self) -> frozenset[bytes]:
        """Return the pages that rely on a partition which is silent, or is to be joined again."""
        joining = (index for index, part in enumerate(self.parts) if part.phase not in (Phase.WORK, Phase.LEFT))
        doubtful = self._silent.union(joining)
        if not doubtful:
            return frozenset()
        pages = [page for part in self.parts for page in part.finished.values()]
        return frozenset(p.entry.member for p in pages for index in doubtful if self._relies_on(index, p, is_all=True))

    def _next_leaves(self) -> list[IndexedCall]:
        first = self.parts[0]
        if first.phase is Phase.LEFT:
            is_ended = first.is_deleted or (first.is_gone and self._leaves_as == "finished")
            for part in self.parts[1:]:
                part.leave(self._leaves_as, "1" if is_ended else "0")
        leaving = self.parts[1:] if first.phase is Phase.LEFT else [first]
        calls = ((self.parts.index(part), part.next_call(0)) for part in leaving)
        return [(index, call) for index, call in calls if call]

    def lose(self, index: int) -> None:
        """Note that the call under way in a partition has no reply, and may be executed late."""
        self.parts[index].lose()
        self._silent.add(index)
        self._forget_quiet()

    # Replies.

    def receive(self, reply: Any, index: int) -> list[tuple[Offer, bool]]:
        """Apply the reply of a partition, see `Worker.receive`."""
        part, forgotten = self.parts[index], self._forgotten
        self._silent.discard(index)
        before, troubles = part.phase, len(part.troubles)
        ended = part.receive(reply)
        for member in self._acknowledged.pop(index, ()):
            if member not in part.finished:
                self._began.pop(member, None)
        self._forget_local(forgotten)
        for trouble in part.troubles[troubles:]:
            self._note_trouble(index, trouble)
        if index == 0:
            if part.phase is not Phase.JOIN and before is not Phase.ALLOCATE:  # that names no crawl
                self._note_first(part)
        elif part.is_stale or (before is not Phase.JOIN and part.phase is Phase.JOIN):
            self._to_confirm.add(index)
        elif part.phase is not Phase.JOIN and part.crawl != self.parts[0].crawl:  # meanwhile that has another id
            part.expire()
        self._compare(part)
        self._go_on()
        self._note_visit(index)
        return ended

    def _note_first(self, first: Worker) -> None:
        """Note the crawl's id in the first partition, and end the work for another id in the others."""
        self._to_confirm -= self._asked
        for part in self.parts[1:]:
            if part.crawl and part.crawl != first.crawl:
                part.is_stale = False
                if part.phase is not Phase.LEFT:
                    part.expire()

    def _note_visit(self, index: int) -> None:
        """After two quiet rounds without a change between them, the crawl is quiet."""
        if index not in self._visits:
            return
        self._visits.discard(index)
        if self._visits:
            return
        found = [part.quiet for part in self.parts]
        self._is_quiet = None not in found and found == self._quiet
        self._quiet = found
        if self._is_quiet and not self._has_compared:  # the replies to the joins have the reliances
            self._has_compared = True
            for part in self.parts:
                part.expire()
            self._forget_quiet()

    def _forget_quiet(self) -> None:
        self._is_quiet, self._quiet, self._visits = False, [], set()

    # Losses.

    def _relies_on(self, index: int, page: Page, *, is_all: bool) -> bool:
        """Return whether a partition has a link of a page; or without `is_all`, whether the cache dropped one there."""
        began, (pushes, drops) = self._began.get(page.entry.member), self.parts[index].counts
        return began is None or began[index][1] != drops or (is_all and began[index][0] != pushes)

    def _note_trouble(self, index: int, trouble: Trouble) -> None:
        """After the loss of a partition, taint the pages of the others that relied on it, which must answer first."""
        if trouble not in _LOSSES:
            return
        if trouble is Trouble.ROLLED_BACK:  # perhaps this partition alone
            self.parts[index].troubles.append(Trouble.LINKS_LOST)
        self._silent.update(set(range(len(self.parts))) - {index})
        relied = partial(self._relies_on, index, is_all=trouble is not Trouble.FILTER_LOST)
        for part in self.parts:
            if part is not self.parts[index]:
                part.lose_links(relied, is_leased=True)

    def _compare(self, joined: Worker) -> None:
        """After the last join, have each partition compare its stamps with the reliances of the others."""
        if not joined.relied or any(part.phase is Phase.JOIN for part in self.parts):
            return
        before = [part.claims.split() for part in self.parts]
        claims = [dict(zip(words[::2], map(int, words[1::2]), strict=True)) for words in before]
        for part in self.parts:
            for worker, relied in zip(part.relied[::2], part.relied[1::2], strict=True):
                crawl, *stamps = relied.split(b",")
                if crawl == self.parts[0].crawl:
                    for claim, stamp in zip(claims, stamps, strict=True):
                        claim[worker] = max(claim.get(worker, 0), int(stamp))
            part.relied = []
        for part, claim in zip(self.parts, claims, strict=True):
            part.claims = b" ".join(b"%s %d" % each for each in sorted(claim.items()))

    # Ends of pages, which wait for all partitions and for local requests.

    def _wait(self, waiting: Waiting) -> None:
        if self._is_settling:
            self._unsettled.append(waiting)
            return
        ends = [part.end for part in self.parts]
        if self._have_sent(ends):
            self._end(waiting)
        else:
            self._waiting.append((ends, waiting))

    def _have_sent(self, ends: list[int]) -> bool:
        """Return whether all offers before a sequence number in each partition are executed."""
        return all(part.has_sent(end) for part, end in zip(self.parts, ends, strict=True))

    def _end(self, waiting: Waiting) -> None:
        if callable(waiting):
            self._due.append(waiting)
        else:
            part = self._part_that_runs(waiting[0])
            part.finish(*waiting)
            if waiting[0] not in part.finished:  # it was tainted
                self._began.pop(waiting[0], None)

    def _go_on(self) -> None:
        """Go on with the ends of pages, and callbacks, whose offers are executed."""
        while self._waiting and self._have_sent(self._waiting[0][0]):
            self._end(self._waiting.popleft()[1])
        if self._is_settling:
            self._settle()

    def _settle(self) -> None:
        """Go on with all that waits for local requests, if none is left, and their links are queued."""
        is_left = any(part.local for part in self.parts)
        if is_left:
            self._ends = [part.end for part in self.parts]
        self._is_settling = is_left or not self._have_sent(self._ends)
        for part in self.parts:
            part.orders = part.orders._replace(is_settling=self._is_settling)
            part.release()
        if not self._is_settling:
            unsettled, self._unsettled = self._unsettled, []
            for waiting in unsettled:
                self._wait(waiting)

    @property
    def _forgotten(self) -> int:
        return sum(part.forgotten_local for part in self.parts)

    def _forget_local(self, before: int) -> None:
        """If a stop has forgotten local requests, return the pages that may have led to them, in all partitions."""
        if self._forgotten == before:
            return
        for part in self.parts:
            part.return_endless()
        for waiting in (*self._unsettled, *(each for _, each in self._waiting)):
            if not callable(waiting):
                self._end(waiting)
        self._unsettled = []
        self._waiting.clear()
        self._settle()
