"""Serialized requests in the queue and the outbox, and the outbox's markers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

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
        is_unsure: the filter may know the request from an interrupted call of this worker.
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
