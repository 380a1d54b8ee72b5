"""Inspect and delete the contents of a filter's key; foreign data is refused."""

import json
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scrapy_bloom.cli.importing.import_state import ImportKeys, is_fingerprint
from scrapy_bloom.errors import BloomError, WrongTypeError
from scrapy_bloom.filter import stored_filter, unlisted_shards
from scrapy_bloom.filter.describe import FilterInfo, describe_layers
from scrapy_bloom.filter.layer import DAMAGED, Layer
from scrapy_bloom.filter.opening import reject_foreign_key, stored_layers
from scrapy_bloom.filter.stored_filter import StoredFilter, read_forgotten
from scrapy_bloom.queue.inspection import QueueState, inspect
from scrapy_bloom.queue.operations import EndClosing, Flush, RequestQueue, Status
from scrapy_bloom.storage import filter_keys, shard_header
from scrapy_bloom.storage.filter_hash import DeleteHash, DeleteSet, Load, Snapshot
from scrapy_bloom.storage.forgotten import SCAN_BATCH, DropForgotten, epoch_of, member, sentinel
from scrapy_bloom.storage.operation import Store
from scrapy_bloom.storage.shards import DeleteShard
from scrapy_bloom.storage.stores import run_steps
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import BinaryCommand

# The epoch of a string that a late write created after the shard was deleted.
_NO_EPOCH = 0
# Bytes that are not UTF-8 are read as this character, and such a text cannot be compared.
_REPLACED = "\ufffd"
# The kinds of contents. SHARDS have lost the hash of their filter, and FORGOTTEN items the whole filter.
NOTHING, FILTER, UNREADABLE, SHARDS, SET = "nothing", "filter", "unreadable filter", "shards", "set"
FORGOTTEN = "forgotten items"
_DESCRIPTIONS = {
    NOTHING: "shards of a filter whose hash is gone",
    FILTER: "a filter",
    UNREADABLE: "a filter that cannot be read",
    SHARDS: "shards of a filter whose hash is gone",
    SET: "a SET",
    FORGOTTEN: "forgotten requests of a filter that is gone",
}


@dataclass(frozen=True)
class KeyContents:
    """The contents of a filter's key.

    Attributes:
        key: the key.
        kind: one of the kinds above.
        now: the server's time, in Unix seconds.
        filter: the filter, if the kind is `FILTER`.
        members: number of members of a SET.
        shards: number of shards without a hash.
        problem: why a filter is unreadable, or None.
        fields: the fields of the hash.
        strays: the keys and epochs of shards that the hash does not describe.
        forgotten: numbers of forgotten items, by the epochs of their filters.
        sample: some members of a SET, which identify it.
    """

    key: str
    kind: str
    now: float
    filter: StoredFilter | None = None
    members: int = 0
    shards: int = 0
    problem: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    strays: Mapping[str, int] = field(default_factory=dict)
    forgotten: Mapping[int, int] = field(default_factory=dict)
    sample: tuple[bytes, ...] = ()

    @property
    def description(self) -> str:
        """The contents as errors name them. The kind NOTHING still has shards if the first one is gone."""
        return _DESCRIPTIONS[self.kind]


def inspect_key(store: Store, key: str) -> KeyContents:
    """Return the contents of a key.

    Raises:
        WrongTypeError: the data is neither this package's nor scrapy-redis's dupefilter's.
    """
    contents, forgotten = _inspect(store, key), _forgotten(store, key)
    kind = FORGOTTEN if forgotten and contents.kind == NOTHING else contents.kind
    return replace(contents, kind=kind, forgotten=forgotten)


def _inspect(store: Store, key: str) -> KeyContents:
    """Return the contents of a key without the forgotten items."""
    snapshot: Snapshot = store.execute([Load(key)])[0]
    if snapshot.kind == "set":
        return KeyContents(key, SET, snapshot.now, members=snapshot.members)
    reject_foreign_key(key, snapshot)
    fields, now = snapshot.fields, snapshot.now
    # A single field with a known name is not enough to delete a hash.
    is_foreign = not all(map(filter_keys.is_field, fields)) or not any(
        _is_surely_ours(*field) for field in fields.items()
    )
    if fields and is_foreign:
        raise WrongTypeError(
            f"the key {key!r} holds a hash that may not be a filter's: if it is unused, delete it by hand (UNLINK)"
        )
    # The other shards with such keys belong to the filter at the key that is their prefix.
    is_staged = filter_keys.prefix_of(key, fields) != key
    strays = {} if is_staged else _without_staged(store, key, _strays(store, key, _layers(key, fields)))
    text = fields.get(filter_keys.FILTER_FIELD)
    if text is not None:
        try:
            found = stored_filter.of_fields(key, text, fields, now)
        except BloomError as error:
            return KeyContents(key, UNREADABLE, now, problem=str(error), fields=fields, strays=strays)
        return KeyContents(key, FILTER, now, found, fields=fields, strays=strays)
    if fields:
        return KeyContents(key, UNREADABLE, now, problem="its parameters are lost", fields=fields, strays=strays)
    # A string of zeros may be a late write's, but may also be foreign.
    number = sum(epoch != _NO_EPOCH for epoch in strays.values())
    return KeyContents(key, SHARDS if number else NOTHING, now, shards=number, strays=strays)


def delete_contents(store: Store, contents: KeyContents) -> bool:
    """Delete the inspected contents and all later layers; return False if the key holds other data by now.

    Data that replaced a filter or a shard meanwhile has another epoch, and stays.
    """
    fields = _delete_key(store, contents)
    if fields is None:
        return False
    layers = {*_layers(contents.key, contents.fields), *_layers(contents.key, fields)}
    strings = {(name, layer.identity.epoch) for layer in layers for name in layer.shard_keys}
    late = {(name, _NO_EPOCH) for name, _ in strings}
    for name, epoch in sorted(strings | late | set(contents.strays.items())):
        # One after another: freeing much memory at once keeps other clients waiting.
        store.execute([DeleteShard(name, epoch)])
    # Last: without the set, a marked shard makes its filter begin anew.
    _delete_forgotten(store, contents.key, {*contents.forgotten, *(layer.identity.epoch for layer in layers)})
    return True


def _forgotten(store: Store, key: str) -> Mapping[int, int]:
    """Return the numbers of forgotten items beside a key, by the epochs of their filters."""
    numbers: Counter[int] = Counter()
    for name in run_steps(read_forgotten(key), store.execute):
        epoch = epoch_of(name) or 0
        numbers[epoch] += name != sentinel(epoch)
    return numbers


def _delete_forgotten(store: Store, key: str, epochs: Collection[int]) -> None:
    """Delete the forgotten items of filters of these epochs. Those of a filter that was created meanwhile stay."""
    members = run_steps(read_forgotten(key), store.execute)
    for epoch in {epoch for epoch in epochs if sentinel(epoch) in members}:
        start = member(epoch, b"")
        items = [name.removeprefix(start) for name in members if name.startswith(start)]
        for begin in range(0, len(items) or 1, SCAN_BATCH):
            batch = tuple(items[begin : begin + SCAN_BATCH])
            store.execute([DropForgotten(filter_keys.forgotten_key(key), epoch, batch)])


def _delete_key(store: Store, contents: KeyContents, *, deletes: bool = True) -> Mapping[str, str] | None:
    """Delete the key itself and return the fields of its hash, or None if it holds other data by now.

    Without `deletes`, nothing is deleted, and the result is the same.
    """
    if contents.kind == SET:
        return {} if store.execute([DeleteSet(contents.key, contents.sample, deletes)])[0] else None
    if not contents.fields:
        return {}
    # A filter's text has its epoch; an unreadable hash must have at least the same fields. A filter that has been
    # completed since stays, since workers may use it.
    text = contents.fields.get(filter_keys.FILTER_FIELD, "")
    unfinished = contents.fields.get(filter_keys.UNFINISHED_FIELD, "")
    compared = "" if _REPLACED in text else text
    deletion = DeleteHash(contents.key, compared, unfinished, tuple(contents.fields), deletes)
    fields: Mapping[str, str] | None = store.execute([deletion])[0]
    return fields


def _is_surely_ours(name: str, text: str) -> bool:
    if filter_keys.is_credit_field(name):
        return True
    if name != filter_keys.FILTER_FIELD and filter_keys.layer_of_field(name) is None:
        return False
    try:
        return "epoch" in json.loads(text)
    except DAMAGED:
        return False


def _layers(key: str, fields: Mapping[str, str]) -> list[Layer]:
    """Return the layers that a hash describes, or none if its format is newer."""
    try:
        return stored_layers(key, fields, hash_key=0)
    except WrongTypeError:
        return []


def _strays(store: Store, key: str, known: Sequence[Layer]) -> dict[str, int]:
    """Return the keys and epochs of shards after the known layers."""
    found = run_steps(unlisted_shards.find(key, known), store.execute)
    return {name: shard_header.epoch(inspection.identity) for name, inspection in found.items()}


def _without_staged(store: Store, key: str, strays: Mapping[str, int]) -> Mapping[str, int]:
    """Leave out the shards of an import's filter, whose hash is not at the key yet."""
    staged = _inspect(store, ImportKeys.of(key).staging).filter if strays else None
    return strays if staged is None else {name: each for name, each in strays.items() if each != staged.identity.epoch}


# The beginning of the name under which a deletion closes a queue.
_CLOSING = "clear"
# Redis deletes an empty sorted set; another worker may fill it again.
_KINDS = {"none": "zset"}
# Members of a SET that are compared.
_SAMPLE_MEMBERS = 100


@dataclass(frozen=True)
class DeletionPlan:
    """The data of a deletion.

    Attributes:
        filters: the contents of each key; with a `FilterInfo`, if there are layers.
        queues: the queues of the crawl.
        flushed: the keys of the queues to delete.
    """

    filters: Sequence[tuple[KeyContents, FilterInfo | None]]
    queues: Sequence[QueueState]
    flushed: Sequence[str]

    @property
    def is_empty(self) -> bool:
        """True if there is no data to delete."""
        return not self.filters and all(queue.is_empty for queue in self.queues if queue.key in self.flushed)


def plan_deletion(
    store: Store,
    filter_client: Any,
    queue_client: Any,
    filters: Sequence[str],
    *,
    queues: Sequence[str],
    flushed: Sequence[str],
) -> DeletionPlan:
    """Plan the deletion of filters, and of the `flushed` queues.

    Args:
        store: the store of the filters.
        filter_client: a client of the same server.
        queue_client: a client of the queues' server.
        filters: the keys of filters; the staging filters of their imports are deleted, too.
        queues: queues to show, in addition to the filters' users.
        flushed: queues to delete.

    Returns:
        The plan.

    Raises:
        WrongTypeError: a key holds foreign data.
    """
    found: list[tuple[KeyContents, FilterInfo | None]] = []
    users: list[str] = []
    for key in (place for named in filters for place in (named, ImportKeys.of(named).staging)):
        contents = inspect_key(store, key)
        # An import creates no SET: at the staging key it is foreign.
        if contents.kind == NOTHING or (contents.kind == SET and key not in filters):
            continue
        if contents.kind == SET:
            contents = replace(contents, sample=_fingerprints(filter_client, key))
        info, stored = None, contents.filter
        if stored is not None:
            users += stored.references
            if stored.layers:
                info = run_steps(describe_layers(stored.parameters, stored.layers, stored.is_made), store.execute)
        found.append((contents, info))
    states = [inspect(queue_client, queue) for queue in dict.fromkeys([*queues, *flushed, *users])]
    return DeletionPlan(found, states, flushed)


def execute_deletion(store: Store, queue_client: Any, plan: DeletionPlan, lease: float) -> list[str]:
    """Execute a plan and return the keys that were kept because they hold other data by now.

    If a filter is kept, its queues are kept, and the other way round: another crawl has begun. The queues are deleted
    first. In the other order a worker could queue a request between the two deletions: the request would be deleted
    with the queue, while the new filter calls it seen. Until the filter is deleted, too, the queue is closed for
    `lease` seconds, so that no worker asks the old filter.
    """
    left = [contents.key for contents, _ in plan.filters if _delete_key(store, contents, deletes=False) is None]
    queues = [queue for queue in plan.queues if queue.key in plan.flushed and not queue.is_empty]
    if left:
        return left + [queue.key for queue in queues]
    closing = f"{_CLOSING}-{secrets.token_hex(4)}"
    closed = [queue for queue in queues if _flush(queue_client, queue, closing, lease)]
    left = [queue.key for queue in queues if queue not in closed]
    if not left:
        left = [contents.key for contents, _ in plan.filters if not delete_contents(store, contents)]
    for queue in closed:
        RequestQueue(queue_client, queue.key).execute(EndClosing(closing, clears=False))
    return left


def _flush(client: Any, queue: QueueState, closing: str, lease: float) -> bool:
    """Delete a queue and close it for `lease` seconds; return False if it holds other data or has other workers."""
    known, kind = tuple(worker.name for worker in queue.workers), _KINDS.get(queue.kind, queue.kind)
    reply = RequestQueue(client, queue.key).execute(Flush(closing, kind, known, f"{lease:g}"))
    return reply.status is not Status.FOREIGN


def _fingerprints(client: Any, key: str) -> tuple[bytes, ...]:
    """Return a sample of a SET's members. Raises a WrongTypeError if they are not scrapy-redis's fingerprints."""
    _, members = transport_for(client).execute([BinaryCommand("SSCAN", key, 0, "COUNT", _SAMPLE_MEMBERS)])[0]
    if not all(map(is_fingerprint, members)):
        raise WrongTypeError(f"the key {key!r} holds a SET of other members than fingerprints: it is not deleted")
    return tuple(members)
