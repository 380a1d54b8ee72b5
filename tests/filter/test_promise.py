"""The promised error rate is kept over all layers, and not by luck: within five standard deviations of many probes."""

import itertools
import math

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.bloom_filter import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from tests.filter.test_ttl import advance

ASKED = 30_000


def within(found: int, asked: int, rate: float) -> bool:
    """Return whether a rate explains the count, within 5 standard deviations."""
    return found <= asked * rate + 5 * math.sqrt(asked * rate)


def assert_promise(bloom: BloomFilter, error_rate: float, capacity: int, times: int) -> None:
    """Fill a filter to the brim, and assert that few enough of new items are called seen."""
    number = 0
    while bloom.counters.added < capacity * times:
        bloom.add_many([f"in {each}" for each in range(number, number + 500)])
        number += 500
    info = bloom.info()
    asked = min(ASKED, int(2_000 / error_rate))
    wrong = sum(bloom.contains_many([f"out {each}" for each in range(asked)]))
    assert within(wrong, asked, error_rate), (wrong, info)
    # The formula explains the count from both sides.
    assert abs(wrong - asked * info.current_error_rate) <= 6 * math.sqrt(asked * info.current_error_rate) + 0.15 * wrong
    # Items that were falsely called seen while the filter was filled.
    assert within(number - info.count, number, error_rate)


@pytest.mark.parametrize(
    ("parameters", "times"),
    [
        (FilterParameters(5_000, 1e-2, 2), 1),
        (FilterParameters(5_000, 1e-3, 2), 7),
        (FilterParameters(500, 1e-1, 1), 12),
        (FilterParameters(10, 1e-2, 2), 100),
        (FilterParameters(10_000, 1e-3, 0), 1),
    ],
)
def test_the_promise_is_kept(client: redis.Redis, key: str, parameters: FilterParameters, times: int) -> None:
    """A full filter of one layer or several calls at most the promised share of new items seen."""
    bloom = BloomFilter.with_parameters(client, key, parameters, cache_size=0)
    assert_promise(bloom, parameters.error_rate, parameters.capacity, times)


def test_generations_keep_the_promise_together(client: redis.Redis, key: str) -> None:
    """With a TTL, seven generations live at once at most, and all together keep the rate."""
    bloom = BloomFilter(client, key, capacity=5_000, error_rate=1e-2, ttl=100, cache_size=0)
    for generation in range(12):
        advance(client, key, 20.5)
        bloom.add_many([f"{generation} {each}" for each in range(1_000)])
    assert bloom.info().layers >= 6
    wrong = sum(bloom.contains_many([f"out {each}" for each in range(ASKED)]))
    assert within(wrong, ASKED, 1e-2)


@settings(max_examples=30)
@given(st.integers(1, 10**9), st.floats(1e-15, 0.999), st.integers(0, 5), st.sampled_from([None, 100.0]))
def test_the_layers_share_the_rate(capacity: int, rate: float, expansion: int, ttl: float | None) -> None:
    """Each layer keeps its share, and the shares of all layers that live at once are at most the whole."""
    layers = sizing.sizes(capacity, rate, expansion, ttl)
    total = 0.0
    for layer in layers:
        assert layer.hashes in sizing.HASHES
        assert 0 < layer.span * sizing.BLOCK_BYTES <= sizing.MAX_SHARD_BYTES
        total += sizing.error_rate((capacity if not expansion else layer.room) / layer.blocks, layer.hashes)[0]
    assert total * (7 if ttl else 1) <= rate * (1 + 1e-9)
    assert all(later.room == layer.room * expansion for layer, later in itertools.pairwise(layers))


def test_known_sizes() -> None:
    """At 1e-6 an item takes 31.7 bits, and in a filter that may grow 4.13 bytes; at 1e-12, 1.4 times the minimum."""
    (fixed,) = sizing.sizes(1_000_000, 1e-6, 0, None)
    assert fixed.blocks * sizing.BLOCK_BITS / 1e6 == pytest.approx(31.7, abs=0.05)
    assert sizing.sizes(1_000_000, 1e-6, 2, None)[0].memory_bytes / 1e6 == pytest.approx(4.13, abs=0.01)
    (small,) = sizing.sizes(1_000_000, 1e-12, 0, None)
    assert small.blocks * sizing.BLOCK_BITS / 1e6 / (-math.log2(1e-12) / math.log(2)) == pytest.approx(1.43, abs=0.02)
