"""The line of a worker to one queue: it builds the calls, and reads their replies. No I/O, no clock.

Each sync has a number, and names the last one whose reply has arrived. If the reply of one is lost, the next sync,
perhaps a smaller one, gets that reply: so exactly one sync was executed for each that was answered.
"""

import math
from collections import deque
from itertools import chain, islice
from typing import Any

from scrapy_bloom.filter.steps import Steps
from scrapy_bloom.queue.messages import (
    Call,
    Crawl,
    Entry,
    Joined,
    JoinRefusedError,
    Load,
    News,
    Offer,
    Orders,
    Others,
    Outcome,
    Page,
    Phase,
    Rejoin,
    Synced,
    Terms,
)

# Bytes of the requests in one call. A lost reply halves this for a slow link, and each reply lets it grow. One request
# always fits. The least is still tens of requests: after an outage calls are not small for long.
MAX_BYTES, _MIN_BYTES = 1_000_000, 16_000
# So many times as much may be taken: it has to come anyway, and large requests are to be taken ahead, too.
_TAKEN = 4
_NEW = ord("1")
# An entry as scripts take it: the item in the filter, the score, the member.
_Triple = tuple[bytes, float, bytes]


class Queue:
    """The line of a worker to one queue.

    Args:
        terms: what all queues have in common.
        flush: delete the crawl at the first join, and the filter unless that is shared.

    Attributes:
        phase: the next step.
        crawl: the queue's crawl, after the join.
        news: the queue after the last reply.
        outbox: offers on their way, each with its number in the process.
        requeued: requests that are to wait again.
        finished: pages that are not acknowledged yet, by member.
        is_gone: after it was left: the crawl is deleted.
        working: after it was left: other workers.
    """

    def __init__(self, terms: Terms, *, flush: bool = False) -> None:
        self.phase = Phase.JOIN
        self.crawl = Crawl()
        self.news = News()
        self.outbox: deque[tuple[int, Offer]] = deque()
        self.requeued: deque[Entry] = deque()
        self.finished: dict[bytes, Page] = {}
        self.is_gone, self.working = False, 0
        self._terms = terms
        self._flush = self._sizes = flush
        self._hash = terms.source.hasher(b"")
        self._opened = 0
        self._older = self._first = b""
        self._steps = Steps()
        self._sent: dict[int, Load] = {}
        self._max_bytes = MAX_BYTES

    def next_join(self, first: Crawl) -> Call:
        """Return the call that joins this queue, or that allocates the first layer of its filter.

        Args:
            first: the crawl of the first queue, empty for that one itself. If it was joined again since this queue
                called its crawl an older one, this queue is emptied.
        """
        if self.phase is Phase.ALLOCATE:
            return Call("prepare", (self.crawl.filter_id,))
        terms = self._terms
        flags = map(int, (not self.crawl.id, self._flush, terms.is_shared))
        mine = round(terms.lease * 1000), terms.spider, terms.queues, *flags, self.crawl.filter_id
        self._first, is_forced = first.id, first.id != b"" and first.id == self._older
        of_first = first.id, first.run, first.origin, first.has_synced, int(is_forced)
        return Call(
            "join", (self._opened + 1, self._steps.record, *mine, *of_first, *terms.source.to_create(sizes=self._sizes))
        )

    def next_sync(self, orders: Orders) -> Call | None:
        """Return the next sync, or None if there is no news, and nothing is wanted."""
        terms, settled, room = self._terms, orders.settled, _Room(self._max_bytes)
        requeued = [entry for entry in islice(self.requeued, terms.batch) if room.takes(entry.member)]
        offers = [offer for _, offer in islice(self.outbox, terms.batch) if room.takes(offer.member)]
        if settled is None:
            settled = self.outbox[len(offers)][0] if len(offers) < len(self.outbox) else math.inf
        ended = [page for page in self.finished.values() if page.end <= settled and room.takes(page.entry.member)]
        if not (orders.want or offers or requeued or ended or self._sent or orders.must_call):
            return None
        number = self._steps.number + 1 + len(self._sent)
        self._sent[number] = Load(len(offers), len(requeued), tuple(page.entry.member for page in ended))
        lists = self._lists(offers, requeued, ended)
        head = self._steps.record, self._steps.numbered(number), self.crawl.id, self.crawl.filter_id
        done = -1 if orders.is_idle else len(self.finished) - len(ended)
        takes = done, orders.want, _TAKEN * self._max_bytes, terms.max_deaths, int(orders.may_suspect)
        starts = terms.starts if orders.may_start else 0, terms.start_kind
        values = chain.from_iterable(chain.from_iterable(lists))
        return Call("sync", (*head, *takes, *starts, *map(len, lists), *values))

    def _lists(self, offers: list[Offer], requeued: list[Entry], ended: list[Page]) -> list[list[_Triple]]:
        fingerprint_of = self._terms.fingerprint_of
        return [
            [(self.item_of(o.fingerprint), o.score, b"" if o.request is not None else o.member) for o in offers],
            [(self.item_of(fingerprint_of(entry.member)), *entry) for entry in requeued],
            [(fingerprint_of(p.entry.member) or b"", *p.entry) for p in ended if p.outcome is Outcome.FAILED],
            [(b"", *page.entry) for page in ended if page.outcome is Outcome.UNREADABLE],
            [(b"", 0, page.entry.member) for page in ended if page.outcome is Outcome.DONE],
        ]

    def next_leave(self, mode: str, delete: str, losses: int) -> Call:
        """Return the call that leaves this queue: `finished`, `stopped`, or `keep` to keep the crawl.

        Args:
            mode: one of these.
            delete: `1` or `0` if the first queue has decided that this one is to be deleted or not.
            losses: those of all queues.
        """
        return Call("leave", (self.crawl.id, mode, self._terms.max_deaths, int(self._terms.is_shared), delete, losses))

    @property
    def has_synced(self) -> bool:
        """True if a sync was answered since the join; until then the queue expires, see `join.lua`."""
        return self._steps.number > 0

    @property
    def is_full(self) -> bool:
        """True if there is a full batch to offer."""
        return len(self.outbox) >= self._terms.batch

    def lose(self) -> None:
        """Note that a call has no reply, and may be executed late."""
        self._max_bytes = max(_MIN_BYTES, self._max_bytes // 2)

    def receive(self, call: Call, reply: Any) -> Joined | Synced | Rejoin | Others | None:
        """Apply the reply to a call.

        Args:
            call: the call.
            reply: the reply of its script, whose head says what it has.

        Returns:
            What the worker has to know: what a join has found or a sync has done, that this queue is to be joined
            again, or of a leave what it found out about the other workers.

        Raises:
            JoinRefusedError: the queue or the filter is not this worker's.
        """
        match call.script, reply:
            case "join", _:
                return self._receive_join(*reply)
            case "prepare", missing:
                self.phase = self.phase if missing else Phase.WORK
            case "leave", [is_gone, working, news, others]:
                self.phase, self.is_gone, self.working, self.news = Phase.LEFT, bool(is_gone), working, News(*news)
                return Others.of(others)
            case "sync", [b"REJOIN", reason, news]:
                self.news = News(*news)
                return Rejoin(reason.decode())
            case "sync", [b"OK", *synced]:
                return self._receive_sync(*synced)
        return None

    def _receive_join(self, status: bytes, *reply: Any) -> Joined | Rejoin | None:
        match status, reply:
            case b"OK", [*crawl, secret, is_allocated, kept, news]:
                self.crawl, self.news = Crawl(*crawl), News(*news)
                self._hash = self._terms.source.hasher(secret)
                self._opened += 1
                self._steps = Steps(record=b"%d 0 " % self._opened)
                self._flush = self._sizes = False
                self.phase = Phase.WORK if is_allocated else Phase.ALLOCATE
                return Joined(kept > 0, kept > 1)
            case b"SIZES", _:
                self._sizes = True
            case b"STALE", _:
                self._older = self._first
                return Rejoin("stale")
            case b"LATE", _:
                self._opened += 1
            case _:
                raise JoinRefusedError(status, *reply)
        return None

    def expire(self) -> list[Offer]:
        """Join again, and requeue what is finished.

        Returns:
            The first offers that this process runs alone, if they may be marked already. They leave the outbox.
        """
        first = [self.outbox.popleft() for _ in range(max((load.offers for load in self._sent.values()), default=0))]
        self.outbox.extendleft(reversed([each for each in first if each[1].request is None]))
        self.requeued.extend(page.entry for page in self.finished.values())
        self.finished.clear()
        self.phase, self._sent = Phase.JOIN, {}
        return [offer for _, offer in first if offer.request is not None]

    def _receive_sync(self, record: bytes, taken: list[bytes], suspect: bytes, news: list[int], *rest: Any) -> Synced:
        problem, others = rest
        self._steps.note(record)
        load, self._sent, self.news = self._sent[self._steps.number], {}, News(*news)
        self._max_bytes = min(MAX_BYTES, self._max_bytes + self._max_bytes // 32 + 1)
        for _ in range(load.requeued):
            self.requeued.popleft()
        for member in load.ended:
            self.finished.pop(member, None)
        entries = tuple(Entry(float(score), member) for score, member in zip(taken[::2], taken[1::2], strict=True))
        flags = tuple(flag == _NEW for flag in record.split(b" ", 2)[2])
        return Synced(load, flags, entries, suspect or None, problem.decode(errors="replace"), Others.of(others))

    def item_of(self, fingerprint: bytes | None) -> bytes:
        """Return a fingerprint's item in the filter, empty for a request that bypasses the filter."""
        return b"" if fingerprint is None else self._hash(fingerprint)


class _Room:
    """The bytes that are left in a call. The first request always fits, and none behind one that does not."""

    def __init__(self, size: int) -> None:
        self._left, self._is_unused = size, True

    def takes(self, member: bytes) -> bool:
        fits = self._is_unused or len(member) <= self._left
        self._left, self._is_unused = self._left - len(member) if fits else -1, False
        return fits
