"""The plans of a worker beside operations on its queue: what it asks the filter, and what an exchange will change."""

from dataclasses import dataclass

from scrapy_bloom.queue.entries import Finished, OutboxEntry, OutboxItem, QueueEntry
from scrapy_bloom.queue.limits import members_of
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
class Cargo:
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
class Plan:
    """An exchange, and what changes hands when it is carried out.

    `kept` members are leased then, and what it takes. Those that are `returned` were ready. Of those that are to be
    leased again the first `leased_again` are.
    """

    exchange: Exchange
    kept: frozenset[bytes]
    cargo: Cargo = Cargo()
    returned: tuple[QueueEntry, ...] = ()
    leased_again: int = 0
