"""Ctrl-C at every moment of an addition: an item without a reply is new when it is added again.

The interrupted call may have marked it. If its bits were taken for another worker's, the item would be lost.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
import redis
from scrapy import Request

from scrapy_bloom import BloomFilter, MemoryBloomFilter
from scrapy_bloom.storage.counters import GrantCredit
from tests.support.dupefilters import KEY, WAYS, crawler_of
from tests.support.interrupting import Interrupted
from tests.support.servers import Server

# No item is a false positive.
NEVER = 1e-12

# Python ignores exceptions raised while an object is deleted, and pytest warns of that.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def interrupted(prepare: Callable[[int], Callable[[], Any]], apart: int = 1) -> Iterator[tuple[Any, Interrupted]]:
    """Yield prepared calls, each interrupted some moments later than the last."""
    for moment in count(1, apart):
        call = prepare(moment)
        done = Interrupted(call, moment)
        if done.ended:
            assert moment > 100, "too few calls were interrupted"
            return
        yield call, done


def assert_new_once(add: Callable[[], bool], done: Interrupted) -> None:
    """Assert that an interrupted addition and its repetition together report the item as new first."""
    told = [] if done.is_raised else [done.answer]
    assert [*told, add(), add()][:2] == [True, False], done.place


@pytest.mark.parametrize("cache_size", [1000, 0])
def test_an_item(client: redis.Redis, key: str, cache_size: int) -> None:
    """An item is added to a filter that is in use."""
    bloom = BloomFilter(client, key, capacity=100_000, error_rate=NEVER, cache_size=cache_size)
    bloom.add("before")
    for add, done in interrupted(lambda number: partial(bloom.add, f"{number}")):
        assert_new_once(add, done)


def test_a_batch(client: redis.Redis, key: str) -> None:
    """A batch has new items, one of them twice, and a known one."""
    bloom, other = (BloomFilter(client, key, capacity=100_000, error_rate=NEVER) for _ in range(2))
    bloom.add("known")

    def batch(number: int) -> Callable[[], list[bool]]:
        return partial(bloom.add_many, [f"a {number}", "known", f"b {number}", f"a {number}"])

    for add_many, done in interrupted(batch):
        new = add_many() if done.is_raised else done.answer
        assert [new[0], *new[2:]] == [True, True, False], done.place
        assert not any(other.add_many(add_many.args[0]))


def test_the_first_item() -> None:
    """The addition creates the filter. It has thousands of moments, some of which are tried."""
    for add, done in interrupted(lambda _: partial(MemoryBloomFilter(capacity=1000, error_rate=NEVER).add, "a"), 5):
        assert_new_once(add, done)


def test_an_item_for_which_the_filter_grows() -> None:
    """The addition seals a layer without credit, and creates the next one."""
    blooms: list[MemoryBloomFilter] = []

    def addition(_: int) -> Callable[[], bool]:
        bloom = MemoryBloomFilter(capacity=1000, error_rate=NEVER)
        bloom.add("before")
        bloom.close()
        layer = bloom._stack.newest
        bloom._store.execute([GrantCredit(layer.key, layer.credit_field, layer.max_items - 1, 0, layer.max_items)])
        blooms.append(bloom)
        return partial(bloom.add, "a")

    for add, done in interrupted(addition, 5):
        assert_new_once(add, done)
        assert blooms[-1].info().layers == 2


def test_a_request(valkey: Server, key: str) -> None:
    """A link is checked as a scheduler has it checked."""
    dupefilter = WAYS["from_spider"](crawler_of(valkey, BLOOMFILTER_ERROR_RATE=NEVER, **{KEY: key}))
    dupefilter.request_seen(Request("https://example.com/"))

    def is_new(number: int) -> bool:
        return not dupefilter.request_seen(Request(f"https://example.com/{number}"))

    for add, done in interrupted(lambda number: partial(is_new, number)):
        assert_new_once(add, done)
