"""The review of a queue's dead letters by an idle worker, which may be able to read what others could not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from scrapy_bloom.queue.entries import QueueEntry


@dataclass(frozen=True)
class Review:
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
