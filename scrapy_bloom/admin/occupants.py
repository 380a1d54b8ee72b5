"""Occupants of a filter's key, to be shown and deleted; one that is not ours is refused."""

import json
import time
from dataclasses import dataclass

from scrapy_bloom.errors import BloomError, WrongTypeError
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.events import LoggedEvents
from scrapy_bloom.filter.layer import DAMAGED
from scrapy_bloom.filter.layers import LayerStack
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.opening import reject_foreign_key
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.steps import carry_out
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.storage import keys, layout, shards
from scrapy_bloom.storage.base import Store
from scrapy_bloom.storage.fields import Load, Snapshot
from scrapy_bloom.storage.shards import Inspection, InspectShard

# The kinds of what is at a key; of a filter whose hash is lost there are only shards.
NOTHING, FILTER, UNREADABLE, SHARDS, SET = "nothing", "filter", "unreadable filter", "shards", "set"


@dataclass(frozen=True)
class Occupant:
    """The occupant of a key.

    Attributes:
        key: the key.
        kind: one of those above.
        now: the server's time, in Unix seconds.
        filter: that of the kind `FILTER`, else None.
        members: those of a SET.
        shards: those that no hash tells of.
        problem: why a filter cannot be read, else None.
    """

    key: str
    kind: str
    now: float
    filter: StoredFilter | None = None
    members: int = 0
    shards: int = 0
    problem: str | None = None


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
    text = snapshot.fields.get(keys.FILTER_FIELD)
    if text is not None:
        try:
            found = stored.of_fields(key, text, snapshot.fields, snapshot.now)
        except BloomError as error:
            return Occupant(key, UNREADABLE, snapshot.now, problem=str(error))
        return Occupant(key, FILTER, snapshot.now, found)
    if snapshot.fields:
        return Occupant(key, UNREADABLE, snapshot.now, problem="its parameters are gone")
    number = _lost_shards(store, key)
    return Occupant(key, SHARDS if number else NOTHING, snapshot.now, shards=number)


def require(store: Store, key: str) -> StoredFilter:
    """Return the filter at a key.

    Raises:
        WrongTypeError: there is none.
    """
    found = carry_out(stored.read(key), store.execute)
    if found is None:
        raise WrongTypeError(f"there is no filter at {key!r}: give the key of one")
    return found


def delete(store: Store, key: str) -> None:
    """Delete a filter, or whatever else is at its key."""
    carry_out(lifecycle_at(key, FilterParameters()).clear(), store.execute)


def lifecycle_at(key: str, parameters: FilterParameters, hash_key: int | None = None) -> Lifecycle:
    """Return the steps of a filter for whoever remembers nothing of it; one that is made takes the `hash_key`."""
    return Lifecycle(LayerStack(key, parameters, time.monotonic), LoggedEvents(), lambda: None, hash_key)


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


def _lost_shards(store: Store, key: str) -> int:
    """Return how many shards are at a key of which no hash tells, as far as deleting it would find them."""
    index = shard = number = 0
    while True:
        found: Inspection = store.execute([InspectShard(keys.shard_key(key, index, shard))])[0]
        # What a late write leaves may as well be anybody's zeros.
        if found.kind == shards.SHARD and layout.is_alive(found.identity):
            number, shard = number + 1, shard + 1
        elif shard:
            index, shard = index + 1, 0
        else:
            return number
