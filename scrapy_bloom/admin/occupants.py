"""Occupants of a filter's key, to be shown and deleted; one that is not ours is refused."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scrapy_bloom.errors import BloomError, WrongTypeError
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.layer import DAMAGED, Layer
from scrapy_bloom.filter.opening import reject_foreign_key, stored_layers
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.storage import keys, layout, shards
from scrapy_bloom.storage.base import Store
from scrapy_bloom.storage.fields import Load, Snapshot
from scrapy_bloom.storage.removal import DeleteHash, DeleteSet
from scrapy_bloom.storage.shards import DeleteShard, Inspection, InspectShard

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
class Occupant:
    """The occupant of a key.

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
        """The occupant in the words of an error: where nothing but shards is, the first of them may be gone, too."""
        return _DESCRIPTIONS[self.kind]


def look(store: Store, key: str) -> Occupant:
    """Return what is at a key.

    Raises:
        WrongTypeError: something is there that neither this package nor scrapy-redis's dupefilter has put there.
    """
    snapshot: Snapshot = store.execute([Load(key)])[0]
    if snapshot.kind == "set":
        return Occupant(key, SET, snapshot.now, members=snapshot.members)
    reject_foreign_key(key, snapshot)
    _refuse_doubtful(key, snapshot)
    fields, now = snapshot.fields, snapshot.now
    strays = _strays(store, key, _layers(key, fields))
    text = fields.get(keys.FILTER_FIELD)
    if text is not None:
        try:
            found = stored.of_fields(key, text, fields, now)
        except BloomError as error:
            return Occupant(key, UNREADABLE, now, problem=str(error), fields=fields, strays=strays)
        return Occupant(key, FILTER, now, found, fields=fields, strays=strays)
    if fields:
        return Occupant(key, UNREADABLE, now, problem="its parameters are gone", fields=fields, strays=strays)
    # What late writes leave may as well be anybody's zeros.
    number = sum(epoch != _NO_EPOCH for epoch in strays.values())
    return Occupant(key, SHARDS if number else NOTHING, now, shards=number, strays=strays)


def delete(store: Store, occupant: Occupant) -> bool:
    """Delete what was looked at, also what a filter has grown by since; return whether nothing else is at its key.

    A filter or a string that has taken a place meanwhile has another epoch, and stays.
    """
    if occupant.kind == SET:
        return bool(store.execute([DeleteSet(occupant.key, occupant.sample)])[0])
    fields: Mapping[str, str] | None = {}
    if occupant.fields:
        fields = store.execute([_hash_deletion(occupant)])[0]
    if fields is None:
        return False
    layers = {*_layers(occupant.key, occupant.fields), *_layers(occupant.key, fields)}
    strings = {(name, layer.identity.epoch) for layer in layers for name in layer.shard_keys}
    late = {(name, _NO_EPOCH) for name, _ in strings}
    deletions = [DeleteShard(name, epoch) for name, epoch in sorted(strings | late | set(occupant.strays.items()))]
    if deletions:
        store.execute(deletions)
    return True


def _hash_deletion(occupant: Occupant) -> DeleteHash:
    """Return what deletes the hash: a filter's text has its epoch, and one without has at least the same fields.

    A filter that was not complete stays if it is by now: workers may use it.
    """
    text = occupant.fields.get(keys.FILTER_FIELD, "")
    unfinished = occupant.fields.get(keys.UNFINISHED_FIELD, "")
    return DeleteHash(occupant.key, "" if _REPLACED in text else text, unfinished, tuple(occupant.fields))


def _refuse_doubtful(key: str, snapshot: Snapshot) -> None:
    """Refuse a hash that may be somebody else's: one field that has a name of ours is not enough to delete it."""
    fields = snapshot.fields
    if fields and not (all(map(keys.is_field, fields)) and any(_is_surely_ours(*field) for field in fields.items())):
        raise WrongTypeError(
            f"the key {key!r} holds a hash that may not be a filter's: if it is nobody's, delete it by hand (UNLINK)"
        )


def _is_surely_ours(name: str, text: str) -> bool:
    if keys.is_credit_field(name):
        return True
    if name != keys.FILTER_FIELD and keys.layer_of_field(name) is None:
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
        name = keys.shard_key(key, index, shard)
        inspection: Inspection = store.execute([InspectShard(name)])[0]
        if inspection.kind == shards.SHARD:
            found[name] = layout.epoch(inspection.identity)
            shard += 1
        elif shard:
            index, shard = index + 1, 0
        else:
            return found
