"""Sync batches: their requests, their size on a slow link, and the worker's pending plan."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol, Self, TypeVar

from scrapy_bloom.queue.entries import Finished, OutboxEntry, OutboxItem, QueueEntry
from scrapy_bloom.queue.operations import Sync
from scrapy_bloom.queue.tuning import TUNING


class HasMember(Protocol):
    """A thing that takes as many bytes as its member has."""

    @property
    def member(self) -> bytes:
        """A serialised request."""


T = TypeVar("T", bound=HasMember)


def members_of(things: Iterable[HasMember]) -> tuple[bytes, ...]:
    """Return what some things have as their members."""
    return tuple(thing.member for thing in things)


class ByteBudget:
    """The bytes that one exchange has left; the first thing has room, however large it is."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._is_empty = True

    def takes(self, thing: HasMember) -> bool:
        """Return whether there is room for a thing, which is taken then."""
        size = len(thing.member)
        if size > self._left and not self._is_empty:
            return False
        self._left -= size
        self._is_empty = self._is_empty and not size
        return True

    def first_of(self, things: Iterable[T]) -> tuple[T, ...]:
        """Take the first of some things, as many as there is room for."""
        return tuple(takewhile(self.takes, things))


@dataclass(frozen=True)
class AdaptiveWindow:
    """The bytes that an exchange of one worker carries at most: from 1 up to `highest`."""

    max_bytes: int = TUNING.sync_bytes
    max_window: int = TUNING.sync_bytes

    def budget(self) -> ByteBudget:
        """Return the room that one exchange has."""
        return ByteBudget(self.max_bytes)

    def share_of(self, number: int) -> int:
        """Return how many of so many requests of unknown size are asked for at once: one at least, if any."""
        return min(number, max(1, number * self.max_bytes // self.max_window))

    def halved(self) -> Self:
        """Return the limit after an exchange that did not get through, or whose reply came too late."""
        return replace(self, max_bytes=max(1, self.max_bytes // 2))

    def grown(self) -> Self:
        """Return the limit after one that got through.

        It grows so slowly that a link that is too slow for more is not tried with it each time.
        """
        return replace(self, max_bytes=min(self.max_bytes + self.max_bytes // 32 + 1, self.max_window))


@dataclass(frozen=True)
class AskFilter:
    """The question which of some entries are new. The filter remembers them then."""

    entries: tuple[OutboxEntry, ...]


@dataclass(frozen=True)
class UseFilter:
    """Be one of those for whom the filter is kept."""


@dataclass(frozen=True)
class ReleaseFilter:
    """Be none of them any more. The filter is deleted with its last user."""


FilterOperation = AskFilter | UseFilter | ReleaseFilter


@dataclass(frozen=True)
class SyncBatch:
    """The part of what a worker has to tell the queue that one exchange has room for.

    It is the first of those that are `new`, of the `repeats`, of those that are `unreadable`, and of the `outbox`.
    """

    new: tuple[OutboxEntry, ...] = ()
    repeats: tuple[OutboxEntry, ...] = ()
    unreadable: tuple[QueueEntry, ...] = ()
    outbox: tuple[OutboxItem, ...] = ()

    @property
    def asked(self) -> tuple[OutboxEntry, ...]:
        """Those of the outbox that are leased, and that the filter is asked for next."""
        return tuple(entry for entry in self._entries if entry.fingerprint is not None)

    @property
    def queued(self) -> tuple[QueueEntry, ...]:
        """Those that are pushed: the new ones, and those of the outbox that do not go through the filter."""
        unfiltered = (entry for entry in self._entries if entry.fingerprint is None)
        return tuple(entry.in_queue for entry in (*self.new, *unfiltered))

    @property
    def finished(self) -> tuple[bytes, ...]:
        """Those that the engine is done with, and all that they led to is in the outbox before them."""
        return tuple(item.member for item in self.outbox if isinstance(item, Finished))

    @property
    def over(self) -> tuple[bytes, ...]:
        """Those that need not be leased any more."""
        return (*members_of(self.repeats), *members_of(self.unreadable), *self.finished)

    @property
    def _entries(self) -> list[OutboxEntry]:
        return [item for item in self.outbox if isinstance(item, OutboxEntry)]


@dataclass(frozen=True)
class PendingSync:
    """An exchange, and what changes hands when it is carried out.

    `kept` members are leased then, and what it takes. Those that are `returned` were ready. Of those that are to be
    leased again the first `reclaimed` are.
    """

    sync: Sync
    kept: frozenset[bytes]
    batch: SyncBatch = SyncBatch()
    returned: tuple[QueueEntry, ...] = ()
    reclaimed: int = 0
