"""A filter with a TTL expires by itself, not early, and with all its keys."""

import pytest

from scrapy_bloom.errors import MismatchError
from scrapy_bloom.filter.layer_stack import LayerStack
from scrapy_bloom.filter.opening import Opening
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.operation import Steps
from tests.protocol.test_interleavings import AGEING, ITEM, SMALL, adding, ageing, growing_once, winners
from tests.support.schedule_search import KEY, Search, Work, add

# A layer lives for 125 s, and expires after 150.
LONG_AFTER = 10_000.0


def arriving(protocol: FilterProtocol) -> Steps[int]:
    """A new worker opens the filter and adds the item."""
    protocol.stack.void()
    yield from protocol.opening.open()
    return len((yield from add(protocol, [ITEM])))


def opening(protocol: FilterProtocol) -> Steps[int]:
    """A new worker opens the filter, or creates its hash."""
    protocol.stack.void()
    yield from protocol.opening.verify()
    return 0


def replacing(protocol: FilterProtocol) -> Steps[int]:
    """A worker replaces this filter by one without a TTL, as often as it must."""
    other = FilterProtocol(Opening(LayerStack(KEY, SMALL, lambda: 0.0), protocol.events))
    while True:
        yield from protocol.lifecycle.clear()
        try:
            yield from other.opening.verify()
        except MismatchError:
            continue
        return 0


def perhaps(work: Work) -> Work:
    """Wrap a worker's steps, to end if another filter has replaced its own."""

    def attempt(protocol: FilterProtocol) -> Steps[int]:
        try:
            done: int = yield from work(protocol)
        except MismatchError:
            return 0
        return done

    return attempt


def test_a_filter_that_is_used_does_not_expire() -> None:
    """The hash lives as long as its newest layer."""
    before = [(100.0, ageing), (101.0, adding)]
    search = Search(AGEING, [arriving, ageing], before=before, ticks=[150.1, 200.9], whole=True)
    assert winners(search) == {0}


@pytest.mark.parametrize(("tick", "expected"), [(124.9, {1}), pytest.param(150.1, {1, 2}, marks=pytest.mark.long)])
def test_no_item_is_lost_as_the_filter_expires(tick: float, expected: set[int]) -> None:
    """Whenever the time passes, one worker gets "new", and a second one only after the expiry.

    All their keys then expire, too.
    """
    search = Search(AGEING, [adding, arriving], ticks=[tick], whole=True)
    assert winners(search) == expected
    assert search.left_behind(LONG_AFTER) == {()}


@pytest.mark.parametrize("work", [growing_once, ageing], ids=["growing", "ageing"])
def test_nothing_is_left_of_a_filter_that_nobody_uses(work: Work) -> None:
    """Whenever the time passes, all keys created before and after it expire in the end."""
    assert Search(AGEING, [work, arriving], ticks=[150.1], whole=True).left_behind(LONG_AFTER) == {()}


@pytest.mark.parametrize("work", [growing_once, opening], ids=["growing", "opening"])
def test_another_filter_does_not_expire(work: Work) -> None:
    """A late worker sets an expiry on its own filter, and not on its successor without a TTL."""
    search = Search(AGEING, [perhaps(work), replacing], whole=True)
    assert all(KEY in keys for keys in search.left_behind(LONG_AFTER))
