"""The plans of a worker beside operations on its queue: what it asks the filter, and what an exchange will change."""

from dataclasses import dataclass

from scrapy_bloom.queue.entries import OutboxEntry, QueueEntry
from scrapy_bloom.queue.operations import Exchange


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
class Plan:
    """An exchange, and what has changed hands when it is carried out: `kept` members are leased then.

    What it takes is leased, too.
    """

    exchange: Exchange
    kept: frozenset[bytes]
    consumed: int = 0
    asked: tuple[OutboxEntry, ...] = ()
    returned: tuple[QueueEntry, ...] = ()
    finished: tuple[bytes, ...] = ()
    leased_again: int = 0
    pushed: int = 0
    repeats: int = 0
