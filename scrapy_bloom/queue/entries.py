"""A request on its way: as an entry of the queue, and as one of the outbox, among marks that tell how far it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from scrapy import Request


class QueueEntry(NamedTuple):
    """A serialised request in the queue, and its score: the lowest goes first."""

    score: float
    member: bytes


@dataclass(frozen=True)
class OutboxEntry:
    """A serialised request with its score, on its way to the queue.

    `fingerprint` is what the filter is asked for, or None if it is not. Where the filter may know it from an
    interrupted call of this worker, the entry `is_unsure`. `request` is the one that it was made from, or None where it
    came from a file.
    """

    member: bytes
    score: float
    fingerprint: bytes | None
    is_unsure: bool = False
    request: "Request | None" = field(default=None, compare=False)

    @property
    def in_queue(self) -> QueueEntry:
        """The entry as it stands in the queue."""
        return QueueEntry(self.score, self.member)


@dataclass(frozen=True)
class Finished:
    """Stands in the outbox behind all that a request led to: where it comes up, the request can be acknowledged."""

    member: bytes
    score: ClassVar[float] = math.inf


@dataclass(frozen=True)
class Receipt:
    """Stands in the outbox behind some entries: it is due when they are leased or queued."""

    call: Callable[[], object]
    score: ClassVar[float] = math.inf
    member: ClassVar[bytes] = b""


OutboxItem = OutboxEntry | Finished | Receipt
