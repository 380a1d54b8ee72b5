"""The bytes of an exchange: fewer after one that a slow link did not get through in time, then slowly more again."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol, Self, TypeVar

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


class Room:
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
class Limit:
    """The bytes that an exchange of one worker carries at most: from 1 up to `highest`."""

    most_bytes: int = TUNING.exchange_bytes
    highest: int = TUNING.exchange_bytes

    def room(self) -> Room:
        """Return the room that one exchange has."""
        return Room(self.most_bytes)

    def share_of(self, number: int) -> int:
        """Return how many of so many requests of unknown size are asked for at once: one at least, if any."""
        return min(number, max(1, number * self.most_bytes // self.highest))

    def halved(self) -> Self:
        """Return the limit after an exchange that did not get through, or whose reply came too late."""
        return replace(self, most_bytes=max(1, self.most_bytes // 2))

    def grown(self) -> Self:
        """Return the limit after one that got through.

        It grows so slowly that a link that is too slow for more is not tried with it each time.
        """
        return replace(self, most_bytes=min(self.most_bytes + self.most_bytes // 32 + 1, self.highest))
