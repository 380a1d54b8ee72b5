"""The filter's behaviour, the same over every server, protocol and type of reply, and in memory."""

import math

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_bloom import BloomFilter, MemoryBloomFilter
from tests.support.make_filter import MakeFilter
from tests.support.real_links import SITES, pages
from tests.support.servers import Server


def test_an_item_is_new_once(make_filter: MakeFilter) -> None:
    """The first `add` of an item returns True, every later one False."""
    bloom = make_filter(capacity=1000)
    assert [bloom.add("a"), bloom.add("a"), bloom.add("b"), bloom.add("a")] == [True, False, True, False]


def test_text_is_its_utf8(make_filter: MakeFilter) -> None:
    """A str and its UTF-8 are the same item."""
    bloom = make_filter(capacity=1000)
    assert bloom.add("ü/日本")
    assert not bloom.add("ü/日本".encode())
    assert "ü/日本".encode() in bloom


def test_a_batch_answers_in_order(make_filter: MakeFilter) -> None:
    """`add_many` returns for each item whether it was new; a repeat within the batch is not."""
    bloom = make_filter(capacity=1000)
    bloom.add("b")
    assert bloom.add_many(["a", "b", "a", "c", "c"]) == [True, False, False, True, False]
    assert bloom.add_many([]) == []
    assert bloom.contains_many(["a", "z", "b"]) == [True, False, True]
    assert bloom.contains_many([]) == []


def test_asking_adds_nothing(make_filter: MakeFilter) -> None:
    """`in` and `contains_many` leave the filter as it was."""
    bloom = make_filter(capacity=1000)
    assert "a" not in bloom
    assert bloom.contains_many(["a", "b"]) == [False, False]
    assert bloom.add_many(["a", "b"]) == [True, True]
    assert bloom.counters.added == 2


def test_clear_begins_anew(make_filter: MakeFilter) -> None:
    """After `clear` the filter is empty and usable."""
    bloom = make_filter(capacity=1000)
    bloom.add_many(["a", "b"])
    bloom.clear()
    assert bloom.contains_many(["a", "b"]) == [False, False]
    assert bloom.add_many(["a", "b"]) == [True, True]


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_one_round_trip_a_check(make_filter: MakeFilter, batch: int) -> None:
    """A check of any number of items is one round trip, and a repeat is none.

    Except for the first check, which creates the filter and asks for credit.
    """
    bloom = make_filter(capacity=1_000_000)
    bloom.add_many([f"first {number}" for number in range(batch)])
    before = bloom.counters.round_trips
    items = [f"item {number}" for number in range(batch)]
    bloom.add_many(items)
    assert bloom.counters.round_trips == before + 1
    bloom.add_many(items)
    assert bloom.counters.round_trips == before + 1
    assert bloom.counters.cache_hits == batch


def test_without_a_cache_every_check_is_a_round_trip(make_filter: MakeFilter) -> None:
    """`cache_size=0` disables the cache."""
    bloom = make_filter(capacity=1000, cache_size=0)
    bloom.add("a")
    before = bloom.counters.round_trips
    assert not bloom.add("a")
    assert bloom.counters.round_trips == before + 1


def test_a_repeat_of_what_another_added_is_remembered(client: redis.Redis, key: str) -> None:
    """An item of another worker costs this one a single round trip, and its repeats none."""
    one, other = (BloomFilter(client, key, capacity=1000) for _ in range(2))
    one.add_many(["a", "b", "c"])
    other.add("own")
    before = other.counters.round_trips
    assert [other.add("a"), other.add("a")] == [False, False]
    assert other.add_many(["b", "c"]) == other.add_many(["b", "c"]) == [False, False]
    assert other.counters.round_trips == before + 2
    assert other.counters.cache_hits == 3


def test_info_tells_what_the_filter_is(make_filter: MakeFilter) -> None:
    """`info` has the parameters, the sizes, and the number of items by the bits."""
    bloom = make_filter(capacity=20_000, error_rate=1e-3, expansion=0)
    bloom.add_many([f"item {number}" for number in range(10_000)])
    info = bloom.info()
    assert (info.capacity, info.error_rate, info.layers) == (20_000, 1e-3, 1)
    assert (info.hashes, info.shards) == (7, 1)
    assert 20_000 * 14.4 <= info.bits <= 20_000 * 20
    assert info.memory_bytes == pytest.approx(info.bits / 8, rel=0.01)
    assert info.estimated_count == pytest.approx(10_000, rel=0.02)
    assert 0 < info.fill_ratio < 0.5
    assert info.estimated_error_rate == pytest.approx(info.fill_ratio**7)
    assert [layer.bits for layer in info.by_layer] == [info.bits]


def test_a_filter_that_may_grow_keeps_a_quarter_in_reserve() -> None:
    """The first layer gets three quarters of the error rate; a fixed filter's, all."""
    growing, fixed = MemoryBloomFilter(expansion=2), MemoryBloomFilter(expansion=0)
    assert growing.info().by_layer[0].error_rate == pytest.approx(0.75e-6)
    assert fixed.info().by_layer[0].error_rate == 1e-6


def test_expected_false_positives_add_up() -> None:
    """The counter is the sum of the error rates at each addition."""
    bloom = MemoryBloomFilter(capacity=8000, error_rate=0.1, expansion=0)
    asked = 16_000
    added = sum(bloom.add(f"item {number}") for number in range(asked))
    assert bloom.counters.added == added
    missed = asked - added
    assert abs(bloom.counters.expected_false_positives - missed) < 5 * math.sqrt(missed)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    capacity=st.integers(1, 100),
    error_rate=st.floats(1e-9, 0.9),
    expansion=st.integers(0, 4),
    items=st.lists(st.binary(), max_size=200),
)
def test_no_false_negative_ever(capacity: int, error_rate: float, expansion: int, items: list[bytes]) -> None:
    """Every added item is in the filter, even far beyond its capacity, with all parameters."""
    bloom = MemoryBloomFilter(capacity=capacity, error_rate=error_rate, expansion=expansion, cache_size=0)
    for item in items:
        bloom.add(item)
        assert item in bloom
    assert all(bloom.contains_many(items))
    assert not any(bloom.add_many(items))


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.long), 1.0], ids=["half full", "full"])
@pytest.mark.parametrize("expansion", [pytest.param(0, marks=pytest.mark.long), 2])
def test_the_promised_error_rate_is_kept(valkey: Server, key: str, share: float, expansion: int) -> None:
    """The error rate over 100,000 items never added is the promised one, within its binomial bounds."""
    promised, capacity, asked = 1e-3, 20_000, 100_000
    with valkey.client() as client:
        bloom = BloomFilter(client, key, capacity=capacity, error_rate=promised, expansion=expansion, cache_size=0)
        bloom.add_many([f"in {number}" for number in range(int(capacity * share))])
        wrong = 0
        for start in range(0, asked, 10_000):
            wrong += sum(bloom.contains_many([f"out {number}" for number in range(start, start + 10_000)]))
        allowed = bloom.info().estimated_error_rate
        bloom.clear()
    assert allowed <= promised
    assert abs(wrong - asked * allowed) <= 5 * math.sqrt(asked * allowed) + 1


@pytest.mark.parametrize("site", SITES)
def test_real_links(valkey: Server, key: str, site: str) -> None:
    """Over a real site's links the filter gives the answers of a set, page by page."""
    seen: set[str] = set()
    with valkey.client() as client:
        bloom = BloomFilter(client, key, capacity=10_000)
        different = 0
        for page in pages(site):
            new = set(page) - seen
            different += sum(bloom.add_many(page)) != len(new)
            seen |= new
        bloom.clear()
    assert different == 0
    assert bloom.counters.added == len(seen)
