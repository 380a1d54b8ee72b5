"""Deleting a filter, and with it a queue: first what would go, then that it goes, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scrapy_bloom.admin import occupants
from scrapy_bloom.admin.importing.state import is_fingerprint
from scrapy_bloom.admin.occupants import Occupant
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.description import describe_layers
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.filter.steps import carry_out
from scrapy_bloom.queue.inspection import QueueState, inspect
from scrapy_bloom.queue.operations import Flush, Said
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.storage.base import Store
from scrapy_bloom.transport.base import transport_for
from scrapy_bloom.transport.commands import BinaryCommand

# No worker has it: what is asked in its name registers nobody, and deletes no lease of its own.
_NOBODY = ""
# What is at the key of a sorted set of which no request waits: nothing. Another worker may queue one.
_KINDS = {"none": "zset"}


@dataclass(frozen=True)
class Doomed:
    """All that would go: filters, or what else is there, each with a `FilterInfo` if it has layers; queues.

    Those of `queues` that go too are in `flushed`.
    """

    filters: Sequence[tuple[Occupant, FilterInfo | None]]
    queues: Sequence[QueueState]
    flushed: Sequence[str]

    @property
    def is_nothing(self) -> bool:
        """True if there is nothing to delete."""
        return not self.filters and all(queue.is_empty for queue in self.queues if queue.key in self.flushed)


def look(store: Store, client: Any, filters: Sequence[str], queues: Sequence[str], flushed: Sequence[str]) -> Doomed:
    """Return what would go with the filters at some keys, and with the queues that are `flushed`.

    `queues` are looked at beside those that the filters name as their users.

    Raises:
        WrongTypeError: something foreign is at one of the keys.
    """
    there = [occupant for key in filters if (occupant := occupants.look(store, key)).kind != occupants.NOTHING]
    # An import makes no SET: one beside the filter is somebody else's.
    there = [occupant for occupant in there if occupant.kind != occupants.SET or occupant.key == filters[0]]
    if there and there[0].kind == occupants.SET:
        there[0] = replace(there[0], sample=_fingerprints(client, there[0].key))
    users = [user for occupant in there if occupant.filter is not None for user in occupant.filter.users]
    states = [inspect(client, queue) for queue in dict.fromkeys([*queues, *flushed, *users])]
    return Doomed([(occupant, _describe(store, occupant)) for occupant in there], states, flushed)


def delete(store: Store, client: Any, doomed: Doomed) -> list[str]:
    """Delete all of that, and return the keys that are left, since something else is there by now.

    The queues are left with a filter: another crawl has begun, and they are its own.
    """
    left = [occupant.key for occupant, _ in doomed.filters if not occupants.delete(store, occupant)]
    queues = [queue for queue in doomed.queues if queue.key in doomed.flushed and not queue.is_empty]
    return left + [queue.key for queue in queues if left or not _flush(client, queue)]


def _flush(client: Any, queue: QueueState) -> bool:
    known = tuple(worker.name for worker in queue.workers)
    answer = RequestQueue(client, queue.key).execute(Flush(_NOBODY, _KINDS.get(queue.kind, queue.kind), known))
    return answer.said is not Said.FOREIGN


def _fingerprints(client: Any, key: str) -> tuple[bytes, ...]:
    """Return the members of a SET that are met first; refuse one that is not scrapy-redis's."""
    _, members = transport_for(client).execute([BinaryCommand("SSCAN", key, 0, "COUNT", 100)])[0]
    if not all(map(is_fingerprint, members)):
        raise WrongTypeError(f"the key {key!r} holds a SET whose members are no fingerprints: it is not deleted")
    return tuple(members)


def _describe(store: Store, occupant: Occupant) -> FilterInfo | None:
    found = occupant.filter
    if found is None or not found.layers:
        return None
    return carry_out(describe_layers(found.parameters, found.layers, found.is_made), store.execute)
