"""`info`: sums over all layers, and counts that do not depend on the order of additions."""

from typing import Any

import pytest

from scrapy_bloom import MemoryBloomFilter
from scrapy_bloom.cli.report import build_report
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.storage.operation import Operations, Results
from scrapy_bloom.storage.stores import MemoryStore, run_steps
from tests.support.make_filter import MakeFilter


def test_info_of_a_filter_that_has_grown(make_filter: MakeFilter) -> None:
    """`info` counts the items and bytes of all layers, not only of the newest."""
    bloom = make_filter(capacity=1000, error_rate=1e-3, cache_size=0)
    bloom.add_many([f"item {number}" for number in range(10_000)])
    info = bloom.info()
    assert info.layers == len(info.by_layer) >= 3
    assert info.estimated_count == pytest.approx(10_000, rel=0.02)
    assert info.estimated_count == sum(layer.estimated_count for layer in info.by_layer)
    assert info.memory_bytes == sum(layer.memory_bytes for layer in info.by_layer)
    assert info.bits == sum(layer.bits for layer in info.by_layer)
    assert info.shards == sum(layer.shards for layer in info.by_layer)
    assert info.fill_ratio == pytest.approx(sum(layer.fill_ratio * layer.bits for layer in info.by_layer) / info.bits)


def test_memory_is_that_of_the_strings() -> None:
    """`info` counts the bytes of all strings, plus a little for the server's overhead."""
    store = MemoryStore()
    bloom = BaseBloomFilter(store, "k", FilterParameters(capacity=1000, error_rate=1e-3), cache_size=0)
    bloom.add_many([f"item {number}" for number in range(10_000)])
    bloom.add("last")
    stored = [len(string) for string in store.strings.values()]
    assert len(stored) == bloom.info().shards >= 3
    assert sum(stored) <= bloom.info().memory_bytes <= sum(stored) + 64 * len(stored)


def test_shards_that_are_gone_are_counted() -> None:
    """Each layer counts its missing or foreign strings; the next addition recreates them."""
    store = MemoryStore()
    bloom = BaseBloomFilter(store, "k", FilterParameters(capacity=1000, error_rate=1e-3), cache_size=0)
    bloom.add_many([f"item {number}" for number in range(10_000)])
    first, *_, last = sorted(store.strings)
    assert bloom.info().lost_shards == 0
    del store.strings[first]
    store.strings[last][:] = b"a string of somebody else's"
    info = bloom.info()
    assert info.lost_shards == 2
    assert [layer.lost_shards for layer in info.by_layer] == [1, *[0] * (info.layers - 2), 1]
    # A foreign string would stop the creation of a new one.
    del store.strings[last]
    bloom.add_many([f"other {number}" for number in range(100)])
    assert bloom.info().lost_shards == 0


@pytest.mark.parametrize("ends", ["with another", "with none"])
def test_a_filter_that_is_cleared_meanwhile(ends: str) -> None:
    """Strings of a filter cleared between two reads are not reported as lost."""
    store = MemoryStore()
    bloom = BaseBloomFilter(store, "k", FilterParameters(capacity=1000), cache_size=0)
    bloom.add("item")
    looks = 0

    def execute(operations: Operations) -> Results:
        nonlocal looks
        looks += 1
        if looks == 2:
            bloom.clear()
            if ends == "with another":
                bloom.add("another item")
        return store.execute(operations)

    found = run_steps(build_report("k"), execute)
    assert (found and found.info.lost_shards) == (0 if ends == "with another" else None)


def test_expected_false_positives_are_those_of_items() -> None:
    """Items of a batch count like single ones: each with the error rate at its addition."""
    parameters: dict[str, Any] = {"capacity": 2000, "error_rate": 0.1, "expansion": 0}
    batches, singles = MemoryBloomFilter(**parameters), MemoryBloomFilter(**parameters)
    items = [f"item {number}" for number in range(2000)]
    for first in range(0, len(items), 20):
        batches.add_many(items[first : first + 20])
    for item in items:
        singles.add(item)
    expected = singles.counters.expected_false_positives
    assert expected > 20
    assert batches.counters.expected_false_positives == pytest.approx(expected, rel=0.1)
