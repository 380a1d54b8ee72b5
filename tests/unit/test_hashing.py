"""Golden vectors that pin the stored format, and the laws of uniform and independent positions."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.filter.hashing import locate

M = 31_448_640 // 15

GOLDEN: list[tuple[bytes, int, int, list[int]]] = [
    (b"", 0, 4, [0, 0, 1528693, 392928, 785858, 610908, 1964655, 653948, 871940, 522056, 1700873, 215240, 258310]),
    (b"https://example.com/", 0, 8, [1030687, 2066332, 648356, 969912, 934425, 541896, 1888902, 782292, 1415219]),
    (b"https://example.com/", 1, 1, [1689676, 679203, 162610, 139898, 611068, 1576121, 938482, 794728, 1144860]),
    (b"da39a3ee5e6b4b0d3255bfef95601890afd80709", 0, 6, [1529248, 1056588, 1860131, 1843302, 1006102, 1445108]),
    ("ü/日本".encode(), 3, 9, [739619, 1701091, 434246, 1132237, 1698489, 36427, 339204, 510245, 549551, 457123]),
]


def chi_square(counts: list[int]) -> float:
    """Pearson's statistic against equal shares, in standard deviations from its mean."""
    expected = sum(counts) / len(counts)
    statistic = sum((count - expected) ** 2 / expected for count in counts)
    freedom = len(counts) - 1
    return float((statistic - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize(("item", "layer", "shard", "positions"), GOLDEN)
def test_golden_vectors(item: bytes, layer: int, shard: int, positions: list[int]) -> None:
    """The places of an item's bits never change: filters of older releases stay readable."""
    assert locate(item, layer, hashes=len(positions), shards=15, shard_bits=M) == (shard, positions)


@given(st.binary(), st.integers(0, 2**20), st.integers(1, 40), st.integers(1, 100), st.integers(8, 2**40))
def test_positions_are_in_the_shard(item: bytes, layer: int, hashes: int, shards: int, shard_bits: int) -> None:
    """Any item has its number of positions, all inside one existing shard, and always the same."""
    found = locate(item, layer, hashes=hashes, shards=shards, shard_bits=shard_bits)
    assert 0 <= found[0] < shards
    assert len(found[1]) == hashes
    assert all(0 <= position < shard_bits for position in found[1])
    assert locate(item, layer, hashes=hashes, shards=shards, shard_bits=shard_bits) == found


@pytest.mark.parametrize("shard_bits", [997, 1024, M])
@pytest.mark.parametrize("layer", [0, 7])
def test_positions_and_shards_are_uniform(layer: int, shard_bits: int) -> None:
    """Each of the positions and the shard fall evenly (chi-square, within 5 standard deviations)."""
    cells = 97
    at: list[Counter[int]] = [Counter() for _ in range(14)]
    shards: Counter[int] = Counter()
    for number in range(40_000):
        shard, positions = locate(b"%040x" % number, layer, hashes=14, shards=15, shard_bits=shard_bits)
        shards[shard] += 1
        for counter, position in zip(at, positions, strict=True):
            counter[position * cells // shard_bits if shard_bits > 1024 else position] += 1
    size = cells if shard_bits > 1024 else shard_bits
    assert chi_square([shards[shard] for shard in range(15)]) < 5
    for counter in at:
        assert chi_square([counter[cell] for cell in range(size)]) < 5


def test_the_shard_is_independent_of_the_positions() -> None:
    """A position gives no information on the shard (chi-square over joint counts)."""
    for index in range(7):
        joint: Counter[tuple[int, int]] = Counter()
        for number in range(30_000):
            shard, positions = locate(b"%d" % number, 0, hashes=7, shards=8, shard_bits=M)
            joint[shard, positions[index] * 16 // M] += 1
        assert chi_square([joint[shard, cell] for shard in range(8) for cell in range(16)]) < 5


def test_layers_are_independent() -> None:
    """The same item's first positions in two layers of any sizes are independent."""
    joint: Counter[tuple[int, int]] = Counter()
    for number in range(30_000):
        _, here = locate(b"%d" % number, 3, hashes=1, shards=1, shard_bits=M)
        _, there = locate(b"%d" % number, 4, hashes=1, shards=1, shard_bits=2 * M)
        joint[here[0] * 10 // M, there[0] * 10 // (2 * M)] += 1
    assert chi_square([joint[here, there] for here in range(10) for there in range(10)]) < 5


@pytest.mark.parametrize("case", [(30, 9, 570), (100, 7, 1500)], ids=["30 items", "100 items"])
def test_small_filters_keep_the_theory(case: tuple[int, int, int]) -> None:
    """The error rate of a small filter is f^k, unlike that of double hashing."""
    items, hashes, bits = case
    draw, wrong, expected, queries = random.Random(1), 0, 0.0, 10_000
    for _ in range(40):
        seed = draw.randrange(2**20)
        place = [locate(b"in %d" % n, seed, hashes=hashes, shards=1, shard_bits=bits)[1] for n in range(items)]
        ones = {position for positions in place for position in positions}
        expected += queries * (len(ones) / bits) ** hashes
        for number in range(queries):
            wrong += ones.issuperset(locate(b"out %d" % number, seed, hashes=hashes, shards=1, shard_bits=bits)[1])
    assert abs(wrong - expected) < 4 * expected**0.5
