"""The state of one worker of a queue: no I/O, no clock. One call of a script is under way at a time.

A request in a worker, where each arrow through Redis is a part of one exchange, which is atomic:

    offer() ─> outbox ──new──> queue ──taken──> ready ──take()──> running ──finish()──> finished ──acknowledged──> gone
                 └───seen──> dropped    └─ returned ─> queue                               └────failed────> kept

A *local* request cannot be serialized, and is run by this process alone. An exchange only looks it up in the filter:

    offer() ─> outbox ──new──> local_ready ──take()──> running ──finish()──> unmarked ──marked──> gone
                 └───seen──> dropped   └─ stop() ─> forgotten

Phases: JOIN ─> RESET (an exchange that replaces all leases by what the worker holds) ─> ALLOCATE (the first layer of
the filter) ─> WORK ─> LEFT. Every phase goes back to JOIN when a reply says EXPIRED: there is no other repair.

Why nothing is lost, and a lost reply is no riddle:

1. An offer leaves the outbox only when an exchange with it was executed. Check, mark and push are one script, so "seen"
   means queued, leased, or done.
2. A finished request is acknowledged in or after the exchange that offers the last link found before its end.
3. Each call names the stamp of the last answered one: the time at which the server executed that. A script that finds
   another stamp changes nothing: the server went back, or the packet is late.
4. After a lost reply the worker sends the next exchange, perhaps a smaller one. If the lost one was not executed, it
   never will be, since its stamp is old. If it was, the next one says EXPIRED, the requests that the lost one took go
   back to the queue, and its offers and returns leave this worker; acknowledgements may come twice.
5. After EXPIRED the reply to the join shows the loss: it describes the registration that the join replaced. If
   the server has forgotten data that this worker knew, each page that relied on it is *tainted*: one of its links
   was pushed, or dropped by the cache of repeats, while it ran. Its end is not acknowledged, and it is offered again.
   Start requests have no page: the worker remembers them, and offers those again that the server has forgotten.
6. The cache of repeats is emptied when EXPIRED arrives: until the join, the contents of the filter are unknown.
7. The process does not know which page led to a local request. So while one is left, no finished request is
   acknowledged or marked: it waits behind the last link found before the moment without any. After a death the leased
   pages are fetched again, and lead to the local requests again, which are not marked. So that this moment comes, no
   leased request begins while too many finished ones wait for it. Other workers may fetch the same page meanwhile.
8. At a stop the local requests that have not begun are forgotten. The pages that may have led to them are returned.
9. The crawl is finished if an idle exchange found it quiet - nothing waits, nothing is leased, no worker is busy - and
   each other worker has been in contact since.

The tests search this class together with the scripts themselves: every order, lost replies, crashes, losses of data.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Self

from scrapy_bloom.cache import TwoGenerationCache
from scrapy_bloom.queue.values import (
    Call,
    Entry,
    FilterSource,
    IndexedCall,
    Offer,
    Orders,
    Outcome,
    Page,
    Phase,
    Reaped,
    RefusedError,
    Trouble,
)

# Bytes that one exchange offers at most. A lost reply halves this for a slow link, and each reply lets it grow.
MAX_BYTES = 1_000_000
# Start requests that a worker remembers.
MAX_STARTS = 10_000
# The registration that a join has replaced: none, a registration, or a departed one.
_NOTHING, _DEPARTED = 0, 2
_NEW = ord("1")
_CLAIMS = 17  # their place among the arguments of an exchange


class Worker:
    """One worker of a queue.

    Args:
        name: its name, of no other process.
        lease: seconds after its last contact in which it is presumed dead.
        spider: the class path of the spider; workers of another one are refused.
        source: the filter to create if there is none.
        fingerprint_of: the fingerprint of a serialized request, or None if that bypasses the filter or is unreadable.
        cache_size: fingerprints of repeats that are remembered.
        batch: requests that one exchange offers at most.
        max_deliveries: deaths of workers that make a request a dead letter; 0 is no bound.
        flush: delete the crawl, and the filter unless that is shared, at the first join.
        is_shared: other spiders use the filter, too, so that no crawl deletes it.
    """

    def __init__(
        self,
        name: str,
        lease: float,
        spider: str,
        source: FilterSource,
        fingerprint_of: Callable[[bytes], bytes | None],
        *,
        cache_size: int = 100_000,
        batch: int = 100,
        max_deliveries: int = 0,
        flush: bool = False,
        is_shared: bool = False,
    ) -> None:
        self.name = name
        self.phase = Phase.JOIN
        self.crawl = self.run = self.origin = self.filter_id = b""
        self.repeats: TwoGenerationCache[bytes, bool] = TwoGenerationCache(cache_size)
        self.outbox: deque[Offer] = deque()
        self.ready: list[Entry] = []
        self.running: dict[bytes, Page] = {}
        self.finished: dict[bytes, Page] = {}
        # Local requests, from their offer to their end, and those of them that wait for the engine.
        self.local: dict[bytes, Offer] = {}
        self.local_ready: list[Entry] = []
        # Fingerprints that only this worker knows as seen: those of local requests, each with the sequence number of
        # the last offer before its mark, infinite while a local request is left. The infinite ones are the last.
        self.unmarked: dict[bytes, float] = {}
        self.accepted_local = self.forgotten_local = 0
        self.is_stopping = self.may_finish = False
        # Requests that wait in the queue, and the lost ones, after the last reply.
        self.waiting = self.losses = self.lost = self.forgets = self.lost_shards = 0
        # After the last reply: whether it was idle and found the partition quiet, and the last change then.
        self.quiet: int | None = None
        self.troubles: list[Trouble] = []
        self.reaped: list[Reaped] = []
        self.buried: list[bytes] = []
        # After it left: whether it has deleted the crawl, and how many others work.
        self.is_deleted, self.working = False, 0
        # After it left: whether there is no crawl any more. After a join: whether the partition has a later crawl.
        self.is_gone = self.is_stale = False
        # After a join: the workers of the partition and their reliances, see queue.lua. And claims, the stamps here in
        # the reliances of other partitions: the next exchange compares them.
        self.relied, self.claims = list[bytes](), b""
        self.orders = Orders()
        self._lease = lease
        self._spider = spider
        self._source = source
        self._fingerprint_of = fingerprint_of
        self.batch = batch
        self._max_deliveries = max_deliveries
        self.partitions = 1
        self._is_new, self._flush, self._sizes = True, flush, flush
        self._is_shared = is_shared
        self._hash = source.hasher(b"")
        self._offered: set[bytes] = set()
        self._base = 0  # sequence number of the outbox's first offer
        # Start requests: on their way to the queue, each with its sequence number; and queued or dropped, each with the
        # stamp of that.
        self._starting: deque[tuple[int, Offer]] = deque()
        self._started: deque[tuple[int, Offer]] = deque()
        self._forgotten_start = 0  # the stamp of the last one beyond these
        self._returns: list[Entry] = []
        self._kept: list[Offer] = []
        self._receipts: deque[tuple[float, Callable[[], object]]] = deque()
        self._suspect: bytes | None = None
        # The last: nothing was left to take, but for other suspects, and nothing has changed since.
        self._has_started = self.is_last_chance = self._has_lost_a_leave = self._is_dry = False
        self._pushes = self._drops = self._joins = 0
        self._stamp = 0  # the time at which the last answered call was executed
        self._under_way: Call | None = None
        self._leaves_as = self._deletes = ""
        self._quiet_since: int | None = None
        self._max_bytes = MAX_BYTES
        self.urgency = math.inf  # the lowest score in the outbox

    # Events of the process.

    def offer(self, offer: Offer, *, is_start: bool = False) -> bool:
        """Accept a request to check and queue, or to run here; return False for a known repeat.

        No page leads to a start request.
        """
        if offer.fingerprint is not None:
            if self.is_repeat(offer.fingerprint):
                return False
            self._offered.add(offer.fingerprint)
        if offer.request is not None:
            self.local[offer.member] = offer
        elif is_start:
            self._starting.append((self._base + len(self.outbox), offer))
        self.outbox.append(offer)
        self.urgency = min(self.urgency, offer.score)
        self.may_finish = False
        return True

    def is_repeat(self, fingerprint: bytes) -> bool:
        """Return whether a request is a known repeat, which the caller drops: no need to serialize it."""
        if self.repeats.get(fingerprint) or fingerprint in self.unmarked:
            self._drops += 1
            return True
        return fingerprint in self._offered

    def take(self) -> Entry | None:
        """Return the next request for the engine, running from now on, or None. Local ones come first."""
        if self.phase is not Phase.WORK or self.is_stopping:
            return None
        for waiting in (self.local_ready, [] if self.is_held_back else self.ready):
            for i, entry in enumerate(waiting):
                if not self._is_held_up(entry) and entry.member not in self.running:
                    self.running[entry.member] = Page(waiting.pop(i), self._pushes, self._drops)
                    return entry
        return None

    def finish(self, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
        """Note that the engine is done with a request, whose links were all offered."""
        page = self.running.pop(member)
        if page.is_tainted:  # it was offered again, and is no longer this worker's
            return
        if self.local.pop(member, None) is None:
            self.finished[member] = replace(page, outcome=outcome)
        self.release()

    def queue_again(self, kept: Iterable[Offer], index: int = 0) -> None:  # noqa: ARG002
        """Queue requests again that failed in an earlier run, unless another worker has."""
        self._kept += kept

    def call_when_queued(self, callback: Callable[[], object]) -> None:
        """Have `take_receipts` return a callback as soon as all that was offered so far is queued, or done here."""
        self._receipts.append((math.inf if self._must_hold else self.end, callback))

    def take_receipts(self) -> list[Callable[[], object]]:
        """Return the callbacks that are due, each once."""
        due = []
        while self._receipts and self._receipts[0][0] <= self._base:
            due.append(self._receipts.popleft()[1])
        return due

    def stop(self) -> None:
        """Take nothing more, and return the requests that have not begun."""
        self.is_stopping = True
        self._returns += self.ready
        self.ready = []
        self._forget_local()

    def leave(self, mode: str, deletes: str = "") -> None:
        """Leave with the next call: `finished`, `stopped`, or `keep` to keep the crawl; `deletes` as in `leave.lua`."""
        self._leaves_as, self._deletes = mode, deletes
        if not self.crawl:
            self.phase = Phase.LEFT

    @property
    def is_idle(self) -> bool:
        """True if this worker holds nothing."""
        held = self.outbox, self.ready, self.running, self.finished, self._returns, self._kept
        return not (any(held) or self.local or self.unmarked)

    @property
    def has_room(self) -> bool:
        """False while start() must wait, which could offer more without an end."""
        return len(self.outbox) + len(self.local_ready) < self.batch and not self.is_held_back

    @property
    def is_held_back(self) -> bool:
        """True if only local requests begin: too many finished ones wait for their end, or a suspect does.

        A suspect begins without them, since one of them may be the request that kills.
        """
        return bool(self.local) and (len(self.finished) >= self.batch or self.has_waiting_suspect)

    @property
    def needs_start(self) -> bool:
        """True if the suspect waits for the exchange that notes its start."""
        return self.has_waiting_suspect and self.orders.may_start and not (self.local or self.is_stopping)

    @property
    def parts(self) -> list[Self]:
        """The workers of all partitions: there is one."""
        return [self]

    @property
    def is_full(self) -> bool:
        """True if there is a full batch to send."""
        return len(self.outbox) >= self.batch

    @property
    def prospects(self) -> int:
        """The requests that an exchange may bring; an ended suspect, which makes room for another, counts as one."""
        suspect = self.finished.get(self._suspect or b"")
        has_ended = suspect is not None and suspect.behind != math.inf
        return len(self.outbox) + has_ended + (0 if self._is_dry and not has_ended else self.waiting)

    @property
    def next_score(self) -> float:
        """The lowest score of the requests taken ahead that may begin, infinite without any."""
        return next((entry.score for entry in self.ready if not self._is_held_up(entry)), math.inf)

    @property
    def pending(self) -> int:
        """Requests in the queue and in this process that wait for the engine."""
        return self.waiting + len(self.ready) + len(self.outbox) + len(self.local_ready)

    @property
    def counts(self) -> tuple[int, int]:
        """How often links were pushed, and how many the cache has dropped."""
        return self._pushes, self._drops

    @property
    def runs_suspect(self) -> bool:
        """True if it has started a suspect."""
        return self._has_started

    def local_request(self, member: bytes) -> Any:
        """Return a local request by its name in this process, or None."""
        return self.local[member].request if member in self.local else None

    @property
    def stamp(self) -> int:
        """The time at which the last answered call was executed."""
        return self._stamp

    @property
    def end(self) -> int:
        """The sequence number of the next offer."""
        return self._base + len(self.outbox)

    def has_sent(self, number: int) -> bool:
        """Return whether all offers before a sequence number have left the outbox."""
        return self._base >= number

    @property
    def _must_hold(self) -> bool:
        return bool(self.local) or self.orders.is_settling

    @property
    def has_waiting_suspect(self) -> bool:
        """True if a suspect is ready, and may not begin yet."""
        return any(map(self._is_held_up, self.ready))

    def _is_held_up(self, entry: Entry) -> bool:
        return entry.member == self._suspect and not self._has_started

    # Calls.

    def next_calls(self, want: int, flush: object = None) -> list[IndexedCall]:  # noqa: ARG002
        """Return the next call with the index of its partition, 0, in a list, or none."""
        call = self.next_call(want)
        return [] if call is None else [(0, call)]

    def next_call(self, want: int) -> Call | None:
        """Return the next call, or None if there is no news, and nothing is wanted."""
        if self._under_way is None:
            self._under_way = self._next_call(want)
        return self._under_way

    def lose(self, index: int = 0) -> None:  # noqa: ARG002
        """Note that the call under way has no reply, and may be executed late. A join or leave is sent again."""
        call = self._under_way
        if call is None:
            raise RuntimeError("no call is under way")
        if call.script == "exchange":
            self._under_way = None
            self._max_bytes = max(1, self._max_bytes // 2)
            self._forget_quiet()
        elif call.script == "leave":
            self._has_lost_a_leave = True

    def _next_call(self, want: int) -> Call | None:
        if self._leaves_as and self.phase is not Phase.LEFT:
            of_crawl = self.crawl, self._leaves_as, self._max_deliveries, int(self._is_shared), self._deletes
            return Call("leave", of_crawl)
        if self.phase is Phase.JOIN:
            self._joins += 1
            flags = int(self._is_new), int(self._flush), int(self._is_shared)
            source = self._source.to_create(sizes=self._sizes)
            lease = round(self._lease * 1e6)
            mine = self._joins, self._stamp, lease, self._spider, *flags, self.filter_id
            return Call("join", (*mine, *source, self.partitions, *self.orders.crawl))
        if self.phase is Phase.ALLOCATE:
            return Call("allocate", (self.filter_id,))
        return None if self.phase is Phase.LEFT else self._exchange(want)

    def _exchange(self, want: int) -> Call | None:
        if self.phase is Phase.RESET:
            return self._call_exchange([], [], [], self._mine(), want=0)
        offers = self._next_offers()
        end = self._base + len(offers)
        unsure = self.orders.unsure
        ended = [p for p in self.finished.values() if p.behind <= end and p.entry.member not in unsure]
        kept = self._kept[: self.batch]
        is_full = self.is_stopping or self.is_held_back
        want = 0 if is_full else want and max(1, want * self._max_bytes // MAX_BYTES)
        marks = self._next_marks(offers)
        has_news = self._returns or self.needs_start or self.orders.must_call or marks or self.claims
        if not (want or offers or ended or kept or has_news):
            return None
        return self._call_exchange(offers, ended, kept, [], want)

    def _call_exchange(
        self, offers: list[Offer], ended: list[Page], kept: list[Offer], holds: list[Page], want: int
    ) -> Call:
        """Return an exchange, in the order of `exchange.lua`."""
        is_reset, is_idle = self.phase is Phase.RESET, self.is_idle and self.orders.is_idle
        marks = self._next_marks(offers)
        by_outcome = {outcome: [page.entry for page in ended if page.outcome is outcome] for outcome in Outcome}
        failed, unreadable, done = (by_outcome[o] for o in (Outcome.FAILED, Outcome.UNREADABLE, Outcome.DONE))
        arguments: list[Any] = [self._stamp, self.crawl, self.filter_id, int(is_reset), int(is_idle), want]
        arguments += [self._max_deliveries, self._suspect if self.needs_start and not is_reset else b""]
        arguments += [len(offers), len(self._returns), len(holds), len(kept), len(failed), len(unreadable), len(done)]
        arguments += [len(marks), self.orders.relied if ended or marks else b"", self.claims]
        for score, member, fingerprint, request in offers:
            arguments += self._digest(fingerprint), score, member if request is None else b""
        for entry in (*self._returns, *(page.entry for page in holds)):
            # Only a new filter must learn about requests that are not offered.
            arguments += self._digest(self._fingerprint_of(entry.member) if is_reset else None), *entry
        for score, member, fingerprint, _ in kept:
            arguments += self._digest(fingerprint), score, member
        for entry in failed:
            arguments += self._fingerprint_of(entry.member) or b"", *entry
        for entry in unreadable:
            arguments += b"", *entry
        arguments += (entry.member for entry in done)
        arguments += map(self._digest, marks)
        members = tuple(page.entry.member for page in ended)
        return Call("exchange", tuple(arguments), members, tuple(self._returns), len(kept), tuple(marks), is_idle)

    def _next_offers(self) -> list[Offer]:
        offers: list[Offer] = []
        room = self._max_bytes
        for offer in islice(self.outbox, self.batch):
            room -= len(offer.member)
            if offers and room < 0:
                break
            offers.append(offer)
        return offers

    def _next_marks(self, offers: list[Offer]) -> list[bytes]:
        """Return the fingerprints to mark together with these offers, or behind them."""
        end = self._base + len(offers)
        return [fingerprint for fingerprint, behind in islice(self.unmarked.items(), self.batch) if behind <= end]

    def _digest(self, fingerprint: bytes | None) -> bytes:
        return b"" if fingerprint is None else self._hash(fingerprint)

    def _mine(self) -> list[Page]:
        running = [page for page in self.running.values() if not (page.is_tainted or page.entry.member in self.local)]
        return [*running, *self.finished.values()]

    # Replies.

    def receive(self, reply: Any, index: int = 0) -> list[tuple[Offer, bool]]:  # noqa: ARG002
        """Apply the reply to the call under way.

        Returns:
            the offers that have left the outbox, and whether each was new; True if that is unknown.

        Raises:
            RefusedError: the queue or the filter is not this worker's.
        """
        call, self._under_way = self._under_way, None
        if call is None:
            raise RuntimeError("no call is under way")
        match call.script:
            case "join":
                return self._receive_join(*reply)
            case "allocate":
                self.phase = self.phase if reply else Phase.WORK
            case "exchange":
                return self._receive_exchange(call, *reply)
            case "leave":
                self._receive_leave(*reply)
        return []

    def _receive_exchange(self, call: Call, status: bytes, news: list[Any], *more: Any) -> list[tuple[Offer, bool]]:
        if status != b"OK":
            self.expire()
            return []
        flags, stamp, taken, suspect, has_started, is_last_chance, is_dry, others = more
        self._note(*news)
        self._stamp = int(stamp)
        self._max_bytes = min(MAX_BYTES, self._max_bytes + self._max_bytes // 32 + 1)
        if self.phase is Phase.RESET:
            self.phase = Phase.ALLOCATE
        ended = self._end_offers([flag == _NEW for flag in flags])
        for member in call.ended:
            self.finished.pop(member, None)
        for fingerprint in call.marks:
            self.unmarked.pop(fingerprint, None)  # a loss in another partition has made others of them meanwhile
            self.repeats.put(fingerprint, True)
        self._returns = self._returns[len(call.returns) :]
        self._kept = self._kept[call.kept :]
        if call.arguments[_CLAIMS] == self.claims:
            self.claims = b""
        has_changed = bool(flags) or self._suspect != (suspect or None)
        self._is_dry = (self._is_dry and not has_changed) if is_dry is None else bool(is_dry)
        self._suspect, self._has_started, self.is_last_chance = suspect or None, bool(has_started), bool(is_last_chance)
        entries = [Entry(float(score), member) for score, member in zip(taken[::2], taken[1::2], strict=True)]
        if self.is_stopping:
            self._returns += entries
        elif entries:
            self.ready = sorted((*self.ready, *entries))
        self._note_quiet(call, entries, others)
        return ended

    def _end_offers(self, flags: Sequence[bool | None]) -> list[tuple[Offer, bool]]:
        """Remove the first offers, which an exchange has queued, dropped, or left to this worker; None if unknown."""
        ended = []
        for flag in flags:
            offer = self.outbox.popleft()
            self._base += 1
            if flag is None and offer.request is not None:  # an exchange only looks it up: that can be repeated
                self.outbox.append(offer)
                continue
            ended.append((offer, flag is not False))
            is_mine = flag and offer.request is not None
            if is_mine:
                insort(self.local_ready, Entry(offer.score, offer.member))
                self.accepted_local += 1
            else:
                self.local.pop(offer.member, None)
            if offer.fingerprint is not None:
                self._offered.discard(offer.fingerprint)
                if is_mine:
                    self.unmarked[offer.fingerprint] = math.inf
                else:
                    self.repeats.put(offer.fingerprint, True)
        self._pushes += bool(ended)
        if not self.outbox:
            self.urgency = math.inf
        self._note_started()
        if self.is_stopping:
            self._forget_local()
        self.release()
        return ended

    # Local requests.

    def release(self) -> None:
        """Let finished requests be acknowledged, and local ones be marked, unless a local one is left."""
        if self._must_hold:
            return
        end = self.end
        for member, page in reversed(self.finished.items()):
            if page.behind != math.inf:
                break
            self.finished[member] = replace(page, has_dropped=self._has_dropped(page), behind=end)
        for fingerprint in reversed(self.unmarked):
            if self.unmarked[fingerprint] != math.inf:
                break
            self.unmarked[fingerprint] = end
        for i in range(len(self._receipts) - 1, -1, -1):
            if self._receipts[i][0] != math.inf:
                break
            self._receipts[i] = end, self._receipts[i][1]

    def _forget_local(self) -> None:
        """Forget the local requests that have not begun."""
        if not self.local_ready:
            return
        for entry in self.local_ready:
            del self.local[entry.member]
        self.forgotten_local += len(self.local_ready)
        self.local_ready = []
        self.return_endless()

    def return_endless(self) -> None:
        """Return the possible parents of forgotten local requests, and mark none that are local themselves."""
        self.unmarked = {fingerprint: end for fingerprint, end in self.unmarked.items() if end != math.inf}
        self._receipts.clear()
        self.taint(lambda page: page.behind == math.inf, is_leased=True)

    def _receive_join(self, status: bytes, *more: Any) -> list[tuple[Offer, bool]]:
        self.is_stale = status == b"STALE"
        if status in (b"FOREIGN", b"WRONGTYPE", b"MISMATCH", b"PARTITIONS"):
            raise RefusedError(status, *more)
        if status == b"SIZES":  # nothing was executed
            self._sizes = True
            self._joins -= 1
        if status != b"OK":  # after it was executed, this worker was presumed dead: join again
            return []
        news, crawl, run, origin, filter_id, secret, stamp, replaced, offered, returned, *stamps, self.relied = more
        marked, known = map(int, stamps)
        # After a rollback, a later stamp is that of a late packet.
        restored = marked if marked <= self._stamp else known
        is_intact = self._stamp in (marked, known)
        self._rejoin(crawl, origin, filter_id, int(replaced), None if is_intact else restored)
        self._note(*news)
        # The lost reply is that of the last exchange, which was executed.
        was_executed = known == self._stamp != marked
        self.crawl, self.run, self.origin, self.filter_id = crawl, run, origin, filter_id
        self._hash = self._source.hasher(secret)
        self._stamp = int(stamp)
        ended = self._end_offers([None] * offered) if was_executed else []
        self._returns = self._returns[returned if was_executed else 0 :]
        self._is_new = self._flush = self._sizes = False
        self.phase = Phase.RESET
        return ended

    def _rejoin(self, crawl: bytes, origin: bytes, filter_id: bytes, replaced: int, restored: int | None) -> None:
        """Find the losses of the server, by the registration that the join has replaced.

        It is intact if the last answered call was its last one, or the last one before a call without a reply.
        Otherwise `restored` is its last stamp before that.
        """
        has_departed = replaced == _DEPARTED
        if not (restored is None and has_departed):  # otherwise they wait again, or are done
            self._returns += self.ready
        self.ready = []
        self._suspect, self._has_started, self.is_last_chance = None, False, False
        if not self.crawl:
            return
        if restored is not None:
            if replaced == _NOTHING and crawl != self.crawl:
                self.troubles.append(self._end_of_crawl(crawl, origin))
            else:
                self.troubles.append(Trouble.ROLLED_BACK)
                self._start_again(restored)
            self.lose_links(lambda page: page.pushes != self._pushes or self._has_dropped(page), is_leased=False)
        elif filter_id != self.filter_id:
            self.troubles.append(Trouble.FILTER_LOST)
            self.lose_links(self._has_dropped, is_leased=not has_departed)
        elif has_departed:
            self.troubles.append(Trouble.PRESUMED_DEAD)

    def _has_dropped(self, page: Page) -> bool:
        return page.drops != self._drops if page.behind == math.inf else page.has_dropped

    def lose_links(self, is_tainted: Callable[[Page], bool], *, is_leased: bool) -> None:
        """Have the pages fetched again, and the local requests run again, whose links the server may have lost."""
        self.taint(is_tainted, is_leased=is_leased)
        self.run_again(is_tainted)

    def taint(self, is_tainted: Callable[[Page], bool], *, is_leased: bool) -> None:
        """Have the pages fetched again whose links the server may have lost."""
        for page in self._mine():
            if not is_tainted(page):
                continue
            member = page.entry.member
            if is_leased:
                self._returns.append(page.entry)
            else:
                self.offer(Offer(*page.entry, self._fingerprint_of(member)))
            if page.outcome is None:
                self.running[member] = replace(page, is_tainted=True)
            else:
                del self.finished[member]

    def run_again(self, is_tainted: Callable[[Page], bool]) -> None:
        """Have the running local requests run again whose links the server may have lost, and mark no ended ones."""
        for member, offer in self.local.items():
            page = self.running.get(member)
            if page is not None and not page.is_tainted and is_tainted(page):
                self.running[member] = replace(page, is_tainted=True)
                self.outbox.append(offer)
        left = (offer.fingerprint for offer in self.local.values())
        self.unmarked = {fingerprint: math.inf for fingerprint in left if fingerprint is not None}

    def _receive_leave(self, status: bytes, news: list[Any], *more: Any) -> None:
        self.phase = Phase.LEFT
        if status == b"LEFT":
            self._note(*news)
            is_deleted, self.waiting, self.working, others = more
            self.is_deleted = bool(is_deleted)
            if others:
                self.note_others(others)
            return
        self.is_gone = not more[0]
        # Of a finished or stopped crawl, the last worker to leave the first partition deletes the others.
        if not (self._has_lost_a_leave or (self._deletes and self._leaves_as != "keep")):
            self.troubles.append(self._end_of_crawl(*more))

    def _end_of_crawl(self, crawl: bytes, origin: bytes) -> Trouble:
        """Return why another crawl, or none, is in the place of this one. A crawl's id is the time of its creation."""
        return Trouble.FLUSHED if origin == b"flush" and int(crawl) > int(self.crawl) else Trouble.LOST

    def _note_started(self) -> None:
        while self._starting and self._starting[0][0] < self._base:
            self._started.append((self._stamp, self._starting.popleft()[1]))
            if len(self._started) > MAX_STARTS:
                self._forgotten_start = self._started.popleft()[0]

    def _start_again(self, restored: int) -> None:
        """Offer the start requests again that were queued or dropped after this stamp."""
        if self._forgotten_start > restored:
            self.troubles.append(Trouble.STARTS_LOST)
        lost = []
        while self._started and self._started[-1][0] > restored:
            lost.append(self._started.pop()[1])
        for offer in reversed(lost):
            self.offer(offer, is_start=True)

    def expire(self) -> None:
        """Join again. Until then no request begins, and no link is a known repeat."""
        self.phase = Phase.JOIN
        self.repeats.clear()
        self._forget_quiet()

    def _forget_quiet(self) -> None:
        self.may_finish, self._quiet_since, self.quiet = False, None, None

    def _note(self, waiting: int, losses: int, lost: int, *changes: int) -> None:
        """Note the news in a reply about the crawl, and about the filter if the script opened that."""
        self.waiting, self.losses, self.lost = waiting, losses, lost
        if changes and changes != (self.forgets, self.lost_shards):
            self.repeats.clear()
            self.forgets, self.lost_shards = changes

    def _note_quiet(self, call: Call, taken: list[Entry], others: list[Any] | None) -> None:
        is_quiet, number, oldest, _, _, changed = others or (0, 0, 0, [], [], 0)
        if others:
            self.note_others(others)
        if taken or not (is_quiet and call.is_idle):
            self._forget_quiet()
            return
        self.quiet = int(changed)
        if self._quiet_since is None:
            self._quiet_since = self._stamp
        self.may_finish = self.is_idle and (not number or int(oldest) > self._quiet_since)

    def note_others(self, others: list[Any]) -> None:
        """Note which workers a reply calls dead, and the new dead letters."""
        told, buried = others[3:5]
        for name, silence, requests in zip(told[::3], told[1::3], told[2::3], strict=True):
            self.reaped.append(Reaped(name.decode(), int(silence) / 1e6, int(requests)))
        self.buried += buried
