"""Read a stored filter without knowing its parameters, and without changing it."""

import json
from dataclasses import dataclass, fields
from typing import Any

from redis.client import NEVER_DECODE

from scrapy_bloom._format import as_text
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.bloom_filter import foreign_key
from scrapy_bloom.filter.describe import FilterInfo, describe_reply
from scrapy_bloom.filter.hashing import digest
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.scripts import Script
from scrapy_bloom.transport.server_info import is_cluster

_INFO, _PLACES = Script("info", "filter"), Script("places", "filter")


@dataclass(frozen=True)
class Place:
    """An item in one layer: its shard's key, and whether all of its bits are set. A lost shard knows nothing."""

    layer: int
    key: str
    is_seen: bool
    is_lost: bool


@dataclass(frozen=True)
class StoredFilter:
    """The filter at a key.

    Attributes:
        key: the key of its hash.
        id: another id means another filter.
        secret: the secret of its digests.
        parameters: its parameters.
        unfinished: the action that fills it, `import` or `restore`, before whose end no worker opens it; or None.
        info: its size, its items and its users.
        ttl: seconds until the hash expires; None: never.
        now: the server's time of reading, in Unix seconds.
    """

    key: str
    id: str
    secret: bytes
    parameters: FilterParameters
    unfinished: str | None
    info: FilterInfo
    ttl: float | None
    now: float

    @property
    def is_empty(self) -> bool:
        """True before the first addition: `info` has the sizes that this will allocate."""
        return self.info.count == 0


def read(client: Any, key: str) -> StoredFilter | None:
    """Return the filter at a key, or None if the key is empty. A replica will do.

    Args:
        client: a `redis.Redis` or `redis.RedisCluster`; nothing is retried.
        key: the filter's key.

    Returns:
        The filter.

    Raises:
        MismatchError: the filter has a newer format, or another hash scheme.
        WrongTypeError: the key holds foreign data.
    """
    while True:
        described = _describe(client, key)
        if described is None:
            return None
        name, secret, text = described
        given = json.loads(text)
        unfinished: str | None = given.pop("unfinished", None)
        names = [field.name for field in fields(FilterParameters) if field.init and field.name in given]
        parameters = FilterParameters(**{name: given[name] for name in names})
        parameters.verify(key, json.dumps(given))
        status, *reply = _INFO.call(client, [key], [name])
        if status == b"OK":  # otherwise another filter has replaced it
            left, now = client.pttl(key), server_time(client, key) / 1000
            info = describe_reply(parameters, reply)
            expiry = left / 1000 if left >= 0 else None
            return StoredFilter(key, name.decode(), secret, parameters, unfinished, info, expiry, now)


def server_time(client: Any, key: str) -> int:
    """Return the time in ms of the server that has a key: another node of a cluster may be away."""
    options = {"target_nodes": client.get_node_from_key(key)} if is_cluster(client) else {}
    seconds, microseconds = client.time(**options)
    return int(seconds) * 1000 + int(microseconds) // 1000


def look_up(client: Any, stored: StoredFilter, item: bytes) -> tuple[list[Place], bool]:
    """Return the item's place in each layer, oldest layer first, and whether it is forgotten."""
    found, is_forgotten = _PLACES.call(client, [stored.key], [stored.id, digest(item, stored.secret)])
    places = [Place(int(layer), key.decode(), bool(seen), bool(lost)) for layer, key, seen, lost in found]
    return places, bool(is_forgotten)


def _describe(client: Any, key: str) -> list[bytes] | None:
    """Return id, secret and parameters of the filter at a key, or None if the key is empty."""
    while (kind := as_text(client.type(key))) != "none":
        if kind != "hash":
            raise foreign(client, key, kind)
        found: list[Any] = client.execute_command("HMGET", key, "id", "secret", "parameters", **{NEVER_DECODE: []})
        if None not in found:
            return found
        if client.exists(key):
            raise foreign(client, key, kind)
    return None


def foreign(client: Any, key: str, kind: str) -> WrongTypeError:
    """Return the error for foreign data at a filter's key."""
    return foreign_key(key, kind, members=client.scard(key) if kind == "set" else 0)
