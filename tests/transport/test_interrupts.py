"""Ctrl-C at every moment of an addition: an item without a reply is new when it is added again.

The interrupted call may have marked it. If its bits were taken for another worker's, the item would be lost.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from tests.support.interrupting import Interrupted
from tests.support.servers import Server
from tests.support.sockets import disconnect_all

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
            assert moment > 20, "too few calls were interrupted"
            return
        yield call, done


def assert_new_once(add: Callable[[], bool], done: Interrupted) -> None:
    """Assert that an interrupted addition and its repetition together report the item as new first."""
    told = [] if done.is_raised else [done.answer]
    assert [*told, add(), add()][:2] == [True, False], done.place


@pytest.fixture(params=[{}, {"protocol": 3}, {"single_connection_client": True}], ids=str)
def client(request: pytest.FixtureRequest, valkey: Server) -> Iterator[redis.Redis]:
    """A client; redis-py loses a connection if it is interrupted while it opens or takes one."""
    with valkey.client(max_connections=10_000, **request.param) as client:
        yield client
    disconnect_all()


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
