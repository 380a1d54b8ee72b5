"""The in-memory twin of the queue's scripts, which `test_scripts` compares."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any, Self

from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.operations import Ending, Reply, Status, spider_mark
from scrapy_bloom.queue.queue_keys import QueueKeys

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
    spider: str = ""
    is_flush: bool = False  # the closing of a flush

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the registration in a stored value."""
        lease, number, beats, *marks = text.split()
        spider = "".join(f" {mark}" for mark in marks if mark.startswith("@"))
        number, is_void, is_flush = number.rstrip("v"), number.endswith("v"), "flush" in marks
        return cls(lease, int(number), is_void, int(beats), "closing" in marks, spider, is_flush)

    def __str__(self) -> str:
        closing = " closing" * self.is_closing + " flush" * self.is_flush
        return f"{self.lease} {self.number}{'v' * self.is_void} {self.beats}{closing}{self.spider}"


@dataclass(frozen=True)
class Audit:
    """The audit of a queue: waiting requests, the last loss, and lost requests."""

    waiting: int = 0
    loss: int = 0
    lost: int = 0
    is_shared: bool = False

    def seeing(self, waiting: int) -> Self:
        """Return the audit at the start of a script that finds so many waiting requests."""
        if waiting >= self.waiting:
            return self
        seen = replace(self, waiting=waiting)
        if waiting:
            return replace(seen, is_shared=True)
        return seen if self.is_shared else seen.losing(self.waiting)

    def fields(self) -> Fields:
        """Return the fields of the server's hash."""
        numbers = {b"waiting": self.waiting, b"loss": self.loss, b"lost": self.lost, b"shared": int(self.is_shared)}
        has_lost = b"lost" if self.loss else None
        return {name: b"%d" % number for name, number in numbers.items() if number or name == has_lost}

    def losing(self, number: int) -> Self:
        """Return the audit after the loss of a number of requests."""
        return replace(self, loss=self.loss + 1, lost=self.lost + number)


class QueueMemory:
    """The sorted sets and the workers of one queue."""

    def __init__(self) -> None:
        self.queue: SortedSet = {}
        self.dead_letters: SortedSet = {}
        self.leases: dict[str, SortedSet] = {}
        self.workers: dict[str, str] = {}
        self.audit = Audit()
        # For each request the number of workers that died with it, and the worker that has started it since.
        self.deliveries: dict[bytes, tuple[int, str]] = {}

    def sorted_sets(self, keys: QueueKeys) -> dict[str, SortedSet]:
        """Return the server's sorted sets in this state, by key."""
        leases = {keys.leases(name): held for name, held in self.leases.items()}
        return {keys.queue: self.queue, keys.dead_letters: self.dead_letters, **leases}

    def hashes(self, keys: QueueKeys) -> dict[str, Fields]:
        """Return the server's hashes in this state, by key."""
        deliveries = {
            member: f"{count} {starter}".strip().encode() for member, (count, starter) in self.deliveries.items()
        }
        return {
            keys.workers: {name.encode(): value.encode() for name, value in self.workers.items()},
            keys.audit: self.audit.fields(),
            keys.deliveries: deliveries,
        }

    def apply(self, operation: object) -> Reply:
        """Execute an operation."""
        if isinstance(operation, ops.Flush):
            return self._execute(operation)
        self.audit = self.audit.seeing(len(self.queue))
        reply = self._execute(operation)
        self.audit = replace(self.audit, waiting=len(self.queue))
        return reply

    @singledispatchmethod
    def _execute(self, operation: object) -> Reply:
        raise TypeError(operation)

    def _reply(self, status: Status, *rest: Any) -> Reply:
        """Return a reply with the losses and suspects."""
        reply = Reply(status, *rest)
        members = (entry.member for entry in reply.entries if entry.member in self.deliveries)
        suspects = {member: self.deliveries[member][0] for member in members}
        return replace(reply, loss=self.audit.loss, lost=self.audit.lost, suspects=suspects)

    @_execute.register
    def _join(self, op: ops.Join) -> Reply:
        mark = spider_mark(op.spider)
        others = [Registration.parse(text) for name, text in self.workers.items() if name != op.worker]
        # A server's small hash keeps its fields in the order of insertion.
        for other in others:
            if other.spider and mark and other.spider != mark:
                return self._reply(Status.FOREIGN, (), dict(self.workers))
            if other.is_closing:
                return Reply(Status.WAIT)
        status = Status.OK
        mine = self.find(op.worker)
        if mine is not None and mine.is_closing:
            return Reply(Status.FLUSHED if mine.is_flush else Status.YOURS)
        if mine is None or mine.number < op.number:
            if mine is not None:
                status = Status.ROLLED_BACK
            elif not op.is_new and op.number:
                status = Status.PRESUMED_DEAD if others else Status.LOST
            if status is Status.LOST:
                self.audit = self.audit.losing(0)
            self._requeue(op.worker)
            if op.is_new:
                for member in self.dead_letters.keys() - self.deliveries.keys():
                    self.queue[member] = self.dead_letters.pop(member)
            self.record(op.worker, Registration(op.lease_seconds, op.number, spider=mark))
        return self._reply(status, (), dict(self.workers), len(self.queue))

    @_execute.register
    def _sync(self, op: ops.Sync) -> Reply:
        mine = self.find(op.worker)
        if mine is None or mine.is_closing or op.number > mine.number + 1:
            return Reply(Status.EXPIRED)
        leased = self.leases.setdefault(op.worker, {})
        if op.number == mine.number:
            return self._reply(Status.AGAIN, tuple(in_order(leased)))
        if op.number < mine.number:
            return Reply(Status.LATE)
        _put(leased, op.leases)
        _put(self.queue, op.pushes)
        _put(self.dead_letters, op.dead_letters)
        for member in op.starts:
            if member in self.deliveries:
                self.deliveries[member] = self.deliveries[member][0], op.worker
        for member in op.acks:
            if self.deliveries.get(member, (0, ""))[1] == op.worker:
                del self.deliveries[member]
                self.dead_letters.pop(member, None)
        for entry in op.dead_letters:
            self.deliveries.pop(entry.member, None)
        for member in (*op.acks, *(entry.member for entry in op.pushes[: op.released])):
            leased.pop(member, None)
        taken = self.take(op.want, leased)
        for entry in taken:
            count, starter = self.deliveries.get(entry.member, (0, ""))
            if starter == op.worker:
                self.deliveries[entry.member] = count, ""
        self.record(op.worker, replace(mine, number=op.number, is_void=False))
        if taken or not op.want:
            return self._reply(Status.OK, taken)
        number = sum(len(self.leases.get(worker, ())) for worker in self.workers)
        return self._reply(Status.OK, (), dict(self.workers), len(self.queue), number, len(self.dead_letters))

    @_execute.register
    def _resolve_in_doubt(self, op: ops.ResolveInDoubt) -> Reply:
        mine = self.find(op.worker)
        if mine is None or mine.is_closing or not mine.number <= op.number <= mine.number + 1:
            return Reply(Status.EXPIRED)
        if op.number == mine.number and not mine.is_void:
            leased = self.leases.get(op.worker, {})
            kept = leased if op.kept is None else [member for member in leased if {*ops.digests([member])} & {*op.kept}]
            for member in leased.keys() - set(kept):
                self.queue[member] = leased.pop(member)
            return Reply(Status.DONE)
        self.record(op.worker, replace(mine, number=op.number, is_void=True))
        return Reply(Status.VOID)

    @_execute.register
    def _heartbeat(self, op: ops.Heartbeat) -> Reply:
        mine = self.find(op.worker)
        if mine is not None:
            self.record(op.worker, replace(mine, beats=mine.beats + 1))
        return self._reply(Status.EXPIRED if mine is None else Status.OK, (), dict(self.workers))

    @_execute.register
    def _requeue_dead(self, op: ops.Requeue) -> Reply:
        if self.workers.get(op.dead) != op.value:
            return Reply(Status.ALIVE)
        mine = self.find(op.worker)
        dead = Registration.parse(op.value)
        if dead.is_closing:
            if mine is not None:
                return Reply(Status.ALIVE)
            del self.workers[op.dead]
            closing = Registration(op.lease_seconds, op.number, is_closing=True, is_flush=dead.is_flush)
            self.record(op.worker, closing)
            return Reply(Status.YOURS)
        if mine is None or mine.is_closing:
            return Reply(Status.EXPIRED)
        leased = self.leases.pop(op.dead, {})
        buried = {member for member in leased if op.max_deliveries and self.count_death(op, member)}
        self.dead_letters.update((member, score) for member, score in leased.items() if member in buried)
        self.queue.update((member, score) for member, score in leased.items() if member not in buried)
        del self.workers[op.dead]
        entries = tuple(entry for entry in in_order(leased) if entry.member in buried)
        return replace(self._reply(Status.REQUEUED, entries), requeued=len(leased) - len(buried))

    def count_death(self, op: ops.Requeue, member: bytes) -> bool:
        """Count a worker's death with a request; return whether it becomes a dead letter."""
        count, starter = self.deliveries.get(member, (0, ""))
        if count and starter != op.dead:
            return False
        self.deliveries[member] = count + 1, ""
        return count + 1 >= op.max_deliveries

    @_execute.register
    def _leave(self, op: ops.Leave) -> Reply:
        mine = self.find(op.worker)
        if mine is None or (not mine.is_closing and mine.number != op.number):
            return Reply(Status.EXPIRED)
        status = Status.FLUSHED if mine.is_flush else Status.LAST
        if not mine.is_closing:
            self._requeue(op.worker)
            is_kept = op.ending is Ending.KEEP or (op.ending is Ending.FINISHED and self.queue)
            if is_kept or len(self.workers) > 1:
                del self.workers[op.worker]
                status = Status.LEFT
            else:
                self.record(op.worker, replace(mine, is_closing=True))
        return self._reply(status, (), None, len(self.queue), 0, len(self.dead_letters))

    @_execute.register
    def _end_closing(self, op: ops.EndClosing) -> Reply:
        mine = self.find(op.worker)
        if mine is None or not mine.is_closing:
            return Reply(Status.EXPIRED)
        if op.clears:
            self.queue = {}
        if not self.queue:
            self.audit = Audit()
            self.deliveries = {m: value for m, value in self.deliveries.items() if m in self.dead_letters}
        del self.workers[op.worker]
        if op.stays:
            mark = spider_mark(op.spider)
            self.record(op.worker, Registration(mine.lease, mine.number, mine.is_void, mine.beats + 1, spider=mark))
        return Reply(Status.OK)

    @_execute.register
    def _read_dead_letters(self, op: ops.ReadDeadLetters) -> Reply:
        return self._reply(Status.OK, tuple(in_order(self.dead_letters)[op.start : op.start + op.count]))

    @_execute.register
    def _redrive(self, op: ops.Redrive) -> Reply:
        mine = self.find(op.worker)
        if mine is None or mine.is_closing:
            return Reply(Status.EXPIRED)
        for member in op.members:
            if member in self.dead_letters:
                self.queue[member] = self.dead_letters.pop(member)
                self.deliveries.pop(member, None)
        return Reply(Status.OK)

    @_execute.register
    def _flush(self, op: ops.Flush) -> Reply:
        is_foreign = (self.queue and op.kind != "zset") or self.workers.keys() - set(op.known)
        if op.kind and is_foreign:
            return Reply(Status.FOREIGN)
        mine = self.find(op.worker)
        for worker in self.workers:
            self.leases.pop(worker, None)
        self.queue, self.dead_letters, self.workers = {}, {}, {}
        self.audit, self.deliveries = Audit(), {}
        if op.lease_seconds:
            beats = 0 if mine is None else mine.beats + 1
            self.record(op.worker, Registration(op.lease_seconds, 0, beats=beats, is_closing=True, is_flush=True))
        return Reply(Status.OK)

    def find(self, worker: str) -> Registration | None:
        text = self.workers.get(worker)
        return None if text is None else Registration.parse(text)

    def record(self, worker: str, registration: Registration) -> None:
        self.workers[worker] = str(registration)

    def _requeue(self, worker: str) -> int:
        leased = self.leases.pop(worker, {})
        self.queue.update(leased)
        return len(leased)

    def take(self, want: int, leased: SortedSet) -> tuple[QueueEntry, ...]:
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
    """Return the entries of a sorted set, by score and then by member."""
    return sorted(QueueEntry(score, member) for member, score in entries.items())
