"""The requests that a worker has died with: which of them a worker has ready, and which one it may give to the engine.

A suspect is started in Redis before the engine gets it, and a worker runs one suspect at a time, beside other requests.
So a death counts for one suspect, which need not have caused it.

A suspect whose next death makes it a dead letter runs alone. The worker starts it when all others that it ran are
acknowledged, and takes nothing until it is acknowledged itself. So no request becomes a dead letter for another one.

An idle worker also scans the dead letters: it may be able to read what other workers could not.
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
        waiting: suspects that are ready and not started.
        alone: suspects that run alone.
        started: the suspect that was started last, until it is acknowledged or given back.
    """

    max_deliveries: int = 0
    waiting: frozenset[bytes] = frozenset()
    alone: frozenset[bytes] = frozenset()
    started: bytes | None = None

    def first_of(self, ready: Iterable[QueueEntry], held: Iterable[bytes], *, is_busy: bool) -> QueueEntry | None:
        """Return the entry that goes first of those that are ready and may go now.

        A suspect waits for the one that was started. One that runs alone waits for all others, and has the rest wait.

        Args:
            ready: entries that may be taken, in their order.
            held: all that the worker has leased.
            is_busy: whether the worker has run something that is not acknowledged.
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
        """Return whether further entries may be taken beside those held: with one that runs alone they would wait."""
        return not self.alone & {*self.waiting, self._under_way(held)}

    def told(self, deaths: Mapping[bytes, int], ready: Collection[bytes]) -> Self:
        """Return them after a reply told with how many workers some of those that are ready have died."""
        new = deaths.keys() & ready
        last = {member for member in new if 0 < self.max_deliveries <= deaths[member] + 1}
        return replace(self, waiting=self.waiting | new, alone=(self.alone - new) | last)

    def among(self, ready: Collection[bytes]) -> Self:
        """Return them when others than these are not ready any more."""
        waiting = self.waiting & set(ready)
        return replace(self, waiting=waiting, alone=self.alone & {*waiting, self.started})

    def begun(self, member: bytes) -> Self:
        """Return them after one was started."""
        return replace(self, waiting=self.waiting - {member}, started=member)

    def ended(self, members: Collection[bytes]) -> Self:
        """Return them after entries were acknowledged or given back."""
        return replace(self, started=None, alone=self.alone - {self.started}) if self.started in members else self

    def doubted(self) -> Self:
        """Return them after others may have died with those that wait, which then run alone."""
        return replace(self, alone=self.alone | self.waiting) if self.max_deliveries else self

    def _under_way(self, held: Iterable[bytes]) -> bytes | None:
        """Return the suspect that was started and is not acknowledged: a death would count for it."""
        if self.started is None or self.started in self.waiting:
            return None
        return self.started if self.started in held else None


@dataclass(frozen=True)
class DeadLetterScan:
    """The state of a review: the next dead letter to look at is at `place`, or none is under way.

    `readable` are those that are to be queued again. There were `number` dead letters when this review began, and
    `reviewed` when the last one ended.
    """

    place: int | None = None
    number: int = 0
    reviewed: int = 0
    readable: tuple[QueueEntry, ...] = ()

    def begun(self, number: int) -> Self:
        """Return it at the first of so many dead letters."""
        return replace(self, place=0, number=number)

    def read(self, entries: Sequence[QueueEntry], wanted: int, can_read: Callable[[QueueEntry], bool]) -> Self:
        """Return it after the dead letters that came next; where there were fewer than `wanted` it is over."""
        if self.place is None:
            return self
        readable = tuple(entry for entry in entries if can_read(entry))
        if len(entries) < wanted:
            return replace(self, place=None, reviewed=self.number, readable=readable)
        return replace(self, place=self.place + len(entries), readable=readable)

    def redriven(self, count: int) -> Self:
        """Return it after the first of the readable ones were queued again."""
        return replace(self, readable=self.readable[count:])

    def broken_off(self) -> Self:
        """Return it with nothing under way."""
        return replace(self, place=None, readable=())
