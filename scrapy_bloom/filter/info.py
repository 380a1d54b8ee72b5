"""Read and describe a stored filter, without its parameters and without changing it; and count a process's work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.client import NEVER_DECODE

from scrapy_bloom.errors import START_ANEW, WrongTypeError
from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.parameters import OTHER_KEY, FilterParameters
from scrapy_bloom.filter.sizing import LayerSize
from scrapy_bloom.text import as_text
from scrapy_bloom.transport.connect import at_key
from scrapy_bloom.transport.scripts import FILTER, Script

_INFO, _PLACES = Script("info", *FILTER), Script("places", *FILTER)


@dataclass(frozen=True)
class LayerInfo:
    """The size of a layer, and its items.

    Attributes:
        capacity: items for which it is sized.
        error_rate: share of new items reported as seen at that number, from 0 to 1.
        shards: strings with its bits.
        bits: bits of all shards together (m).
        hashes: bits set by an item (k).
        memory_bytes: bytes that the server allocates for all shards.
        fill_ratio: expected share of ones among its bits, from 0 to 1.
        count: items that were new when they were added.
        current_error_rate: share of new items reported as seen now, from 0 to 1.
        created: Unix time in seconds; 0 in a filter without a TTL.

    Example:
        >>> bloom = BloomFilter(client, "pages", capacity=1000, error_rate=1e-3)
        >>> layer = bloom.info().by_layer[0]
        >>> layer.capacity, layer.count, layer.fill_ratio
        (1000, 0, 0.0)
        >>> bloom.clear()
    """

    capacity: int
    error_rate: float
    shards: int
    bits: int
    hashes: int
    memory_bytes: int
    fill_ratio: float
    count: int
    current_error_rate: float
    created: float


@dataclass(frozen=True)
class FilterInfo:
    """The promise and the size of a filter, and its items.

    Attributes:
        capacity: items for which it was sized.
        error_rate: promised share of new items reported as seen over the whole filter, from 0 to 1.
        layers: number of layers.
        shards: strings of all layers.
        lost_shards: shards that were lost and replaced since the filter was created.
        forgotten: items that are forgotten and were not added again.
        bits: bits of all layers.
        hashes: bits set by an item in the newest layer.
        memory_bytes: bytes that the server allocates for all layers.
        fill_ratio: expected share of ones among all bits, from 0 to 1.
        count: items that were new when they were added, exactly.
        current_error_rate: share of new items reported as seen now, from 0 to 1.
        by_layer: a `LayerInfo` for each layer, oldest first.

    Example:
        >>> bloom = BloomFilter(client, "pages", capacity=1000, error_rate=1e-3)
        >>> _ = bloom.add_many(["a", "b"])
        >>> info = bloom.info()
        >>> info.capacity, info.layers, info.count
        (1000, 1, 2)
        >>> bloom.clear()
    """

    capacity: int
    error_rate: float
    layers: int
    shards: int
    lost_shards: int
    forgotten: int
    bits: int
    hashes: int
    memory_bytes: int
    fill_ratio: float
    count: int
    current_error_rate: float
    by_layer: tuple[LayerInfo, ...]


@dataclass
class Counters:
    """Counts of this process's work with a filter.

    Attributes:
        added: new items.
        cache_hits: repeats found in the process's cache.
        round_trips: calls of the server, without repeated ones.
        losses: losses of the filter, of shards, or of the server's last writes.
    """

    added: int = 0
    cache_hits: int = 0
    round_trips: int = 0
    losses: int = 0


def describe_reply(parameters: FilterParameters, reply: Sequence[Any]) -> FilterInfo:
    """Return the description of a stored filter, from the reply of `info.lua` behind its status.

    An empty filter has the sizes that its first addition allocates.
    """
    sizes, lost, layers, forgotten = reply
    first = LayerSize(*map(int, sizes.split(b";")[0].split()))
    stored = [(LayerSize(*size), items, created / 1000) for *size, items, created in layers]
    by_layer = tuple(_describe_layer(parameters, *layer) for layer in stored or [(first, 0, 0.0)])
    return FilterInfo(
        capacity=parameters.capacity,
        error_rate=parameters.error_rate,
        layers=len(by_layer),
        lost_shards=lost,
        forgotten=forgotten,
        hashes=by_layer[-1].hashes,
        by_layer=by_layer,
        current_error_rate=sum(layer.current_error_rate for layer in by_layer),
        **_sums(by_layer, "shards", "bits", "memory_bytes", "count"),
    )


def sum_of(infos: Sequence[FilterInfo]) -> FilterInfo:
    """Return the sum of the filters of a crawl's partitions; an item is in one of them."""
    return replace(
        infos[0],
        layers=max(info.layers for info in infos),
        hashes=max(info.hashes for info in infos),
        by_layer=tuple(layer for info in infos for layer in info.by_layer),
        current_error_rate=sum(info.current_error_rate for info in infos) / len(infos),
        **_sums(infos, "capacity", "shards", "lost_shards", "forgotten", "bits", "memory_bytes", "count"),
    )


def _sums(parts: Sequence[FilterInfo | LayerInfo], *names: str) -> dict[str, Any]:
    """Return the sums of some fields, and the fill ratio of all bits."""
    sums = {name: sum(getattr(part, name) for part in parts) for name in names}
    return {**sums, "fill_ratio": sum(part.fill_ratio * part.bits for part in parts) / sums["bits"]}


def _describe_layer(parameters: FilterParameters, size: LayerSize, count: int, created: float) -> LayerInfo:
    capacity = parameters.capacity if size.room == sizing.UNLIMITED else size.room
    return LayerInfo(
        capacity=capacity,
        error_rate=sizing.error_rate(capacity / size.blocks, size.hashes)[0],
        shards=size.shards,
        bits=size.blocks * sizing.BLOCK_BITS,
        hashes=size.hashes,
        memory_bytes=size.memory_bytes,
        fill_ratio=sizing.fill_ratio(count / size.blocks, size.hashes),
        count=count,
        current_error_rate=sizing.error_rate(count / size.blocks, size.hashes)[0],
        created=created,
    )


@dataclass(frozen=True)
class StoredFilter:
    """The filter at a key.

    Attributes:
        key: the key of its hash.
        id: another id means another filter.
        secret: the secret of its items' hashes.
        parameters: its parameters.
        info: its size and its items.
        partitions: partitions of the crawl that uses it, or 0 if none has.
        ttl: seconds until the hash expires; None: never.
    """

    key: str
    id: str
    secret: bytes
    parameters: FilterParameters
    info: FilterInfo
    partitions: int
    ttl: float | None

    @property
    def is_empty(self) -> bool:
        """True before the first addition: `info` has the sizes that this will allocate."""
        return self.info.count == 0


def read_filter(client: Any, key: str) -> StoredFilter | None:
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
        kind = as_text(client.type(key))
        if kind == "none":
            return None
        if kind != "hash":
            raise foreign_key(key, kind, members=client.scard(key) if kind == "set" else 0)
        fields = "state", "secret", "parameters", "partitions"
        state, secret, text, partitions = client.execute_command("HMGET", key, *fields, **{NEVER_DECODE: []})
        if None in (state, secret, text):
            if client.exists(key):
                raise foreign_key(key, kind)
            continue
        parameters = FilterParameters.of_text(key, text.decode())
        name = state.partition(b" ")[0]
        status, *reply = _INFO.call(client, [key], [name])
        if status == b"OK":  # otherwise another filter has replaced it
            left = client.pttl(key)
            info = describe_reply(parameters, reply)
            expiry = left / 1000 if left >= 0 else None
            return StoredFilter(key, name.decode(), secret, parameters, info, int(partitions or 0), expiry)


def server_time(client: Any, key: str) -> int:
    """Return the time in ms of the server that has a key."""
    seconds, microseconds = client.time(**at_key(client, key))
    return int(seconds) * 1000 + int(microseconds) // 1000


def look_up(client: Any, stored: StoredFilter, item: bytes) -> tuple[list[dict[str, Any]], bool]:
    """Return the item's place in each layer, oldest layer first, and whether it is forgotten.

    A place has the key of its shard, and whether all bits of the item are set. A lost shard knows nothing.
    """
    found, is_forgotten = _PLACES.call(client, [stored.key], [stored.id, stored.parameters.hasher(stored.secret)(item)])
    places = [
        {"layer": int(layer), "key": key.decode(), "is_seen": bool(seen), "is_lost": bool(lost)}
        for layer, key, seen, lost in found
    ]
    return places, bool(is_forgotten)


def foreign_key(key: str, kind: str, *, members: int = 0, other_key: str = OTHER_KEY) -> WrongTypeError:
    """Return the error for a key that holds something other than a filter.

    Args:
        key: the key.
        kind: its type in Redis.
        members: the members of a SET, if they were counted.
        other_key: how to use another key.
    """
    if kind == "set":
        return WrongTypeError(
            f"the key {key!r} holds a SET{f' of {members:,} members' if members else ''}, as scrapy-redis leaves it: "
            f"import it by `scrapy bloom import` with the spider's name or --key, {other_key}, or {START_ANEW}"
        )
    return WrongTypeError(f"the key {key!r} holds a {kind} that is not a filter: {other_key}")
