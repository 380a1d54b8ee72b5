"""Entries of the queue and the outbox, the outbox's markers, and how many of them one sync carries."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, Self, TypeVar

from scrapy_bloom._runtime import TUNING

if TYPE_CHECKING:
    from scrapy import Request


class QueueEntry(NamedTuple):
    """A serialized request and its score; the lowest score goes first."""

    score: float
    member: bytes


@dataclass(frozen=True)
class OutboxEntry:
    """A serialized request on its way to the queue.

    Attributes:
        member: the serialized request.
        score: its score in the queue.
        fingerprint: the item for the filter, or None to bypass the filter.
        is_unsure: the filter may know the request, from an interrupted call of this worker or by BLOOMFILTER_ALWAYS
            from an earlier run, and it counts as new all the same.
        request: the request itself, or None if the entry was read from a file.
    """

    member: bytes
    score: float
    fingerprint: bytes | None
    is_unsure: bool = False
    request: "Request | None" = field(default=None, compare=False)

    @property
    def in_queue(self) -> QueueEntry:
        """The entry of the queue."""
        return QueueEntry(self.score, self.member)


@dataclass(frozen=True)
class Finished:
    """Outbox marker after a request's children; sending it acknowledges the request."""

    member: bytes
    score: ClassVar[float] = math.inf


@dataclass(frozen=True)
class Receipt:
    """Outbox marker after some entries; it is due when they are leased or queued."""

    call: Callable[[], object]
    score: ClassVar[float] = math.inf
    member: ClassVar[bytes] = b""


OutboxItem = OutboxEntry | Finished | Receipt


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
