"""A queue in this process: what the scripts do on a server, these functions do here. A test holds one to the other."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Self

from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.operations import Answer, Ending, Said

SortedSet = dict[bytes, float]
Fields = dict[bytes, bytes]


@dataclass(frozen=True)
class Registration:
    """The value of a worker in the hash of workers."""

    lease: str
    number: int
    is_void: bool = False
    beats: int = 0
    is_closing: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what a value says."""
        lease, number, beats, *closing = text.split()
        return cls(lease, int(number.rstrip("v")), number.endswith("v"), int(beats), bool(closing))

    def __str__(self) -> str:
        return f"{self.lease} {self.number}{'v' * self.is_void} {self.beats}{' closing' * self.is_closing}"


class QueueMemory:
    """The sorted sets and the workers of one queue."""

    def __init__(self) -> None:
        self.queue: SortedSet = {}
        self.dead_letters: SortedSet = {}
        self.leases: dict[str, SortedSet] = {}
        self.workers: dict[str, str] = {}

    def sorted_sets(self, keys: QueueKeys) -> dict[str, SortedSet]:
        """Return by its key each sorted set that a server has in this state."""
        leases = {keys.leases(name): held for name, held in self.leases.items()}
        return {keys.queue: self.queue, keys.dead_letters: self.dead_letters, **leases}

    def hashes(self, keys: QueueKeys) -> dict[str, Fields]:
        """Return by its key each hash that a server has in this state."""
        return {keys.workers: {name.encode(): value.encode() for name, value in self.workers.items()}}

    @singledispatchmethod
    def apply(self, operation: object) -> Answer:
        """Carry out an operation."""
        raise TypeError(operation)

    @apply.register
    def _join(self, op: ops.Join) -> Answer:
        if any(Registration.parse(text).is_closing for name, text in self.workers.items() if name != op.worker):
            return Answer(Said.WAIT)
        mine = self._find(op.worker)
        if mine is not None and mine.is_closing:
            return Answer(Said.YOURS)
        if mine is None or mine.number < op.number:
            self._requeue(op.worker)
            if op.is_new:
                self.queue.update(self.dead_letters)
                self.dead_letters = {}
            self._record(op.worker, Registration(op.lease, op.number))
        return Answer(Said.OK, (), dict(self.workers), len(self.queue))

    @apply.register
    def _exchange(self, op: ops.Exchange) -> Answer:
        mine = self._find(op.worker)
        if mine is None or mine.is_closing or op.number > mine.number + 1:
            return Answer(Said.EXPIRED)
        leased = self.leases.setdefault(op.worker, {})
        if op.number == mine.number:
            return Answer(Said.AGAIN, tuple(in_order(leased)))
        if op.number < mine.number:
            return Answer(Said.LATE)
        _put(leased, op.leases)
        _put(self.queue, op.pushes)
        _put(self.dead_letters, op.asides)
        for member in (*op.acks, *(entry.member for entry in op.pushes[: op.released])):
            leased.pop(member, None)
        taken = self._take(op.want, leased)
        self._record(op.worker, replace(mine, number=op.number, is_void=False))
        if taken or not op.want:
            return Answer(Said.OK, taken)
        number = sum(len(self.leases.get(worker, ())) for worker in self.workers)
        return Answer(Said.OK, (), dict(self.workers), len(self.queue), number, len(self.dead_letters))

    @apply.register
    def _settle(self, op: ops.Settle) -> Answer:
        mine = self._find(op.worker)
        if mine is None or mine.is_closing or not mine.number <= op.number <= mine.number + 1:
            return Answer(Said.EXPIRED)
        if op.number == mine.number and not mine.is_void:
            leased = self.leases.get(op.worker, {})
            kept = leased if op.kept is None else [member for member in leased if {*ops.digests([member])} & {*op.kept}]
            for member in leased.keys() - set(kept):
                self.queue[member] = leased.pop(member)
            return Answer(Said.DONE)
        self._record(op.worker, replace(mine, number=op.number, is_void=True))
        return Answer(Said.VOID)

    @apply.register
    def _heartbeat(self, op: ops.Heartbeat) -> Answer:
        mine = self._find(op.worker)
        if mine is not None:
            self._record(op.worker, replace(mine, beats=mine.beats + 1))
        return Answer(Said.EXPIRED if mine is None else Said.OK, (), dict(self.workers))

    @apply.register
    def _requeue_dead(self, op: ops.Requeue) -> Answer:
        if self.workers.get(op.dead) != op.value:
            return Answer(Said.ALIVE)
        mine = self._find(op.worker)
        if Registration.parse(op.value).is_closing:
            if mine is not None:
                return Answer(Said.ALIVE)
            del self.workers[op.dead]
            self._record(op.worker, Registration(op.lease, op.number, is_closing=True))
            return Answer(Said.YOURS)
        if mine is None or mine.is_closing:
            return Answer(Said.EXPIRED)
        number = self._requeue(op.dead)
        del self.workers[op.dead]
        return Answer(Said.REQUEUED, (), {}, number)

    @apply.register
    def _leave(self, op: ops.Leave) -> Answer:
        mine = self._find(op.worker)
        if mine is None or (not mine.is_closing and mine.number != op.number):
            return Answer(Said.EXPIRED)
        said = Said.LAST
        if not mine.is_closing:
            self._requeue(op.worker)
            is_kept = op.ending is Ending.KEEP or (op.ending is Ending.FINISHED and self.queue)
            if is_kept or len(self.workers) > 1:
                del self.workers[op.worker]
                said = Said.LEFT
            else:
                self._record(op.worker, replace(mine, is_closing=True))
        return Answer(said, (), {}, len(self.queue), 0, len(self.dead_letters))

    @apply.register
    def _end_closing(self, op: ops.EndClosing) -> Answer:
        mine = self._find(op.worker)
        if mine is None or not mine.is_closing:
            return Answer(Said.EXPIRED)
        if op.clears:
            self.queue = {}
        del self.workers[op.worker]
        return Answer(Said.OK)

    @apply.register
    def _read_dead_letters(self, op: ops.ReadDeadLetters) -> Answer:
        return Answer(Said.OK, tuple(in_order(self.dead_letters)[op.start : op.start + op.count]))

    @apply.register
    def _redrive(self, op: ops.Redrive) -> Answer:
        mine = self._find(op.worker)
        if mine is None or mine.is_closing:
            return Answer(Said.EXPIRED)
        for member in op.members:
            if member in self.dead_letters:
                self.queue[member] = self.dead_letters.pop(member)
        return Answer(Said.OK)

    @apply.register
    def _flush(self, op: ops.Flush) -> Answer:
        is_foreign = (self.queue and op.kind != "zset") or self.workers.keys() - set(op.known)
        if op.kind and is_foreign:
            return Answer(Said.FOREIGN)
        for worker in self.workers:
            self.leases.pop(worker, None)
        self.queue, self.dead_letters, self.workers = {}, {}, {}
        return Answer(Said.OK)

    def _find(self, worker: str) -> Registration | None:
        text = self.workers.get(worker)
        return None if text is None else Registration.parse(text)

    def _record(self, worker: str, registration: Registration) -> None:
        self.workers[worker] = str(registration)

    def _requeue(self, worker: str) -> int:
        leased = self.leases.pop(worker, {})
        self.queue.update(leased)
        return len(leased)

    def _take(self, want: int, leased: SortedSet) -> tuple[QueueEntry, ...]:
        if not want:
            return ()
        most = min(want, max(1, len(self.queue) // (len(self.workers) + 1)))
        entries = in_order(self.queue)
        taken: list[QueueEntry] = []
        for first in range(0, len(entries), most):
            taken = [entry for entry in entries[first : first + most] if entry.member not in leased]
            if taken:
                break
        _put(leased, taken)
        for entry in taken:
            del self.queue[entry.member]
        return tuple(taken)


def _put(target: SortedSet, entries: Iterable[QueueEntry]) -> None:
    target.update((member, score) for score, member in entries)


def in_order(entries: SortedSet) -> list[QueueEntry]:
    """Return the entries of a sorted set: the lowest score first, and of equal scores the lowest member."""
    return sorted(QueueEntry(score, member) for member, score in entries.items())
