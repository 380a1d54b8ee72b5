"""What must be new because nobody can know: the bits that are found may be one's own, and nobody was told of them.

An item that is called new once too often is fetched twice. One that is called seen once too often is never fetched.
"""

import logging
from collections.abc import Iterator, Sequence

import pytest
import redis

from scrapy_bloom import keys
from scrapy_bloom.filter import Filter
from scrapy_bloom.layers import Layers, Steps
from scrapy_bloom.metadata import Plan
from scrapy_bloom.ops import Check, Op, Unlink
from scrapy_bloom.patience import PatientStore
from scrapy_bloom.store import MemoryStore, Said
from tests.interleaving import KEY, Search
from tests.test_protocol import SMALL, adding, growing, winners

PLAN = Plan(capacity=100, error_rate=1e-4)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """That faults are logged is tested elsewhere."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Unlucky(MemoryStore):
    """A store of which the next round trips that set bits fail, each at one of these `faults`.

    A fault is how many of the operations are carried out before it, None for all of them, and what is raised then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[tuple[int | None, Exception]] = []

    def execute(self, ops: Sequence[Op]) -> Said:
        if not self.faults or not any(isinstance(op, Check) and op.mark for op in ops):
            return super().execute(ops)
        done, error = self.faults.pop(0)
        super().execute(ops[:done])
        raise error


LOST = redis.ConnectionError("the reply was lost")


@pytest.fixture
def store() -> Unlucky:
    """A store that fails when it is told to."""
    return Unlucky()


@pytest.mark.parametrize("items", [50, 500], ids=["one layer", "grown"])
@pytest.mark.parametrize("batch", [1, 3])
def test_an_item_that_was_marked_without_an_answer(store: Unlucky, items: int, batch: int) -> None:
    """An item that was marked when the reply was lost is new when it is added again, in a filter that has grown too."""
    bloom = Filter(store, "k", PLAN)
    bloom.add_many([f"item {number}" for number in range(items)])
    assert (bloom.info().layers > 1) == (items > PLAN.capacity)
    unsure = [f"unsure {number}" for number in range(batch)]
    store.faults = [(None, LOST)]
    with pytest.raises(redis.ConnectionError):
        bloom.add_many(unsure)
    assert bloom.add_many(unsure) == [True] * batch


@pytest.mark.parametrize("items", [50, 500], ids=["one layer", "grown"])
def test_doubt_ends_with_the_answer(store: Unlucky, items: int) -> None:
    """Once it was told to be new, an item is seen, whether the process remembers it or not."""
    bloom = Filter(store, "k", PLAN, cache_size=0)
    bloom.add_many([f"item {number}" for number in range(items)])
    store.faults = [(None, LOST)]
    with pytest.raises(redis.ConnectionError):
        bloom.add("a")
    assert [bloom.add("a"), bloom.add("a"), bloom.add("a")] == [True, False, False]


# What a server says when it has not carried out a command; of a batch it may have carried out those before.
REFUSED = redis.exceptions.ReadOnlyError("You can't write against a read only replica.")
LOADING = redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory")


@pytest.mark.parametrize("done", [1, 2])
def test_a_batch_that_was_half_done_when_it_was_refused(store: Unlucky, done: int) -> None:
    """The items of a batch that a server marked before it became a replica are new, like the others."""
    bloom = Filter(PatientStore(store, 10), "k", PLAN)
    bloom.add("before")
    store.faults = [(done, REFUSED)]
    assert bloom.add_many(["a", "b", "c"]) == [True] * 3
    assert store.faults == []
    assert bloom.counters.ambiguous == done


def test_a_refusal_after_a_lost_reply(store: Unlucky) -> None:
    """That the second attempt did nothing does not undo the first, whose reply was lost: the item is new."""
    bloom = Filter(PatientStore(store, 10), "k", PLAN)
    bloom.add("before")
    store.faults = [(None, LOST), (0, LOADING)]
    assert bloom.add("a")
    assert store.faults == []


class Evicting(MemoryStore):
    """A store that has no room: whatever shards there are, are gone before any item is looked at."""

    def execute(self, ops: Sequence[Op]) -> Said:
        said = Said()
        for op in ops:
            if isinstance(op, Check):
                self.strings.clear()
            said.append(op.apply(self))
        return said


@pytest.mark.parametrize("items", [1, 5])
def test_a_server_that_evicts_at_once(items: int) -> None:
    """Where no shard is ever kept everything is new, as often as it is asked for, and every call ends."""
    bloom = Filter(Evicting(), "k", PLAN)
    batch = [f"item {number}" for number in range(items)]
    assert bloom.add_many(batch) == [True] * items
    bloom = Filter(Evicting(), "k", PLAN, cache_size=0)
    assert [bloom.add("a"), bloom.add("a")] == [True, True]


def evicting_the_second_layer(_: Layers) -> Steps[int]:
    """The server evicts the layer that the first growth makes, if it has come."""
    yield [Unlink(keys.shard_key(KEY, 1, 0))]
    return 0


def test_a_layer_is_lost_behind_a_mark_in_a_sealed_one() -> None:
    """Whoever has marked in a sealed layer, and then finds a newer one lost, takes the own mark for nobody's."""
    search = Search(SMALL, [adding, growing(2), evicting_the_second_layer], whole=True)
    assert min(winners(search)) == 1
