"""The queue that workers share, and what one of them has leased of it: no request is ever in a process alone.

Each worker records an entry in its own sorted set *before* it acts on it, and removes it *after* it is done. If a
worker dies in between, another one finds the entry there and requeues it. Delivery is at least once: where a reply is
lost, a request is fetched twice at worst.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from scrapy_bloom._text import as_bytes
from scrapy_bloom.queue import keys
from scrapy_bloom.queue.entries import LeaseEntries, Member, QueueEntry, flattened
from scrapy_bloom.transport.base import Transport
from scrapy_bloom.transport.commands import Command

# Where at least so many wait, a worker takes several at once. Fewer it leaves to others, who may have nothing to do.
_PREFETCH_THRESHOLD = 16
_PREFETCH = 8
_MAX_CLAIM_ATTEMPTS = 1000
_CHUNK = 500

T = TypeVar("T")


class RequestQueue:
    """The queue at `key`, a sorted set of serialised requests by their scores, and what `worker` has leased of it."""

    def __init__(self, transport: Transport, key: str, worker: str) -> None:
        self._transport = transport
        self._key = key
        self._leases = keys.leases_key(key, worker)
        # Equal requests are one member: how many of each this worker has, so that none is let go of too soon.
        self._in_flight: Counter[bytes] = Counter()
        self._pending_acks: list[Member] = []
        self._candidates: list[QueueEntry] = []
        self._claiming: list[QueueEntry] = []
        self._prefetched: deque[QueueEntry] = deque()

    @property
    def has_prefetched(self) -> bool:
        """True if requests were taken that nobody has asked for yet."""
        return bool(self._prefetched)

    @property
    def prefetched(self) -> int:
        """The number of requests that were taken and that nobody has asked for yet."""
        return len(self._prefetched)

    def lease(self, entries: Iterable[QueueEntry]) -> LeaseEntries:
        """Return the operation that leases requests in the same round trip as the check of them."""
        return LeaseEntries(self._leases, tuple(entries))

    def ack(self, members: Iterable[Member]) -> None:
        """Acknowledge requests that are finished, with the next round trip."""
        for member in members:
            self._drop_in_flight(member)
            self._pending_acks.append(member)

    def push(self, entries: Iterable[QueueEntry], ack: Iterable[Member]) -> None:
        """Push entries, acknowledge them and the members in `ack`, and take the next where none are prefetched."""
        new = list(entries)
        back = self._outranked_by(new)
        known = {as_bytes(entry.member): entry for entry in (*back, *self._candidates, *new)}
        self._candidates = sorted(known.values(), key=lambda entry: entry.score)[:_PREFETCH_THRESHOLD]
        self._exchange([*back, *new], [*(entry.member for entry in (*back, *new)), *ack], back)

    def pop(self) -> QueueEntry | None:
        """Return the first entry of the queue, which this worker has leased now, or None: there is none.

        If the reply to a claim is lost, the next call claims the same entries again. It keeps all of them, even those
        no longer in the queue: the lost command may have removed them. Another worker may have one of them, too. That
        request is then fetched twice.
        """
        for _ in range(_MAX_CLAIM_ATTEMPTS):
            if not self._prefetched:
                self._exchange([], [], [])
            if self._prefetched:
                return self._prefetched.popleft()
            if not self._candidates:
                return None
        return None

    def count(self) -> int:
        """Return how many requests there are in the queue, without those that are prefetched."""
        *_, number = self._transport.execute([*self._ack_commands(self._pending_acks), Command("ZCARD", self._key)])
        self._pending_acks = []
        return int(number)

    def dead_letter(self, entry: QueueEntry) -> None:
        """Move an entry that cannot be deserialised to the dead letters, until a worker joins and redrives those."""
        aside = Command("ZADD", keys.dead_letter_key(self._key), *entry)
        self._transport.execute([aside, Command("ZREM", self._leases, entry.member)], transaction=True)
        self._drop_in_flight(entry.member)

    def _outranked_by(self, new: Iterable[QueueEntry]) -> list[QueueEntry]:
        """Return all that was prefetched, if one of the new entries goes before some of it; else nothing."""
        first = min((entry.score for entry in new), default=math.inf)
        return list(self._prefetched) if any(entry.score > first for entry in self._prefetched) else []

    def _exchange(self, queued: Sequence[QueueEntry], settled: Sequence[Member], back: Sequence[QueueEntry]) -> None:
        """In one transaction, push `queued`, acknowledge `settled`, return `back`, and claim the next entries.

        It must be atomic. A Redis that is out of memory rejects the ZADD that records the lease. It would still
        execute the ZREM that removes the entry, and the request would be lost.
        """
        was_claimed = bool(self._claiming)
        if not self._claiming and len(back) == len(self._prefetched):
            self._claiming = self._candidates[: _PREFETCH if len(self._candidates) == _PREFETCH_THRESHOLD else 1]
        claimed = self._claiming
        commands: list[Command] = [Command("ZADD", self._key, *flattened(queued))] if queued else []
        commands += self._ack_commands([*self._pending_acks, *settled], back)
        if claimed:
            commands.append(Command("ZADD", self._leases, *flattened(claimed)))
            commands += [Command("ZREM", self._key, entry.member) for entry in claimed]
        commands.append(Command("ZRANGE", self._key, 0, _PREFETCH_THRESHOLD - 1, "WITHSCORES"))
        *replies, head = self._transport.execute(commands, transaction=True)
        were_there = replies[len(replies) - len(claimed) :]
        ours = [entry for entry, was_there in zip(claimed, were_there, strict=True) if was_there or was_claimed]
        if back:
            self._prefetched.clear()
        for entry in back:
            self._drop_in_flight(entry.member)
        self._in_flight.update(as_bytes(entry.member) for entry in ours)
        self._prefetched.extend(ours)
        self._pending_acks = [entry.member for entry in claimed if entry not in ours]
        self._claiming = []
        self._candidates = _entries_of(head)

    def _drop_in_flight(self, member: Member) -> None:
        equal = as_bytes(member)
        self._in_flight[equal] -= 1
        if self._in_flight[equal] <= 0:
            del self._in_flight[equal]

    def _ack_commands(self, members: Sequence[Member], back: Sequence[QueueEntry] = ()) -> list[Command]:
        """Return the commands that acknowledge members.

        A member of which this worker has another copy in flight is skipped. Equal requests are one member of the set,
        and removing it would drop the lease of the other copy.
        """
        kept = self._in_flight - Counter(as_bytes(entry.member) for entry in back)
        kept.update(as_bytes(entry.member) for entry in self._claiming)
        return [
            Command("ZREM", self._leases, *chunk)
            for chunk in _chunks([member for member in members if as_bytes(member) not in kept])
        ]


def requeue_all(transport: Transport, key: str, source: str) -> int:
    """Move whatever is in the sorted set `source` to the queue, and return how much that was."""
    entries = _entries_of(transport.execute([Command("ZRANGE", source, 0, -1, "WITHSCORES")])[0])
    for chunk in _chunks(entries):
        members = [entry.member for entry in chunk]
        transport.execute(
            [Command("ZADD", key, *flattened(chunk)), Command("ZREM", source, *members)], transaction=True
        )
    return len(entries)


def _entries_of(reply: Sequence[Any]) -> list[QueueEntry]:
    """Return the entries of a ZRANGE WITHSCORES: pairs in RESP3, one list in RESP2."""
    pairs = reply if reply and isinstance(reply[0], list) else zip(reply[::2], reply[1::2], strict=True)
    return [QueueEntry(float(score), member) for member, score in pairs]


def _chunks(sequence: Sequence[T]) -> Iterable[Sequence[T]]:
    return (sequence[start : start + _CHUNK] for start in range(0, len(sequence), _CHUNK))
