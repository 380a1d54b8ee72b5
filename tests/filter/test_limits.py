"""The size limits of a filter's requests to a server, and the parameters that it refuses."""

import json
import math
from collections.abc import Iterator

import pytest
import redis
from scrapy.settings import Settings

from scrapy_bloom import BloomFilter, ConfigError, MemoryBloomFilter, RefusedError, WrongTypeError
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.layer import NO_IDENTITY
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.storage.operation import Operations, Results
from scrapy_bloom.storage.shards import FULL, MADE, CreateShard, PrepareShard
from scrapy_bloom.storage.stores import MemoryStore, RedisStore
from tests.support.selection import valkey_first
from tests.support.servers import KINDS, Server, running

MEGABYTE = 2**20


class Watched(MemoryStore):
    """A store that records the operations of each round trip."""

    def __init__(self) -> None:
        super().__init__()
        self.trips: list[Operations] = []

    def execute(self, ops: Operations) -> Results:
        self.trips.append(ops)
        return super().execute(ops)

    @property
    def shards_made(self) -> list[int]:
        """The number of shards created by each round trip that created any."""
        made = [sum(isinstance(op, CreateShard) for op in trip) for trip in self.trips]
        return [number for number in made if number]

    @property
    def largest(self) -> int:
        """The bytes of the largest round trip."""
        return max(sum(len(op.command().pack()) for op in trip) for trip in self.trips)


@pytest.mark.parametrize("capacity", ["1e10", 10**12, 1e300, 1.7e308])
def test_a_filter_that_nobody_has_room_for(capacity: object) -> None:
    """A capacity beyond any server's memory is refused by name, with the size of the filter."""
    with pytest.raises(ConfigError, match=r"^BLOOMFILTER_CAPACITY = .*BLOOMFILTER_ERROR_RATE = 1e-6 .* GB"):
        BloomSettings.from_settings(Settings({"BLOOMFILTER_CAPACITY": capacity}))
    with pytest.raises(ConfigError, match=r"^capacity = .*error_rate = 1e-6 .* GB"):
        MemoryBloomFilter(capacity=capacity)  # type: ignore[arg-type]  # text is a number too


def test_a_large_filter_stays_large_when_it_grows() -> None:
    """The layer after a very large one stays within the maximum size."""
    parameters = FilterParameters(capacity=7_000_000_000, expansion=10)
    first = parameters.first_layer("k", NO_IDENTITY, 0, 0.0)
    following = parameters.next_layer(first, 0.75e-6, 0.0)
    assert following.size.bits / 8 <= 36e9
    assert following.max_items >= following.capacity > 4_000_000_000


@pytest.mark.parametrize("ttl", [1e-4, "0.01", 0.0999])
def test_a_ttl_that_is_over_at_once(ttl: object) -> None:
    """A TTL too short for any request to repeat is refused by name."""
    with pytest.raises(ConfigError, match=r"^ttl = .*must be 0 \(for ever\) or at least 0.1 seconds"):
        MemoryBloomFilter(ttl=ttl)  # type: ignore[arg-type]  # text is a number too


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shards", 3_000_000),
        ("shards", 0),
        ("bits", -8),
        ("bits", 2**60),
        ("hashes", 0),
        ("capacity", 0),
        ("error_rate", 2),
        ("created", "yesterday"),
    ],
)
def test_damaged_metadata_is_refused(client: redis.Redis, key: str, name: str, value: object) -> None:
    """Metadata with impossible numbers are refused."""
    BloomFilter(client, key, capacity=100).add("a")
    stored = json.loads(client.hget(key, "layer:0") or "")
    client.hset(key, "layer:0", json.dumps({**stored, name: value}))
    with pytest.raises(WrongTypeError, match="layer 0"):
        BloomFilter(client, key, capacity=100)


def test_expansion_0_and_a_clock_that_steps_back() -> None:
    """A sealed generation is followed by the next, even if the clock steps back."""
    times = iter([1000.0, 1000.0, 1000.0])
    now = 1000.0

    def clock() -> float:
        return next(times, now)

    store = MemoryStore(clock)
    parameters = FilterParameters(capacity=100, error_rate=1e-3, expansion=0, ttl=100)
    bloom = BaseBloomFilter(store, "k", parameters, cache_size=0, monotonic=lambda: now)
    assert bloom.add("before")
    now = 1021.0
    bloom._run(bloom._protocol.lifecycle.grow(bloom._stack.newest))
    now = 990.0
    bloom._run(bloom._protocol.lifecycle.grow(bloom._stack.newest))
    assert bloom.add("after")
    assert not bloom.add("before")
    assert [layer.capacity for layer in bloom.info().by_layer] == [100] * 3


@pytest.mark.parametrize("ask", [False, True], ids=["add_many", "contains_many"])
def test_a_call_of_any_size_goes_out_in_parts(ask: bool) -> None:
    """No round trip of a call with many items carries much more than a megabyte."""
    store = Watched()
    bloom = BaseBloomFilter(store, "k", FilterParameters(capacity=1_000_000), cache_size=0)
    bloom.add("the first")
    store.trips.clear()
    items = [f"item {number}" for number in range(5_000)]
    answers = bloom.contains_many(items) if ask else bloom.add_many(items)
    assert answers == [not ask] * 5_000
    assert store.largest <= 1.2 * MEGABYTE
    assert 3 <= len(store.trips) <= 12


def test_shards_are_made_one_by_one() -> None:
    """A round trip creates at most one shard, at the start and in a growth."""
    store = Watched()
    bloom = BaseBloomFilter(store, "k", FilterParameters(capacity=40_000), cache_size=0)
    bloom.add("the first")
    assert len(store.strings) > 1
    assert store.shards_made == [1] * len(store.strings)
    store.trips.clear()
    bloom._run(bloom._protocol.lifecycle.grow(bloom._stack.newest))
    assert set(store.shards_made) == {1}


def test_a_filter_that_is_there_is_opened_without_making_anything() -> None:
    """A worker that joins reads the hash, and creates no shard."""
    store = Watched()
    BaseBloomFilter(store, "k", FilterParameters(capacity=40_000)).add("a")
    store.trips.clear()
    joining = BaseBloomFilter(store, "k", FilterParameters(capacity=40_000))
    assert len(store.trips) <= 2
    assert not joining.add("a")
    assert store.shards_made == []


def test_opening_takes_no_room(client: redis.Redis, key: str) -> None:
    """An empty filter is one small key at any capacity; lookups change nothing."""
    bloom = BloomFilter(client, key, capacity=100_000_000)
    assert "a" not in bloom
    assert bloom.info().memory_bytes > 100e6
    assert list(client.scan_iter(f"{key}*")) == [key.encode()]
    assert int(client.memory_usage(key) or 0) < 1000


@pytest.fixture(params=KINDS)
def limited(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with room for 40 MB."""
    with running(request.param, "--maxmemory", "40mb") as server:
        yield server


@pytest.mark.parametrize("user", ["default", "mute"], ids=["may ask", "may not ask"])
def test_a_filter_that_does_not_fit(limited: Server, key: str, user: str) -> None:
    """If a filter does not fit, its partial keys are deleted, also if the user may not read the server's limit."""
    with limited.client() as client, limited.client(username=user, password="x") as user_client:  # noqa: S106
        client.acl_setuser("mute", enabled=True, passwords=["+x"], keys="*", commands=["+@all", "-info"])
        bloom = BloomFilter(user_client, key, capacity=20_000_000)
        for _ in range(2):
            with pytest.raises(RefusedError, match=r"maxmemory.*smaller capacity or a larger error_rate"):
                bloom.add("a")
        if user != "mute":
            assert client.info("memory")["used_memory_peak"] <= 40 * MEGABYTE
        assert list(client.scan_iter(f"{key}*")) == [key.encode()]
        assert client.set(f"{key}:other", "somebody else writes")
        assert BloomFilter(client, key, capacity=1_000_000, flush=True).add("a")


def test_a_growth_that_does_not_fit(limited: Server, key: str) -> None:
    """A filter that cannot grow raises an error, and continues once there is memory."""
    with limited.client() as client:
        bloom = BloomFilter(client, key, capacity=20_000, error_rate=1e-3, expansion=10, cache_size=0)
        added = [f"item {number}" for number in range(20_000)]
        bloom.add_many(added)
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 400_000)
        with pytest.raises(RefusedError, match=r"layer 1 .*can then go on where it is"):
            any(bloom.add(f"more {number}") and False for number in range(10_000))
        before = bloom.info().layers
        assert client.set(f"{key}:other", "somebody else writes")
        client.config_set("maxmemory", 60 * MEGABYTE)
        assert sum(bloom.add_many([f"then {number}" for number in range(1_000)])) >= 990
        assert bloom.info().layers == before + 1
        assert all(bloom.contains_many(added))
        bloom.clear()
        assert list(client.scan_iter(f"{key}:[0-9]*")) == []


@pytest.mark.parametrize(("error_rate", "most"), [(1e-6, 1.105), (1e-3, 1.099)])
@pytest.mark.parametrize("capacity", [100_000, 1_000_000, 5_000_000])
def test_bits_of_a_filter_that_was_sized_right(capacity: int, error_rate: float, most: float) -> None:
    """A growing filter takes a tenth more bits than the minimum, n ln(1/p) / ln(2)^2."""
    fewest = -capacity * math.log(error_rate) / math.log(2) ** 2
    assert MemoryBloomFilter(capacity=capacity, error_rate=error_rate).info().bits <= most * fewest


@valkey_first
@pytest.mark.parametrize("number", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_over_redis_the_parts_are_the_same(number: int, client: redis.Redis, key: str) -> None:
    """A single call with very many items succeeds over Redis without a timeout."""
    bloom = BloomFilter(client, key, capacity=200_000, cache_size=0, retry_timeout=0)
    items = [f"item {place}" for place in range(number)]
    assert all(bloom.add_many(items))
    assert all(bloom.contains_many(items))
    assert bloom.counters.ambiguous == 0


def test_a_layer_that_does_not_fit_is_not_prepared(limited: Server, key: str) -> None:
    """A string is allocated ahead of its layer only if the rest of the layer fits, too."""
    with limited.client() as client:
        store = RedisStore(client)
        prepare = PrepareShard(key, 10 * MEGABYTE, 50 * MEGABYTE)
        assert store.execute([prepare])[0].outcome == FULL
        assert not client.exists(key)
        assert store.execute([prepare._replace(room=30 * MEGABYTE)])[0].outcome == MADE
        assert client.strlen(key) == 10 * MEGABYTE
