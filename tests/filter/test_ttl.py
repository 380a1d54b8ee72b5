"""A filter with a TTL remembers items for the TTL, at most a quarter longer, and stays bounded."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from scrapy_bloom.filter.bloom_filter import BloomFilter
from tests.support.callers import Clock
from tests.support.servers import KINDS, Server, expires_at

TTL = 100.0


def advance(client: Any, key: str, seconds: float) -> None:
    """Let time pass for a filter on a server: its layers are older, and its keys expire sooner."""

    def older(layer: re.Match[bytes]) -> bytes:
        return b"%s%d" % (layer[1], int(layer[2]) - int(seconds * 1000))

    state = client.hget(key, "state")
    client.hset(key, "state", re.sub(rb"(;\d+ \d+ )(\d+)(?= )", older, state))


Advance = Callable[[float], None]


@pytest.fixture(params=KINDS)
def moving(
    request: pytest.FixtureRequest, servers: Callable[[str], Server], key: str
) -> Iterator[tuple[BloomFilter, Advance]]:
    """A filter on a server, and a function that lets time pass for it."""
    with servers(request.param).client() as client:
        bloom = BloomFilter(client, key, capacity=1000, ttl=TTL, cache_size=0)
        yield bloom, lambda seconds: advance(client, key, seconds)
        # Live layers, one ended since, and one in preparation.
        assert len(list(client.scan_iter(f"{{{key}}}:*"))) <= 9


@pytest.mark.parametrize("offset", [0.0, 10.0, 19.9, 20.0, 33.3])
def test_an_item_is_remembered_for_the_ttl(moving: tuple[BloomFilter, Advance], offset: float) -> None:
    """An item added at any time of a generation is forgotten after 1 to 1.25 times the TTL; at most 7 layers live."""
    bloom, advance = moving
    bloom.add("first")
    advance(offset)
    assert bloom.add("a")
    # Time passes between the calls, too.
    waited, step, extra = 0.0, 2.5, 1.0
    while not bloom.add("a"):
        advance(step)
        waited += step
        bloom.add(f"other {waited}")
        assert bloom.info().layers <= 7
    assert TTL - extra <= waited <= 1.25 * TTL + step + extra / 2
    assert bloom.counters.losses == 0


def test_a_forgotten_item_is_remembered_for_a_whole_ttl(moving: tuple[BloomFilter, Advance]) -> None:
    """A forgotten item that is added again lives as long as a new one, though older layers hold its bits."""
    bloom, advance = moving
    bloom.add("a")
    advance(90)
    bloom.forget("a")
    assert bloom.add("a")
    advance(99)
    assert not bloom.add("a")


def test_a_generation_can_grow(client: redis.Redis, key: str) -> None:
    """A generation that exceeds its part grows; its layers end together."""
    bloom = BloomFilter(client, key, capacity=500, error_rate=1e-9, ttl=TTL, cache_size=0)
    assert all(bloom.add_many([f"item {number}" for number in range(350)]))
    assert [layer.capacity for layer in bloom.info().by_layer] == [100, 200, 400]
    advance(client, key, 30)
    bloom.add("another")
    assert [layer.capacity for layer in bloom.info().by_layer] == [100, 200, 400, 100]
    advance(client, key, 100)
    assert [layer.capacity for layer in bloom.info().by_layer] == [100]
    assert all(bloom.add_many([f"item {number}" for number in range(350)]))


def test_the_cache_ends_with_the_layer(client: redis.Redis, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached item is asked again when the oldest layer has ended."""
    clock = Clock()
    monkeypatch.setattr(BloomFilter, "_runtime", clock)
    bloom = BloomFilter(client, key, capacity=500, ttl=TTL)
    assert bloom.add("a")

    def wait(seconds: float) -> None:
        clock.now += seconds
        advance(client, key, seconds)

    wait(118)
    assert bloom.add("b")
    wait(6)
    assert bloom.is_cached("a")
    wait(2)
    assert not bloom.is_cached("a")
    assert bloom.add("c")  # whose reply is younger than the layer
    assert bloom.add("d")
    assert not bloom.is_cached("a")
    assert bloom.add("a")


def test_an_unused_filter_expires(client: redis.Redis, key: str) -> None:
    """All keys expire 1.5 TTLs after their generation began; to begin another one then is no loss."""
    bloom = BloomFilter(client, key, capacity=500, ttl=TTL)
    bloom.add_many([f"item {number}" for number in range(100)])
    seconds, _ = client.time()
    names = [key.encode(), *client.scan_iter(f"{{{key}}}:*:?:?")]
    assert len(names) == 3
    for name in names:
        assert expires_at(client, name) / 1000 - seconds == pytest.approx(150, abs=10)
    client.pexpire(key, 60_000)
    advance(client, key, 30)
    bloom.add("the next generation")
    assert expires_at(client, key) / 1000 - seconds == pytest.approx(150, abs=20)


def test_without_a_ttl_nothing_expires(client: redis.Redis, key: str) -> None:
    """A filter without a TTL has no key that expires."""
    bloom = BloomFilter(client, key, capacity=100)
    bloom.add_many([f"item {number}" for number in range(1000)])
    names = [key.encode(), *client.scan_iter(f"{{{key}}}:*")]
    assert len(names) > 4
    assert {client.pttl(name) for name in names} == {-1}


def test_expiry_is_no_loss(client: redis.Redis, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was idle until the filter expired continues with a new one, in silence."""
    clock = Clock()
    monkeypatch.setattr(BloomFilter, "_runtime", clock)
    bloom = BloomFilter(client, key, capacity=500, ttl=TTL)
    bloom.add("a")
    client.unlink(key)
    clock.now += 151
    assert bloom.add("a")
    assert bloom.counters.losses == 0
