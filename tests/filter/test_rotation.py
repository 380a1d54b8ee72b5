"""A filter with a TTL remembers items for the TTL, at most a quarter longer, and stays bounded."""

import contextlib
import itertools
import json
import time
from typing import Any

import pytest
import redis

from devtools.waiting import until
from scrapy_bloom import BloomFilter, MemoryBloomFilter
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import GENERATIONS, FilterParameters
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.stores import MemoryStore
from tests.support.crashing import CrashError, Crashing
from tests.support.selection import valkey_first
from tests.support.servers import Server


class Clock:
    """A clock set by tests, for server and worker at once."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def remembered_for(bloom: BaseBloomFilter, clock: Clock, item: str, step: float) -> float:
    """Return the seconds until an item just added may be added again."""
    begin = clock.now
    while not bloom.add(item):
        assert clock.now < begin + 1000, "the item is never forgotten"
        clock.now += step
        # Others keep the filter busy meanwhile.
        bloom.add(f"other {clock.now}")
    return clock.now - begin


@pytest.mark.parametrize("cache_size", [0, 65_536], ids=["no cache", "cache"])
@pytest.mark.parametrize("offset", [0.0, 0.1, 10.0, 19.9, 20.0, 33.3])
def test_an_item_is_remembered_for_the_ttl(offset: float, cache_size: int) -> None:
    """An item added at any time of a generation is forgotten after 1 to 1.25 times the TTL."""
    clock = Clock()
    bloom = BaseBloomFilter(
        MemoryStore(clock),
        "k",
        FilterParameters(capacity=1000, error_rate=1e-6, ttl=100),
        cache_size=cache_size,
        monotonic=clock,
    )
    clock.now += offset
    assert bloom.add("a")
    assert 100 <= remembered_for(bloom, clock, "a", 0.5) <= 125.5


def test_an_idle_filter_forgets_too() -> None:
    """After a long pause a crawl's old pages are forgotten, in the cache as well."""
    clock = Clock()
    bloom = BaseBloomFilter(
        MemoryStore(clock), "k", FilterParameters(capacity=1000, error_rate=1e-6, ttl=100), monotonic=clock
    )
    bloom.add("a")
    clock.now += 1000
    assert "a" not in bloom
    assert bloom.add("a")
    assert not bloom.add("a")


def test_the_servers_time_decides() -> None:
    """A worker's fast clock neither makes it forget items nor start generations."""
    clock, fast = Clock(), Clock()
    store = MemoryStore(clock)
    bloom = BaseBloomFilter(store, "k", FilterParameters(capacity=1000, error_rate=1e-6, ttl=100), monotonic=fast)
    bloom.add("a")
    for _ in range(99):
        clock.now += 1
        fast.now += 10
        assert not bloom.add("a")
    assert bloom.info().layers == 5


def test_memory_is_bounded_over_ten_generations() -> None:
    """Over 40 generations of a steady crawl, layers, memory and error rate stay in bounds."""
    clock = Clock()
    store = MemoryStore(clock)
    parameters = FilterParameters(capacity=5000, error_rate=1e-3, ttl=100)
    bloom = BaseBloomFilter(store, "k", parameters, cache_size=0, monotonic=clock)
    sizes = []
    for generation in range(40):
        for part in range(10):
            clock.now += 100 / GENERATIONS / 10
            bloom.add_many([f"{generation} {part} {number}" for number in range(100)])
        info = bloom.info()
        assert info.estimated_error_rate <= parameters.error_rate
        # The sealed layers' estimated rates, plus the newest layer's share.
        *sealed, newest = info.by_layer
        assert sum(layer.estimated_error_rate for layer in sealed) + newest.error_rate <= parameters.error_rate
        sizes.append((info.layers, sum(len(string) for string in store.strings.values())))
    settled = sizes[8:]
    assert max(layers for layers, _ in settled) <= 14
    assert max(size for _, size in settled) <= 1.5 * min(size for _, size in settled)
    stored = {int(key.split(":")[1]) for key in store.strings}
    assert len(stored) == sizes[-1][0]


@pytest.mark.parametrize(("expansion", "least", "most"), [(2, 1, 2), (0, 5, 7)])
def test_memory_of_a_steady_crawl(expansion: int, least: float, most: float) -> None:
    """A TTL at most doubles the memory of a steady crawl.

    Without growth it takes five to seven times as much, since each generation has room for the whole capacity.
    """
    clock = Clock()
    store = MemoryStore(clock)
    parameters = FilterParameters(capacity=5000, error_rate=1e-6, expansion=expansion, ttl=100)
    bloom = BaseBloomFilter(store, "k", parameters, cache_size=0, monotonic=clock)
    sizes = []
    for part in range(100):
        clock.now += 2
        bloom.add_many([f"{part} {number}" for number in range(100)])
        sizes.append(sum(len(string) for string in store.strings.values()))
    kept = MemoryBloomFilter(capacity=5000, error_rate=1e-6).info().memory_bytes
    assert least <= max(sizes) / kept <= most


def test_growth_and_ageing_together() -> None:
    """A generation beyond its share grows within it, and all its layers expire together."""
    clock = Clock()
    store = MemoryStore(clock)
    bloom = BaseBloomFilter(
        store, "k", FilterParameters(capacity=500, error_rate=1e-2, ttl=100), cache_size=0, monotonic=clock
    )
    items = [f"burst {number}" for number in range(5000)]
    bloom.add_many(items)
    assert bloom.info().layers >= 4
    clock.now += 99.9
    assert not any(bloom.add_many(items))
    clock.now += 25.2
    # The first began at 99.9 s, the second now.
    assert bloom.info().layers == 2
    assert sum(bloom.add_many(items)) >= 4900


def test_a_worker_that_dies_while_layers_are_deleted() -> None:
    """A worker dies at any step of deleting expired layers: the next one deletes the rest."""
    parameters = FilterParameters(capacity=500, error_rate=1e-2, ttl=100)
    for left in itertools.count():
        clock = Clock()
        store = Crashing(clock)
        bloom = BaseBloomFilter(store, "k", parameters, monotonic=clock)
        bloom.add_many([f"item {number}" for number in range(1000)])
        # They have ended, but not expired yet.
        clock.now += 130
        store.left = left
        with contextlib.suppress(CrashError):
            bloom.add("a")
        has_died = store.left is None
        store.left = None
        BaseBloomFilter(store, "k", parameters, monotonic=clock).add("b")
        known = {filter_keys.layer_of_field(name) for name in store.hashes["k"]}
        assert {int(key.split(":")[1]) for key in store.strings} <= known
        if not has_died:
            break
    assert left > 4


def test_expansion_0_with_a_ttl_takes_the_capacity_in_each_generation() -> None:
    """A filter without growth has room for its whole capacity in every generation."""
    clock = Clock()
    bloom = BaseBloomFilter(
        MemoryStore(clock), "k", FilterParameters(capacity=1000, error_rate=1e-3, expansion=0, ttl=100), monotonic=clock
    )
    bloom.add_many([f"item {number}" for number in range(1000)])
    clock.now += 20
    bloom.add("a")
    by_layer = bloom.info().by_layer
    assert [layer.capacity for layer in by_layer] == [1000, 1000]
    assert sum(layer.error_rate for layer in by_layer) <= 1e-3


def stored(client: redis.Redis, key: str) -> list[bytes]:
    """Return all keys of a filter."""
    return list(client.scan_iter(f"{key}*", count=10_000))


def test_a_filter_that_nobody_uses_leaves_no_key(client: redis.Redis, key: str) -> None:
    """A filter that is neither closed nor cleared expires by itself, even if it was only opened."""
    options: dict[str, Any] = {"capacity": 100_000, "error_rate": 1e-3, "ttl": 0.3}
    # On a busy machine a filter may expire before its keys are listed: repeat until they are seen.
    until(lambda: BloomFilter(client, f"{key}:opened", **options) and stored(client, f"{key}:opened"))
    bloom = BloomFilter(client, f"{key}:used", **options)
    bloom.add_reference("shop:requests")
    until(lambda: bloom.add(f"item {time.monotonic()}") and len(stored(client, f"{key}:used")) > 2)
    until(lambda: stored(client, key) == [])
    assert bloom.add("a")
    assert not bloom.add("a")
    bloom.clear()


def test_a_filter_that_is_used_keeps_all(client: Any, key: str) -> None:
    """A filter in use outlives its first layer, and so do all its keys."""
    bloom = BloomFilter(client, key, capacity=1000, error_rate=1e-3, ttl=0.5)
    bloom.add("a")
    first, before = client.hget(key, "filter"), client.pexpiretime(key)
    layers = {}

    def is_long_after() -> bool:
        bloom.add(f"item {time.monotonic()}")
        layers.update(client.hgetall(key))
        return bool(client.pexpiretime(key) > before + 2 * 750)

    until(is_long_after)
    assert client.hget(key, "filter") == first
    for name, text in layers.items():
        index = filter_keys.layer_of_field(name.decode())
        expiry = client.pexpiretime(filter_keys.shard_key(key, index or 0, 0)) if index is not None else -2
        created = json.loads(text)["created"] if index is not None else 0
        # The keys of ended layers are deleted before.
        assert expiry == -2 or abs(expiry - (created + 0.75) * 1000) <= 1
    assert client.pexpiretime(key) == max(client.pexpiretime(each) for each in stored(client, key))
    bloom.clear()


def test_a_filter_without_a_ttl_never_expires(client: Any, key: str) -> None:
    """A filter without a TTL never sets an expiry."""
    bloom = BloomFilter(client, key, capacity=100, error_rate=1e-3)
    bloom.add_many([f"item {number}" for number in range(1000)])
    assert bloom.info().layers > 1
    assert {client.pttl(each) for each in stored(client, key)} == {-1}
    bloom.clear()


@pytest.mark.parametrize("denied", ["pexpireat", "pttl"])
def test_a_user_who_may_have_nothing_expire(server: Server, key: str, denied: str) -> None:
    """If the server denies PEXPIRE, the filter stays without expiry, and no crawl is stopped."""
    with server.client() as admin:
        admin.acl_setuser(key, enabled=True, passwords=["+x"], keys="*", commands=["+@all", f"-{denied}"])
        with server.client(username=key, password="x") as user:  # noqa: S106  # of this test's own user
            bloom = BloomFilter(user, key, capacity=1000, ttl=100)
            assert bloom.add("a")
            assert not bloom.add("a")
            assert admin.ttl(key) == -1
            if denied == "pexpireat":
                assert {admin.ttl(each) for each in stored(admin, key)} == {-1}
            # The same holds for an earlier release's filter: the hash expires once a layer with an expiry begins.
            other = BloomFilter(admin, key, capacity=1000, ttl=100)
            other._run(other._protocol.lifecycle.rotate(adds=True))
            other._run(other._protocol.lifecycle.grow(other._stack.newest))
            assert {admin.ttl(key), admin.ttl(filter_keys.shard_key(key, 1, 0))} <= {149, 150}
            bloom.clear()
        admin.acl_deluser(key)


@valkey_first
def test_ten_generations_on_a_server(client: redis.Redis, key: str) -> None:
    """A worker with a short TTL goes through ten generations, and deletes old layers."""
    options: dict[str, Any] = {"capacity": 1000, "error_rate": 1e-3, "ttl": 1.0}
    bloom = BloomFilter(client, key, **options)
    most = 0

    def tenth() -> bool:
        nonlocal most
        bloom.add(f"item {time.monotonic()}")
        keys = list(client.scan_iter(f"{key}:*"))
        most = max(most, len(keys))
        return any(int(each.decode().split(":")[-2]) >= 10 for each in keys)

    until(tenth)
    assert most <= 14
    bloom.add("a")
    until(lambda: bloom.add("a"))
    bloom.clear()
    assert list(client.scan_iter(f"{key}*")) == []
