"""Inspect and delete the contents of a filter's key; foreign data is refused."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scrapy_bloom.cli.importing.import_state import is_fingerprint
from scrapy_bloom.errors import BloomError, WrongTypeError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.describe import FilterInfo, describe_layers
from scrapy_bloom.filter.layer import DAMAGED, Layer
from scrapy_bloom.filter.opening import reject_foreign_key, stored_layers
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.queue.inspection import QueueState, inspect
from scrapy_bloom.queue.operations import Flush, Status
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.storage import filter_keys, shard_header, shards
from scrapy_bloom.storage.filter_hash import DeleteHash, DeleteSet, Load, Snapshot
from scrapy_bloom.storage.operation import Store, run_steps
from scrapy_bloom.storage.shards import DeleteShard, Inspection, InspectShard
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import BinaryCommand

# The epoch of what a late write left where no shard is.
_NO_EPOCH = 0
# That of a text which is none: what was not UTF-8 cannot be compared.
_REPLACED = "\ufffd"
# The kinds of what is at a key; of a filter whose hash is lost there are only shards.
NOTHING, FILTER, UNREADABLE, SHARDS, SET = "nothing", "filter", "unreadable filter", "shards", "set"
_DESCRIPTIONS = {
    NOTHING: "shards of a filter whose hash is gone",
    FILTER: "a filter",
    UNREADABLE: "a filter that cannot be read",
    SHARDS: "shards of a filter whose hash is gone",
    SET: "a SET",
}


@dataclass(frozen=True)
class KeyContents:
    """The contents of a key.

    Attributes:
        key: the key.
        kind: one of those above.
        now: the server's time, in Unix seconds.
        filter: that of the kind `FILTER`, else None.
        members: those of a SET.
        shards: those that are all there is.
        problem: why a filter cannot be read, else None.
        fields: those of the hash.
        strays: the keys of strings of which no hash tells, and their epochs.
        sample: some members of a SET, by which it is known again.
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
    sample: tuple[bytes, ...] = ()

    @property
    def description(self) -> str:
        """The contents in the words of an error: where nothing but shards is, the first of them may be gone, too."""
        return _DESCRIPTIONS[self.kind]


def inspect_key(store: Store, key: str) -> KeyContents:
    """Return what is at a key.

    Raises:
        WrongTypeError: something is there that neither this package nor scrapy-redis's dupefilter has put there.
    """
    snapshot: Snapshot = store.execute([Load(key)])[0]
    if snapshot.kind == "set":
        return KeyContents(key, SET, snapshot.now, members=snapshot.members)
    reject_foreign_key(key, snapshot)
    _refuse_doubtful(key, snapshot)
    fields, now = snapshot.fields, snapshot.now
    strays = _strays(store, key, _layers(key, fields))
    text = fields.get(filter_keys.FILTER_FIELD)
    if text is not None:
        try:
            found = stored_filter.of_fields(key, text, fields, now)
        except BloomError as error:
            return KeyContents(key, UNREADABLE, now, problem=str(error), fields=fields, strays=strays)
        return KeyContents(key, FILTER, now, found, fields=fields, strays=strays)
    if fields:
        return KeyContents(key, UNREADABLE, now, problem="its parameters are gone", fields=fields, strays=strays)
    # What late writes leave may as well be anybody's zeros.
    number = sum(epoch != _NO_EPOCH for epoch in strays.values())
    return KeyContents(key, SHARDS if number else NOTHING, now, shards=number, strays=strays)


def delete_contents(store: Store, contents: KeyContents) -> bool:
    """Delete what was looked at, also what a filter has grown by since; return whether nothing else is at its key.

    A filter or a string that has taken a place meanwhile has another epoch, and stays.
    """
    if contents.kind == SET:
        return bool(store.execute([DeleteSet(contents.key, contents.sample)])[0])
    fields: Mapping[str, str] | None = {}
    if contents.fields:
        fields = store.execute([_hash_deletion(contents)])[0]
    if fields is None:
        return False
    layers = {*_layers(contents.key, contents.fields), *_layers(contents.key, fields)}
    strings = {(name, layer.identity.epoch) for layer in layers for name in layer.shard_keys}
    late = {(name, _NO_EPOCH) for name, _ in strings}
    deletions = [DeleteShard(name, epoch) for name, epoch in sorted(strings | late | set(contents.strays.items()))]
    if deletions:
        store.execute(deletions)
    return True


def _hash_deletion(contents: KeyContents) -> DeleteHash:
    """Return what deletes the hash: a filter's text has its epoch, and one without has at least the same fields.

    A filter that was not complete stays if it is by now: workers may use it.
    """
    text = contents.fields.get(filter_keys.FILTER_FIELD, "")
    unfinished = contents.fields.get(filter_keys.UNFINISHED_FIELD, "")
    return DeleteHash(contents.key, "" if _REPLACED in text else text, unfinished, tuple(contents.fields))


def _refuse_doubtful(key: str, snapshot: Snapshot) -> None:
    """Refuse a hash that may be somebody else's: one field that has a name of ours is not enough to delete it."""
    fields = snapshot.fields
    if fields and not (
        all(map(filter_keys.is_field, fields)) and any(_is_surely_ours(*field) for field in fields.items())
    ):
        raise WrongTypeError(
            f"the key {key!r} holds a hash that may not be a filter's: if it is nobody's, delete it by hand (UNLINK)"
        )


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
    """Return the layers of which a hash tells; a newer format may name its strings otherwise."""
    try:
        return stored_layers(key, fields, hash_key=0)
    except WrongTypeError:
        return []


def _strays(store: Store, key: str, known: Sequence[Layer]) -> dict[str, int]:
    """Return the strings behind those of the known layers, and their epochs."""
    index, shard, found = max((layer.index for layer in known), default=-1) + 1, 0, {}
    while True:
        name = filter_keys.shard_key(key, index, shard)
        inspection: Inspection = store.execute([InspectShard(name)])[0]
        if inspection.kind == shards.SHARD:
            found[name] = shard_header.epoch(inspection.identity)
            shard += 1
        elif shard:
            index, shard = index + 1, 0
        else:
            return found


# No worker has it: what is asked in its name registers nobody, and deletes no lease of its own.
_NOBODY = ""
# What is at the key of a sorted set of which no request waits: nothing. Another worker may queue one.
_KINDS = {"none": "zset"}


@dataclass(frozen=True)
class DeletionPlan:
    """All that would go: filters, or what else is there, each with a `FilterInfo` if it has layers; queues.

    Those of `queues` that go too are in `flushed`.
    """

    filters: Sequence[tuple[KeyContents, FilterInfo | None]]
    queues: Sequence[QueueState]
    flushed: Sequence[str]

    @property
    def is_nothing(self) -> bool:
        """True if there is nothing to delete."""
        return not self.filters and all(queue.is_empty for queue in self.queues if queue.key in self.flushed)


def plan_deletion(
    store: Store, client: Any, filters: Sequence[str], queues: Sequence[str], flushed: Sequence[str]
) -> DeletionPlan:
    """Return what would go with the filters at some keys, and with the queues that are `flushed`.

    `queues` are looked at beside those that the filters name as their users.

    Raises:
        WrongTypeError: something foreign is at one of the keys.
    """
    there = [contents for key in filters if (contents := inspect_key(store, key)).kind != NOTHING]
    # An import makes no SET: one beside the filter is somebody else's.
    there = [contents for contents in there if contents.kind != SET or contents.key == filters[0]]
    if there and there[0].kind == SET:
        there[0] = replace(there[0], sample=_fingerprints(client, there[0].key))
    users = [user for contents in there if contents.filter is not None for user in contents.filter.users]
    states = [inspect(client, queue) for queue in dict.fromkeys([*queues, *flushed, *users])]
    return DeletionPlan([(contents, _describe_filter(store, contents)) for contents in there], states, flushed)


def execute_deletion(store: Store, client: Any, doomed: DeletionPlan) -> list[str]:
    """Delete all of that, and return the keys that are left, since something else is there by now.

    The queues are left with a filter: another crawl has begun, and they are its own.
    """
    left = [contents.key for contents, _ in doomed.filters if not delete_contents(store, contents)]
    queues = [queue for queue in doomed.queues if queue.key in doomed.flushed and not queue.is_empty]
    return left + [queue.key for queue in queues if left or not _flush(client, queue)]


def _flush(client: Any, queue: QueueState) -> bool:
    known = tuple(worker.name for worker in queue.workers)
    answer = RequestQueue(client, queue.key).execute(Flush(_NOBODY, _KINDS.get(queue.kind, queue.kind), known))
    return answer.status is not Status.FOREIGN


def _fingerprints(client: Any, key: str) -> tuple[bytes, ...]:
    """Return the members of a SET that are met first; refuse one that is not scrapy-redis's."""
    _, members = transport_for(client).execute([BinaryCommand("SSCAN", key, 0, "COUNT", 100)])[0]
    if not all(map(is_fingerprint, members)):
        raise WrongTypeError(f"the key {key!r} holds a SET whose members are no fingerprints: it is not deleted")
    return tuple(members)


def _describe_filter(store: Store, contents: KeyContents) -> FilterInfo | None:
    found = contents.filter
    if found is None or not found.layers:
        return None
    return run_steps(describe_layers(found.parameters, found.layers, found.is_made), store.execute)
