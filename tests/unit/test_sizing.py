"""The laws and the known values of the sizing formulas."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.sizing import LayerSize, size_for

capacities = st.integers(1, 10**9)
error_rates = st.floats(1e-18, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("bits_per_item", "hashes", "error_rate"),
    [pytest.param(20, 10, 8.89e-5, id="20 bits, 10 hashes"), pytest.param(8, 6, 2.16e-2, id="8 bits, 6 hashes")],
)
def test_known_error_rates(bits_per_item: int, hashes: int, error_rate: float) -> None:
    """The textbook's tables of error rates are met."""
    size = LayerSize(hashes, 1_000_000 * bits_per_item, 1)
    assert sizing.error_rate_at(size, 1_000_000) == pytest.approx(error_rate, rel=0.005)


def test_known_memory() -> None:
    """100 M items at 1e-3 take about 180 MB.

    A half empty table of 8-byte fingerprints takes 1.6 GB.
    """
    assert size_for(100_000_000, 1e-3).memory_bytes == pytest.approx(180e6, rel=0.06)


@pytest.mark.parametrize(("error_rate", "hashes"), [(1e-6, 14), (1e-3, 7)])
def test_known_hashes(error_rate: float, hashes: int) -> None:
    """There are a third fewer hashes than the textbook's 20 and 10, for under 5 % more bits."""
    assert sizing.choose_hashes(1_000_000, error_rate) == hashes


@given(capacities, error_rates)
def test_the_promise_is_kept(capacity: int, error_rate: float) -> None:
    """A filter at its capacity has at most the requested error rate."""
    assert sizing.error_rate_at(size_for(capacity, error_rate), capacity) <= error_rate * (1 + 1e-9)


@given(capacities, error_rates)
def test_the_promise_is_not_overpaid(capacity: int, error_rate: float) -> None:
    """Before rounding to the allocator's classes the bits are within 5 % of the minimum over all k."""
    needed = sizing.bits_needed(capacity, error_rate, sizing.choose_hashes(capacity, error_rate))
    assert needed <= 1.05 * min(sizing.bits_needed(capacity, error_rate, k) for k in range(1, 70))


@given(capacities, error_rates, st.integers(64 * 1024, sizing.MAX_SHARD_BYTES))
def test_shards_are_equal_and_bounded(capacity: int, error_rate: float, max_shard_bytes: int) -> None:
    """Shards are whole bytes, equal, end within an allocation, and none exceeds the maximum."""
    size = size_for(capacity, error_rate, max_shard_bytes)
    assert size.shards * size.shard_bits == size.bits
    assert size.shard_bits % 8 == 0
    assert size.shard_bytes <= max_shard_bytes
    assert sizing.size_class(size.shard_bytes + 64) == size.shard_bytes + 64


@given(st.integers(5 * 10**6, 10**9), st.floats(1e-9, 1e-2))
def test_large_filters_waste_little(capacity: int, error_rate: float) -> None:
    """A filter large enough for several shards takes at most 3 % more than it needs."""
    size = size_for(capacity, error_rate)
    assert size.bits <= 1.03 * sizing.bits_needed(capacity, error_rate, size.hashes) + 8 * size.shards


@given(st.integers(10**5, 10**9), st.floats(1e-9, 1e-2))
def test_as_few_shards_as_waste_little(capacity: int, error_rate: float) -> None:
    """No smaller number of shards would waste under 2 %."""
    size = size_for(capacity, error_rate)
    needed = -(-sizing.bits_needed(capacity, error_rate, size.hashes) // 8)
    for fewer in range(1, size.shards):
        allocated = sizing.size_class(-(-needed // fewer) + 8 + 64)
        assert allocated > sizing.MAX_SHARD_BYTES or fewer * (allocated - 8 - 64) > 1.02 * needed


@given(st.integers(1, 2**40))
def test_size_classes(size: int) -> None:
    """A class holds the requested size, wastes at most a quarter, and is its own class."""
    taken = sizing.size_class(size)
    assert size <= taken
    assert taken <= max(128, 1.25 * size)
    assert sizing.size_class(taken) == taken


@pytest.mark.parametrize(
    ("size", "taken"),
    [(1, 128), (128, 128), (129, 160), (1000, 1024), (1025, 1280), (2**25, 2**25), (2**25 + 1, 40 * 2**20)],
)
def test_known_size_classes(size: int, taken: int) -> None:
    """The classes are jemalloc's: four to a doubling."""
    assert sizing.size_class(size) == taken


@given(st.integers(1000, 10**8), st.floats(1e-9, 0.1), st.floats(0.01, 1.5))
def test_counts_and_fills_are_inverse(capacity: int, error_rate: float, share: float) -> None:
    """Number of items and fill are inverse functions."""
    size, count = size_for(capacity, error_rate), round(capacity * share)
    fill = sizing.fill_at(size, count)
    assert sizing.count_of_fill(fill, size) == pytest.approx(count, abs=1)
    assert sizing.error_rate_of_fill(fill, size.hashes) == pytest.approx(sizing.error_rate_at(size, count))


@given(st.integers(1000, 10**8), st.floats(1e-9, 0.1))
def test_capacity_is_the_inverse_of_the_error_rate(capacity: int, error_rate: float) -> None:
    """Capacity and error rate are inverse functions, with at least the requested number of items."""
    size = size_for(capacity, error_rate)
    held = sizing.capacity_at(size, error_rate)
    assert held >= capacity * (1 - 1e-9)
    assert sizing.error_rate_at(size, held) == pytest.approx(error_rate)


def test_a_full_filter_has_a_count() -> None:
    """A bitmap with every bit set means very many items, and is no error."""
    assert math.isfinite(sizing.count_of_fill(1.0, size_for(100, 0.01)))


@given(st.integers(1, 10**6), st.floats(1e-9, 0.5))
def test_a_full_layer_keeps_its_error_rate(capacity: int, error_rate: float) -> None:
    """A full layer keeps its error rate, even with unlucky bits."""
    size = sizing.roomy_size(capacity, error_rate)
    most = sizing.max_items(size, error_rate)
    assert most >= capacity
    fill = sizing.fill_at(size, sizing.offered_items(size, most))
    # The relative variance of a fill is at most 1 / (2 m); there is room for three standard deviations.
    badly = fill * (1 + 2 / math.sqrt(2 * size.bits))
    assert badly**size.hashes <= error_rate * (1 + 1e-6)


@given(st.integers(1, 10**6), st.floats(1e-9, 0.3), st.floats(0, 2))
def test_offered_items_are_the_new_and_the_false_positives(capacity: int, error_rate: float, share: float) -> None:
    """The items offered to a layer follow from the new ones, even far beyond its capacity."""
    size = size_for(capacity, error_rate)
    offered = capacity * share
    new = offered - sizing.false_positives_while_filling(size, offered)
    assert new <= offered
    assert sizing.offered_items(size, new) == pytest.approx(offered, rel=0.02, abs=30)


def test_false_positives_while_filling() -> None:
    """The closed form is the sum of the error rates at each addition, on both sides of half full."""
    for error_rate, most in ((0.5, 60_000), (1e-2, 20_000), (1e-6, 20_000)):
        size = size_for(20_000, error_rate)
        summed = sum(sizing.error_rate_at(size, count + 0.5) for count in range(most))
        assert sizing.false_positives_while_filling(size, most) == pytest.approx(summed, rel=1e-3)


@pytest.mark.parametrize(("capacity", "error_rate"), [(10, 1e-10), (1000, 1e-12), (1, 1e-15), (100_000, 1e-15)])
def test_tiny_filters_with_tiny_error_rates(capacity: int, error_rate: float) -> None:
    """Items that share all positions are at most a tenth of the error rate."""
    size = size_for(capacity, error_rate)
    assert capacity / (size.shards * size.shard_bits**3) <= 0.1 * error_rate * (1 + 1e-9)
