"""A request on its way: as an entry of the queue, and as one of the outbox."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.transport.commands import Command

if TYPE_CHECKING:
    from scrapy import Request

Member = bytes | str


class QueueEntry(NamedTuple):
    """A serialised request in the queue, and its score: the lowest goes first."""

    score: float
    member: Member


class LeaseEntries(NamedTuple):
    """Lease requests before the filter is told of them. It is an operation that goes with the filter's."""

    key: str
    entries: tuple[QueueEntry, ...]

    def command(self) -> Command:
        """Return a ZADD with scores and members."""
        return Command("ZADD", self.key, *flattened(self.entries))

    def parse_reply(self, raw: Any) -> int:
        """Return how many were not leased yet."""
        return int(raw)

    def apply(self, memory: Any) -> int:
        """Raise an error: there is no queue in memory."""
        raise NotImplementedError


@dataclass(eq=False)
class OutboxEntry:
    """A serialised request with its score.

    `fingerprint` is what the filter is asked for, or None when it need not be any more. `request` is the one that it
    was made from, or None where it came from a file.
    """

    member: Member
    score: float
    fingerprint: bytes | None
    request: "Request | None" = None

    @property
    def in_queue(self) -> QueueEntry:
        """The entry as it stands in the queue."""
        return QueueEntry(self.score, self.member)


def flattened(entries: Iterable[QueueEntry]) -> Iterable[Member | float]:
    """Return scores and members in turn, as ZADD takes them."""
    return (part for entry in entries for part in entry)
