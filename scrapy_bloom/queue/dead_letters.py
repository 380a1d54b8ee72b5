"""Suspects, requests that a worker has died with, and the scan of dead letters.

A suspect is started in Redis before the engine gets it, and a worker runs one suspect at a time,
beside other requests. So a death counts for one suspect, which need not have caused it.

A suspect whose next death makes it a dead letter runs alone: the worker starts it when all its
other requests are acknowledged, and takes none until the suspect is acknowledged itself. So no
request becomes a dead letter for another one (S8 at the head of `queue.worker`).

An idle worker also scans the dead letters: it may be able to deserialize some that others could
not.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from scrapy_bloom.queue.entries import QueueEntry


@dataclass(frozen=True)
class Suspects:
    """The suspects of a worker.

    Attributes:
        max_deliveries: workers that may die with a request; 0 is no bound.
        waiting: ready suspects that are not started.
        alone: suspects that run alone.
        started: the suspect that was started last, until it is acknowledged or pushed back.
    """

    max_deliveries: int = 0
    waiting: frozenset[bytes] = frozenset()
    alone: frozenset[bytes] = frozenset()
    started: bytes | None = None

    def first_of(self, ready: Iterable[QueueEntry], held: Iterable[bytes], *, is_busy: bool) -> QueueEntry | None:
        """Return the ready entry that may go next, or None.

        A suspect waits for the started one. A suspect that runs alone waits for all other requests,
        and these wait for it.

        Args:
            ready: ready entries in their order.
            held: members that the worker has leased.
            is_busy: whether the worker has run a request that is not acknowledged.
        """
        if not self.waiting and self.started not in self.alone:
            return next(iter(ready), None)
        started = self._under_way(held)
        own = next((entry for entry in ready if entry.member == started), None)
        if started in self.alone:
            return own
        for entry in ready:
            if entry.member not in self.waiting:
                return entry
            if entry.member in self.alone:
                return own if is_busy or started is not None else entry
            if started is None:
                return entry
        return None

    def has_room(self, held: Collection[bytes]) -> bool:
        """Return False if further entries would wait for a suspect that runs alone."""
        return not self.alone & {*self.waiting, self._under_way(held)}

    def counted(self, deaths: Mapping[bytes, int], ready: Collection[bytes]) -> Self:
        """Return the suspects after a reply with the number of deaths of ready members."""
        new = deaths.keys() & ready
        last = {member for member in new if 0 < self.max_deliveries <= deaths[member] + 1}
        return replace(self, waiting=self.waiting | new, alone=(self.alone - new) | last)

    def among(self, ready: Collection[bytes]) -> Self:
        """Return the suspects when only these members are ready."""
        waiting = self.waiting & set(ready)
        return replace(self, waiting=waiting, alone=self.alone & {*waiting, self.started})

    def begun(self, member: bytes) -> Self:
        """Return the suspects after one was started."""
        return replace(self, waiting=self.waiting - {member}, started=member)

    def ended(self, members: Collection[bytes]) -> Self:
        """Return the suspects after members were acknowledged or pushed back."""
        return replace(self, started=None, alone=self.alone - {self.started}) if self.started in members else self

    def doubted(self) -> Self:
        """Return the suspects after an expiry: others may have died with waiting ones."""
        return replace(self, alone=self.alone | self.waiting) if self.max_deliveries else self

    def _under_way(self, held: Iterable[bytes]) -> bytes | None:
        """Return the started suspect that is not acknowledged: a death would count for it."""
        if self.started is None or self.started in self.waiting:
            return None
        return self.started if self.started in held else None


@dataclass(frozen=True)
class DeadLetterScan:
    """Progress of a scan of the dead letters.

    Attributes:
        place: the place of the next dead letter to read, or None if no scan is under way.
        number: dead letters at the start of this scan.
        reviewed: dead letters at the start of the last complete scan.
        readable: dead letters to requeue.
    """

    place: int | None = None
    number: int = 0
    reviewed: int = 0
    readable: tuple[QueueEntry, ...] = ()

    def begun(self, number: int) -> Self:
        """Return the scan at the first of `number` dead letters."""
        return replace(self, place=0, number=number)

    def read(self, entries: Sequence[QueueEntry], wanted: int, can_read: Callable[[QueueEntry], bool]) -> Self:
        """Return the scan after the next dead letters; fewer than `wanted` are the last."""
        if self.place is None:
            return self
        readable = tuple(entry for entry in entries if can_read(entry))
        if len(entries) < wanted:
            return replace(self, place=None, reviewed=self.number, readable=readable)
        return replace(self, place=self.place + len(entries), readable=readable)

    def redriven(self, count: int) -> Self:
        """Return the scan after the first `count` readable dead letters were requeued."""
        return replace(self, readable=self.readable[count:])

    def broken_off(self) -> Self:
        """Return the scan without progress."""
        return replace(self, place=None, readable=())
