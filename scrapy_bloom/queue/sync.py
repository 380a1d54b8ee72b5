"""Sync batches: their contents, their bytes on a slow link, and pending syncs."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Protocol, Self, TypeVar

from scrapy_bloom._runtime import TUNING
from scrapy_bloom.queue.entries import OutboxEntry, OutboxItem, QueueEntry
from scrapy_bloom.queue.operations import Sync


class HasMember(Protocol):
    """A thing whose size is that of its member."""

    @property
    def member(self) -> bytes:
        """The serialized request."""


T = TypeVar("T", bound=HasMember)


def members_of(things: Iterable[HasMember]) -> tuple[bytes, ...]:
    """Return the members of things."""
    return tuple(thing.member for thing in things)


class ByteBudget:
    """The remaining bytes of one sync; the first thing always fits."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._is_empty = True

    def takes(self, thing: HasMember) -> bool:
        """Spend the size of a thing, and return whether it fits."""
        size = len(thing.member)
        if size > self._left and not self._is_empty:
            return False
        self._left -= size
        self._is_empty = self._is_empty and not size
        return True

    def first_of(self, things: Iterable[T]) -> tuple[T, ...]:
        """Spend the sizes of the first things that fit, and return these."""
        return tuple(takewhile(self.takes, things))


@dataclass(frozen=True)
class AdaptiveWindow:
    """The bytes that one sync carries: halved by a lost reply, grown by each delivery.

    Attributes:
        max_bytes: bytes of the next sync at most, 1 or more.
        max_window: the bound of `max_bytes`.
    """

    max_bytes: int = TUNING.sync_bytes
    max_window: int = TUNING.sync_bytes

    def budget(self) -> ByteBudget:
        """Return the budget of one sync."""
        return ByteBudget(self.max_bytes)

    def share_of(self, number: int) -> int:
        """Return the window's share of some requests of unknown size, at least one."""
        return min(number, max(1, number * self.max_bytes // self.max_window))

    def halved(self) -> Self:
        """Return the window after a sync that was lost or too slow."""
        return replace(self, max_bytes=max(1, self.max_bytes // 2))

    def grown(self) -> Self:
        """Return the window after a delivered sync.

        The window grows by 1/32, so that a slow link seldom meets a sync that is too large for it.
        """
        return replace(self, max_bytes=min(self.max_bytes + self.max_bytes // 32 + 1, self.max_window))


@dataclass(frozen=True)
class AskFilter:
    """Check entries against the filter, and add them to it."""

    entries: tuple[OutboxEntry, ...]


@dataclass(frozen=True)
class UseFilter:
    """Add the queue's reference to the filter."""


@dataclass(frozen=True)
class ReleaseFilter:
    """Remove the queue's reference; the filter is deleted with its last one."""


FilterOperation = AskFilter | UseFilter | ReleaseFilter


@dataclass(frozen=True)
class SyncBatch:
    """The part of a worker's state that fits into one sync.

    Attributes:
        new: the first entries that are new to the filter.
        repeats: the first repeats.
        unreadable: the first entries that cannot be deserialized.
        outbox: the first items of the outbox.
        to_lease: the entries of the outbox to lease, for the filter to check.
        queued: the entries to push: new ones, and those of the outbox that bypass the filter.
        finished: the finished requests whose children all stand before their markers.
    """

    new: tuple[OutboxEntry, ...] = ()
    repeats: tuple[OutboxEntry, ...] = ()
    unreadable: tuple[QueueEntry, ...] = ()
    outbox: tuple[OutboxItem, ...] = ()
    # They follow from the others.
    to_lease: tuple[OutboxEntry, ...] = field(default=(), compare=False)
    queued: tuple[QueueEntry, ...] = field(default=(), compare=False)
    finished: tuple[bytes, ...] = field(default=(), compare=False)

    @property
    def acknowledged(self) -> tuple[bytes, ...]:
        """The members whose leases end, unless an equal request needs them."""
        return (*members_of(self.repeats), *members_of(self.unreadable), *self.finished)


@dataclass(frozen=True)
class PendingSync:
    """A sync that was handed out, and its effect on the worker if it is executed.

    Attributes:
        sync: the operation.
        kept: members that are leased afterwards, without the entries that the sync takes.
        batch: the part of the state that the sync carries.
        returned: ready entries that the sync pushes back.
        reclaimed: the number of `to_reclaim` entries that the sync leases.
    """

    sync: Sync
    kept: frozenset[bytes]
    batch: SyncBatch = SyncBatch()
    returned: tuple[QueueEntry, ...] = ()
    reclaimed: int = 0
