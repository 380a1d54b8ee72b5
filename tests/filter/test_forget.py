"""Forgetting items, the same over every server and in memory."""

import math

import pytest
import redis

from scrapy_bloom import BloomFilter, MemoryBloomFilter
from scrapy_bloom.storage.filter_keys import forgotten_key
from scrapy_bloom.storage.forgotten import ClaimForgotten, MarkForgotten
from scrapy_bloom.storage.operation import Operations, Results
from tests.support.make_filter import MakeFilter
from tests.support.servers import expires_at


def test_a_forgotten_item_is_new_once_more(make_filter: MakeFilter) -> None:
    """It is new once; the others stay seen."""
    bloom = make_filter(capacity=1000)
    bloom.add_many(["a", "b"])
    assert bloom.forget("a")
    assert bloom.contains_many(["a", "b"]) == [False, True]
    assert [bloom.add("a"), bloom.add("a"), bloom.add("b")] == [True, False, False]
    assert "a" in bloom


def test_an_item_that_was_not_in(make_filter: MakeFilter) -> None:
    """Forgetting it changes nothing: it is new once, as ever."""
    bloom = make_filter(capacity=1000)
    assert not bloom.forget("a")
    assert [bloom.add("a"), bloom.add("a")] == [True, False]
    assert bloom.forget_many(["b", "a", "a"]) == [False, True, True]
    assert bloom.forget_many([]) == []
    assert bloom.add_many(["a", "b", "b"]) == [True, True, False]


def test_an_item_of_several_layers(make_filter: MakeFilter) -> None:
    """Forgetting works in any layer of a filter that has grown, and across a growth."""
    bloom = make_filter(capacity=1000, error_rate=1e-12, cache_size=0)
    items = [f"item {number}" for number in range(12_000)]
    bloom.add_many(items[:6000])
    assert all(bloom.forget_many(items[:5000:1000]))
    bloom.add_many(items[6000:])
    assert all(bloom.forget_many(items[6000::1000]))
    assert bloom.info().layers > 1
    again = bloom.add_many(items)
    forgotten = items[:5000:1000] + items[6000::1000]
    assert [item for item, is_new in zip(items, again, strict=True) if is_new] == forgotten
    assert not any(bloom.add_many(items))


def test_another_process_learns_of_it(client: redis.Redis, key: str) -> None:
    """The next round trip of a process empties its cache of repeats."""
    bloom, other = (BloomFilter(client, key, capacity=1000) for _ in range(2))
    bloom.add_many(["a", "b"])
    other.add_many(["a", "b"])
    bloom.forget("a")
    assert other.is_cached("a")
    other.add("c")
    assert not other.is_cached("a")
    assert other.add_many(["b", "a"]) == [False, True]
    assert [bloom.add("a"), bloom.add("b")] == [False, False]


def test_a_process_with_cached_repeats_alone(client: redis.Redis, key: str) -> None:
    """It learns of a forgotten item by a look at the marks."""
    bloom, other = (BloomFilter(client, key, capacity=1000) for _ in range(2))
    bloom.add("a")
    other.add("a")
    bloom.forget("a")
    before = other.counters.round_trips
    assert not other.is_stale
    other._stack._last_contact = -math.inf
    assert other.is_stale
    assert other.is_cached("a")
    other.refresh_cache()
    assert not other.is_stale
    assert other.counters.round_trips == before + 1
    assert other.add("a")


def test_a_batch_learns_of_it_in_its_own_reply(client: redis.Redis, key: str) -> None:
    """A cached item in the batch whose reply has the news is looked up again."""
    bloom, other = (BloomFilter(client, key, capacity=1000) for _ in range(2))
    bloom.add("a")
    other.add("a")
    bloom.forget("a")
    assert other.add_many(["a", "b"]) == [True, True]


def test_nothing_is_stored_until_an_item_is_forgotten(client: redis.Redis, key: str) -> None:
    """The set and the marks in the shards come with the first forgotten item, and the set goes with the filter."""
    bloom = BloomFilter(client, key, capacity=1000)
    bloom.add("a")
    bloom.forget("b")
    assert client.keys(f"{key}*")
    assert not client.exists(forgotten_key(key))
    before = bloom.counters.round_trips
    bloom.add("b")
    assert bloom.counters.round_trips == before + 1
    bloom.forget("a")
    assert client.zcard(forgotten_key(key)) == 2
    bloom.clear()
    assert not client.keys(f"{key}*")


def test_a_claim_is_one_more_round_trip(make_filter: MakeFilter) -> None:
    """A batch of repeats and new items takes one more round trip once an item was forgotten."""
    bloom = make_filter(capacity=1_000_000, cache_size=0)
    items = [f"item {number}" for number in range(100)]
    bloom.add_many(items)
    bloom.forget(items[0])
    before = bloom.counters.round_trips
    assert bloom.add_many([*items[:50], "new"]) == [True, *[False] * 49, True]
    assert bloom.counters.round_trips == before + 2


def test_without_the_set_every_item_is_new(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """If the set is lost, no item that it may have held is lost with it: the filter begins anew, and says so."""
    bloom = BloomFilter(client, key, capacity=1000)
    bloom.add_many(["a", "b"])
    bloom.forget("a")
    client.delete(forgotten_key(key))
    assert bloom.contains_many(["a", "b"]) == [False, False]
    assert bloom.add_many(["a", "b"]) == [True, True]
    assert "lost its forgotten items" in caplog.text
    assert bloom.add_many(["a", "b"]) == [False, False]
    assert bloom.forget("a")
    assert bloom.add("a")


@pytest.mark.parametrize("step", [ClaimForgotten, MarkForgotten])
def test_a_process_that_is_stopped_while_others_forget(
    step: type[ClaimForgotten | MarkForgotten],
    client: redis.Redis,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before its claim, or before it marks the shards, others forget more items than versions of one set may differ."""
    bloom, other = (BloomFilter(client, key, capacity=1000, error_rate=1e-12, cache_size=0) for _ in range(2))
    items = [f"item {number}" for number in range(10)]
    bloom.add_many(items)
    assert bloom.forget_many(items[:2]) == [True, True]
    execute, stops = bloom._store.execute, [2000]

    def stop_once(operations: Operations) -> Results:
        if isinstance(operations[0], step):
            for _ in range(stops.pop() if stops else 0):
                other.forget(items[0])
        return execute(operations)

    monkeypatch.setattr(bloom._store, "execute", stop_once)
    if step is ClaimForgotten:
        assert bloom.add_many(items[1:]) == [True, *[False] * 8]
        forgotten = items[:1]
    else:
        assert bloom.forget(items[2])
        forgotten = items[:3]
    assert not stops
    new = other.add_many(items)
    assert [item for item, is_new in zip(items, new, strict=True) if is_new] == forgotten
    assert not any(bloom.add_many(items))
    assert "lost" not in caplog.text


def test_the_set_expires_with_the_filter(client: redis.Redis, key: str) -> None:
    """With a TTL the set lives as long as the newest layer, and without one for ever."""
    bloom = BloomFilter(client, key, capacity=1000, ttl=1000)
    bloom.add("a")
    bloom.forget("a")
    assert abs(expires_at(client, forgotten_key(key)) - expires_at(client, key)) < 20_000
    forever = BloomFilter(client, f"{key}:2", capacity=1000)
    forever.add("a")
    forever.forget("a")
    assert not expires_at(client, forgotten_key(f"{key}:2"))


def test_memory_does_the_same() -> None:
    """The filter in memory forgets, too."""
    bloom = MemoryBloomFilter(capacity=1000, ttl=3600)
    bloom.add_many(["a", "b"])
    assert bloom.forget_many(["a", "c"]) == [True, False]
    assert bloom.add_many(["a", "b", "c"]) == [True, False, True]
