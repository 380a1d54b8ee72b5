"""The laws and the known values of the formulas; `tests/filter/test_promise.py` has those of whole filters."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.filter import sizing


@given(st.integers(1, 2**40))
def test_size_classes(size: int) -> None:
    """A class holds the requested size, wastes at most a quarter, and is its own class."""
    taken = sizing.size_class(size)
    assert size <= taken <= max(128, 1.25 * size)
    assert sizing.size_class(taken) == taken


@pytest.mark.parametrize(
    ("size", "taken"), [(128, 128), (129, 160), (1000, 1024), (1025, 1280), (2**25, 2**25), (2**25 + 1, 40 * 2**20)]
)
def test_known_size_classes(size: int, taken: int) -> None:
    """The classes are jemalloc's: four to a doubling."""
    assert sizing.size_class(size) == taken


@pytest.mark.parametrize(("load", "hashes"), [(10.0, 4), (64.0, 14), (200.0, 3)])
def test_error_rate_of_simulated_blocks(load: float, hashes: int) -> None:
    """Mean error rate and fill of blocks are those of blocks that are filled at random."""
    draw, blocks, items = random.Random(1), 400, round(400 * load)
    ones: list[set[int]] = [set() for _ in range(blocks)]
    for _ in range(items):
        ones[draw.randrange(blocks)].update(draw.randrange(sizing.BLOCK_BITS) for _ in range(hashes))
    fills = [len(each) / sizing.BLOCK_BITS for each in ones]
    mean, deviation = sizing.error_rate(load, hashes)
    assert sum(fill**hashes for fill in fills) / blocks == pytest.approx(mean, abs=5 * deviation / blocks**0.5)
    assert sum(fills) / blocks == pytest.approx(sizing.fill_ratio(load, hashes), rel=0.03)


@given(st.integers(1, 10**8), st.floats(1e-15, 0.9))
def test_shards_waste_little(room: int, rate: float) -> None:
    """A layer takes at most 2 % more than its bits in one piece, beside a shard's own overhead."""
    size = sizing.layer_size(room, rate)
    needed = size.blocks * sizing.BLOCK_BYTES
    assert needed < size.memory_bytes <= max(1.35 * needed, needed + 512)
    assert (size.shards - 1) * size.span < size.blocks <= size.shards * size.span
