"""The cache of repeats is bounded, and remembers what is met often."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.cache import SeenCache

items = st.binary(max_size=1)


@given(st.integers(0, 20), st.lists(items))
def test_only_what_was_added_is_there(size: int, added: list[bytes]) -> None:
    """The cache never knows an item that was not added, and never holds more than its size (one more if odd)."""
    cache = SeenCache(size)
    for item in added:
        cache.add(item)
    known = {bytes([byte]) for byte in range(256) if bytes([byte]) in cache} | ({b""} if b"" in cache else set())
    assert known <= set(added)
    assert len(known) <= size + 1


@pytest.mark.parametrize("size", [2, 10, 1000])
def test_an_item_that_is_met_often_stays(size: int) -> None:
    """An item met once in each half of the size is never forgotten, however many others pass."""
    cache = SeenCache(size)
    cache.add(b"often")
    for number in range(5 * size):
        if number % max(1, size // 2 - 1) == 0:
            assert b"often" in cache
        cache.add(b"%d" % number)


def test_a_size_of_0_remembers_nothing() -> None:
    """A cache of size 0 is off."""
    cache = SeenCache(0)
    cache.add(b"a")
    assert b"a" not in cache


def test_clear_forgets_both_generations() -> None:
    """After clear nothing is known."""
    cache = SeenCache(4)
    for item in (b"a", b"b", b"c"):
        cache.add(item)
    cache.clear()
    assert not any(item in cache for item in (b"a", b"b", b"c"))
