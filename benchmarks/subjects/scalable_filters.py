"""Growing filters behind one interface: scrapy-bloom's, RedisBloom's and pybloom-live's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import redis
from pybloom_live import ScalableBloomFilter

from devtools.servers import memory_usage
from scrapy_bloom import BloomFilter
from scrapy_bloom.transport.client import Client

GROWS = "scrapy-bloom, 10,000"
SIZED = "scrapy-bloom, 1,000,000"
REDISBLOOM = "RedisBloom, 10,000"
PYBLOOM = "pybloom-live, 10,000"


class Size(NamedTuple):
    """A filter's size, and the error rate computed from its fill; None if the fill is not available.

    The `bits` of RedisBloom are the size in BF.INFO.
    """

    layers: int
    bits: int
    memory_bytes: int
    error_rate: float | None


@dataclass(frozen=True)
class Grower:
    """A filter: `add` returns True for each new item, `contains` True for each stored one."""

    add: Callable[[list[str]], list[bool]]
    contains: Callable[[list[str]], list[bool]]
    size: Callable[[], Size]


def _ours(client: redis.Redis, capacity: int, error_rate: float) -> Grower:
    key = f"bench:ours:{capacity}:{error_rate}"
    bloom = BloomFilter(client, key, capacity=capacity, error_rate=error_rate, cache_size=0)

    def size() -> Size:
        info = bloom.info()
        return Size(info.layers, info.bits, memory_usage(client, key), info.estimated_error_rate)

    return Grower(bloom.add_many, bloom.contains_many, size)


def _redisbloom(client: redis.Redis, capacity: int, error_rate: float) -> Grower:
    key = f"bench:redisbloom:{error_rate}"
    commands: Client = client
    commands.execute_command("BF.RESERVE", key, error_rate, capacity, "EXPANSION", 2)

    def batch(command: str) -> Callable[[list[str]], list[bool]]:
        return lambda items: [bool(said) for said in commands.execute_command(command, key, *items)]

    def size() -> Size:
        info = commands.execute_command("BF.INFO", key)
        return Size(info[b"Number of filters"], 8 * info[b"Size"], memory_usage(client, key), None)

    return Grower(batch("BF.MADD"), batch("BF.MEXISTS"), size)


def _pybloom(capacity: int, error_rate: float) -> Grower:
    bloom = ScalableBloomFilter(capacity, error_rate, ScalableBloomFilter.SMALL_SET_GROWTH)

    def size() -> Size:
        layers = bloom.filters
        by_fill = sum((layer.bitarray.count() / layer.num_bits) ** layer.num_slices for layer in layers)
        bits = sum(layer.num_bits for layer in layers)
        return Size(len(layers), bits, sum(layer.bitarray.nbytes for layer in layers), by_fill)

    return Grower(
        lambda items: [not bloom.add(item) for item in items], lambda items: [item in bloom for item in items], size
    )


# Arguments: a client, the undersized capacity, the fitting capacity, and the error rate. The slowest filter is first,
# so that it does not run alone at the end.
MAKERS: dict[str, Callable[[redis.Redis, int, int, float], Grower]] = {
    GROWS: lambda client, asked, _, rate: _ours(client, asked, rate),
    SIZED: lambda client, _, fitting, rate: _ours(client, fitting, rate),
    REDISBLOOM: lambda client, asked, _, rate: _redisbloom(client, asked, rate),
    PYBLOOM: lambda _, asked, __, rate: _pybloom(asked, rate),
}
