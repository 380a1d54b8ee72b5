"""The filter's behaviour, the same over every server, protocol and type of reply."""

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import HealthCheck, given, settings

from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from tests.filter.conftest import CONNECTIONS, Make
from tests.support.selection import long_unless

ITEMS = st.lists(st.sampled_from([f"item {number}" for number in range(30)]), max_size=15)
CALLS = st.lists(st.tuples(st.sampled_from(["add_many", "contains_many", "forget_many", "revalidate"]), ITEMS))


def test_text_is_its_utf8(make: Make) -> None:
    """A str and its UTF-8 are the same item; any bytes are an item."""
    bloom = make(capacity=1000)
    assert bloom.add_many(["ü/日本", "", b"\0\xff\r\n"]) == [True, True, True]
    assert bloom.add_many(["ü/日本".encode(), b"", b"\0\xff\r\n"]) == [False, False, False]
    assert "ü/日本".encode() in bloom


def test_equal_items(make: Make) -> None:
    """Of equal items only the first is new, in a batch too; to ask adds nothing."""
    bloom = make(capacity=1000)
    assert [bloom.add("b"), bloom.add("b"), "b" in bloom, "a" in bloom] == [True, False, True, False]
    assert bloom.add_many(["a", "b", "a", "c", "c"]) == [True, False, False, True, False]
    assert bloom.add_many([]) == bloom.contains_many([]) == bloom.forget_many([]) == []
    assert bloom.forget_many(["a", "a"]) == [True, True]
    assert bloom.add_many(["a", "a"]) == [True, False]


def test_memory_of_forgotten_items(client: redis.Redis, key: str) -> None:
    """A forgotten fingerprint takes less than the 100 bytes that the documentation states."""
    bloom = BloomFilter(client, key)
    items = [f"{number:040}" for number in range(10_000)]
    bloom.add_many(items)
    before = client.memory_usage(key, samples=0) or 0
    bloom.forget_many(items)
    taken = (client.memory_usage(key, samples=0) or 0) - before
    assert 0 < taken < 100 * len(items)


def test_clear_begins_anew(make: Make) -> None:
    """After `clear` the filter is empty and usable; that is no loss."""
    bloom = make(capacity=1000)
    bloom.add_many(["a", "b"])
    bloom.clear()
    assert bloom.contains_many(["a", "b"]) == [False, False]
    assert bloom.add_many(["a", "b"]) == [True, True]
    assert bloom.counters.losses == 0


@pytest.mark.parametrize(("cache_size", "further"), [(1000, 0), (0, 1)])
def test_cached_repeats_stay_in_the_process(client: redis.Redis, key: str, cache_size: int, further: int) -> None:
    """A check of a batch is one round trip, and a repeat none; without a cache each is one."""
    bloom = BloomFilter(client, key, capacity=1000, cache_size=cache_size)
    bloom.add("first")
    items = [f"item {number}" for number in range(100)]
    before = bloom.counters.round_trips
    assert all(bloom.add_many(items))
    assert bloom.counters.round_trips == before + 1
    assert not any(bloom.add_many(items))
    assert bloom.counters.round_trips == before + 1 + further


def test_large_batches(make: Make) -> None:
    """A batch of thousands, over several layers, is exact."""
    bloom = make(capacity=1000, error_rate=1e-12)
    items = [f"item {number}" for number in range(3_333)]
    assert all(bloom.add_many(items))
    assert not any(bloom.add_many(items))
    assert all(bloom.contains_many(items))
    info = bloom.info()
    assert (info.count, info.layers, bloom.counters.added) == (3_333, 3, 3_333)
    assert [layer.count for layer in info.by_layer] == [1000, 2000, 333]
    assert info.current_error_rate <= info.error_rate == 1e-12


def test_info_of_an_empty_filter(make: Make) -> None:
    """It has the sizes that the first addition will allocate."""
    bloom = make(capacity=20_000, error_rate=1e-3, expansion=0)
    empty = bloom.info()
    bloom.add_many([f"item {number}" for number in range(10_000)])
    info = bloom.info()
    assert (empty.count, empty.bits, empty.memory_bytes) == (0, info.bits, info.memory_bytes)
    assert (info.count, info.layers, info.lost_shards) == (bloom.counters.added, 1, 0)
    assert 20_000 * 14.4 <= info.bits <= 20_000 * 17
    assert 0.2 < info.fill_ratio < 0.5


@pytest.mark.parametrize("expansion", [0, 1, 2])
def test_growth(make: Make, expansion: int) -> None:
    """A filter with `expansion` 0 never grows; others do, and forget nothing."""
    bloom = make(capacity=100, error_rate=1e-9, expansion=expansion, cache_size=0)
    items = [f"item {number}" for number in range(350)]
    new = sum(sum(bloom.add_many(items[first : first + 50])) for first in range(0, 350, 50))
    assert not any(bloom.add_many(items))
    assert bloom.info().layers == {0: 1, 1: 4, 2: 3}[expansion]
    assert new == 350 or expansion == 0


@pytest.mark.parametrize("make", long_unless(lambda name: name == "valkey", CONNECTIONS), indirect=True)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls=CALLS)
def test_it_answers_as_a_set(make: Make, calls: list[tuple[str, list[str]]]) -> None:
    """Any calls of two filters on the same key get the answers of one set."""
    both = [make(capacity=10, error_rate=1e-12) for _ in range(2)]
    known: set[str] = set()
    for number, (name, items) in enumerate(calls):
        bloom = both[number % len(both)]
        if name == "revalidate":
            bloom.revalidate()
            continue
        for each in both:
            # The caches of others learn of a forgotten item with their next round trip.
            each.contains_many(["any"])
        answers = getattr(bloom, name)(items)
        if name == "contains_many":
            assert answers == [item in known for item in items]
        elif name == "add_many":
            assert answers == [item not in known and item not in items[:place] for place, item in enumerate(items)]
            known |= set(items)
        else:
            assert answers == [item in known for item in items]
            known -= set(items)
    both[0].clear()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parameters=st.builds(FilterParameters, st.integers(1, 100), st.floats(1e-9, 0.9), st.integers(0, 4)),
    items=st.lists(st.binary(), max_size=200),
)
def test_no_false_negative_ever(
    client: redis.Redis, key: str, parameters: FilterParameters, items: list[bytes]
) -> None:
    """Every added item is in the filter, even far beyond its capacity, with all parameters."""
    bloom = BloomFilter.with_parameters(client, key, parameters, cache_size=0, flush=True)
    for item in items:
        bloom.add(item)
    assert all(bloom.contains_many(items))
    assert not any(bloom.add_many(items))
