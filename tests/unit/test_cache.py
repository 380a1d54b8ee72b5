"""The cache: its size is bounded, and frequent items stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.cache import TwoGenerationCache

items = st.binary(max_size=1)


@given(st.integers(0, 20), st.lists(items))
def test_only_what_was_added_is_there(size: int, added: list[bytes]) -> None:
    """The cache has added items only, and never more than its size (one more if odd)."""
    cache = TwoGenerationCache[bytes, bool](size)
    for item in added:
        cache.put(item, True)
    known = {bytes([byte]) for byte in range(256) if cache.get(bytes([byte]))} | ({b""} if cache.get(b"") else set())
    assert known <= set(added)
    assert len(known) <= size + 1


@pytest.mark.parametrize("size", [2, 10, 1000])
def test_an_item_that_is_met_often_stays(size: int) -> None:
    """An item met once in each half of the size is never forgotten, however many others pass."""
    cache = TwoGenerationCache[bytes, bool](size)
    cache.put(b"often", True)
    for number in range(5 * size):
        if number % max(1, size // 2 - 1) == 0:
            assert cache.get(b"often")
        cache.put(b"%d" % number, True)


def test_clear_forgets_both_generations() -> None:
    """After clear the cache is empty, as one of size 0 always is."""
    for size in (0, 4):
        cache = TwoGenerationCache[bytes, bool](size)
        for item in (b"a", b"b", b"c"):
            cache.put(item, True)
        assert bool(cache.get(b"c")) == bool(size)
        cache.clear()
        assert not any(cache.get(item) for item in (b"a", b"b", b"c"))
