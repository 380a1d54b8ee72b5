"""Items in doubt count as new: their bits may come from an addition without a reply.

An item wrongly called new is fetched twice; an item wrongly called seen is never fetched.
"""

from typing import Any

import pytest
import redis

from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.bits import CheckBits
from scrapy_bloom.storage.counters import GrantCredit, Granted, ReturnCredit
from scrapy_bloom.storage.filter_hash import Unlink
from scrapy_bloom.storage.operation import Operations, Results, Steps
from scrapy_bloom.storage.shards import SealShard
from scrapy_bloom.storage.stores import MemoryStore, RetryingStore
from scrapy_bloom.transport.failures import FAULTS
from tests.protocol.test_interleavings import SMALL, adding, growing, winners
from tests.support.failed_results import failed
from tests.support.schedule_search import KEY, Search

PLAN = FilterParameters(capacity=100, error_rate=1e-4)


class Unlucky(MemoryStore):
    """A store whose next round trips that set bits fail, each by one of these `faults`.

    A fault is the number of operations executed before it, None for all of them, and the error to raise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[tuple[int | None, BaseException]] = []

    def execute(self, ops: Operations) -> Results:
        if not self.faults or not any(isinstance(op, CheckBits) and op.mark for op in ops):
            return super().execute(ops)
        done, error = self.faults.pop(0)
        super().execute(ops[:done])
        raise error


class Failing:
    """Returns the failures of a store, as a transport does, instead of raising."""

    def __init__(self, store: Unlucky) -> None:
        self._store = store

    def execute(self, ops: Operations) -> Results:
        try:
            return self._store.execute(ops)
        except FAULTS as error:
            return failed(error, len(ops))


LOST = redis.ConnectionError("the reply was lost")


@pytest.fixture
def store() -> Unlucky:
    """A store that fails on demand."""
    return Unlucky()


@pytest.mark.parametrize("items", [50, 500], ids=["one layer", "grown"])
@pytest.mark.parametrize("batch", [1, 3])
def test_an_item_that_was_marked_without_an_answer(store: Unlucky, items: int, batch: int) -> None:
    """An item marked when the reply was lost is new when it is added again, even after a growth."""
    bloom = BaseBloomFilter(store, "k", PLAN)
    bloom.add_many([f"item {number}" for number in range(items)])
    assert (bloom.info().layers > 1) == (items > PLAN.capacity)
    unsure = [f"unsure {number}" for number in range(batch)]
    store.faults = [(None, LOST)]
    with pytest.raises(redis.ConnectionError):
        bloom.add_many(unsure)
    assert bloom.add_many(unsure) == [True] * batch


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()], ids=repr)
def test_whatever_ends_the_wait_for_an_answer(store: Unlucky, error: BaseException) -> None:
    """An item is new again after Ctrl-C, or any exception, while its reply is pending."""
    bloom = BaseBloomFilter(RetryingStore(Failing(store), 10), "k", PLAN)
    bloom.add("before")
    store.faults = [(None, error)]
    with pytest.raises(type(error)):
        bloom.add("a")
    assert [bloom.add("a"), bloom.add("a")] == [True, False]


@pytest.mark.parametrize("wrong", [None, 7, bytearray(b"x"), ["x"]], ids=repr)
def test_an_item_of_a_wrong_type_changes_nothing(store: Unlucky, wrong: Any) -> None:
    """A batch with an item of a wrong type is refused before it is sent or in doubt."""
    bloom = BaseBloomFilter(store, "k", PLAN, cache_size=0)
    assert bloom.add_many(["x"]) == [True]
    for refused in (bloom.add_many, bloom.contains_many):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            refused(["x", "y", wrong])
    assert bloom.add_many(["x", "y"]) == [False, True]


@pytest.mark.parametrize("items", [50, 500], ids=["one layer", "grown"])
def test_doubt_ends_with_the_answer(store: Unlucky, items: int) -> None:
    """Once reported as new, an item is seen, whether it is cached or not."""
    bloom = BaseBloomFilter(store, "k", PLAN, cache_size=0)
    bloom.add_many([f"item {number}" for number in range(items)])
    store.faults = [(None, LOST)]
    with pytest.raises(redis.ConnectionError):
        bloom.add("a")
    assert [bloom.add("a"), bloom.add("a"), bloom.add("a")] == [True, False, False]


# Replies to a command that was not executed; earlier commands of a batch may have been.
REFUSED = redis.exceptions.ReadOnlyError("You can't write against a read only replica.")
LOADING = redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory")


@pytest.mark.parametrize("done", [1, 2])
def test_a_batch_that_was_half_done_when_it_was_refused(store: Unlucky, done: int) -> None:
    """Items marked by a server before it became a replica are new."""
    bloom = BaseBloomFilter(RetryingStore(Failing(store), 10), "k", PLAN)
    bloom.add_many(["before", "and", "before that"])
    store.faults = [(done, REFUSED)]
    assert bloom.add_many(["a", "b", "c"]) == [True] * 3
    assert store.faults == []
    assert bloom.counters.ambiguous == done


def test_a_refusal_after_a_lost_reply(store: Unlucky) -> None:
    """A refused second attempt does not undo the first, whose reply was lost: the item is new."""
    # Large enough that the addition carries no credit request: of several operations one may be executed.
    bloom = BaseBloomFilter(RetryingStore(Failing(store), 10), "k", FilterParameters(capacity=100_000))
    bloom.add("before")
    store.faults = [(None, LOST), (0, LOADING)]
    assert bloom.add("a")
    assert store.faults == []


class Evicting(MemoryStore):
    """A store without room: all shards are evicted before each lookup."""

    def execute(self, ops: Operations) -> Results:
        said = Results()
        for op in ops:
            if isinstance(op, CheckBits):
                self.strings.clear()
            said.append(op.apply(self))
        return said


@pytest.mark.parametrize("items", [1, 5])
def test_a_server_that_evicts_at_once(items: int) -> None:
    """If every shard is evicted, every item is new each time, and every call ends."""
    bloom = BaseBloomFilter(Evicting(), "k", PLAN)
    batch = [f"item {number}" for number in range(items)]
    assert bloom.add_many(batch) == [True] * items
    bloom = BaseBloomFilter(Evicting(), "k", PLAN, cache_size=0)
    assert [bloom.add("a"), bloom.add("a")] == [True, True]


def evicting_the_second_layer(_: FilterProtocol) -> Steps[int]:
    """The server evicts the layer that the first growth creates, if it exists."""
    yield [Unlink(filter_keys.shard_key(KEY, 1, 0))]
    return 0


@pytest.mark.long
def test_a_layer_is_lost_behind_a_mark_in_a_sealed_one() -> None:
    """A worker's own mark in a sealed layer does not make the item seen after a newer layer is lost."""
    search = Search(SMALL, [adding, growing(2), evicting_the_second_layer], whole=True)
    assert min(winners(search)) == 1


class EvictsBeforeMarks(MemoryStore):
    """A store without room: the shards are evicted at each marking of items."""

    def execute(self, ops: Operations) -> Results:
        if any(isinstance(op, CheckBits) and op.mark for op in ops):
            self.strings.clear()
        return super().execute(ops)


@pytest.mark.parametrize("batch", [1, 100, 5000])
def test_a_server_that_evicts_in_a_large_batch(batch: int) -> None:
    """All items of a large batch are new while the filter is lost repeatedly."""
    bloom = BaseBloomFilter(EvictsBeforeMarks(), "k", FilterParameters(capacity=20_000), cache_size=0)
    assert all(bloom.add_many([f"item {number}" for number in range(batch)]))


class EvictsWhenOneIsMade(MemoryStore):
    """A server that evicts a shard for each that it creates."""

    evicts = False
    left = 500

    def execute(self, ops: Operations) -> Results:
        self.left -= self.evicts
        assert self.left, "the worker never ends"
        before = set(self.strings)
        said = super().execute(ops)
        made = set(self.strings) - before
        if self.evicts and made and before:
            del self.strings[min(before)]
        return said


@pytest.mark.parametrize("is_sealed", [False, True], ids=["no credit is left", "sealed, with credit left"])
def test_a_full_layer_of_which_a_shard_is_always_missing(is_sealed: bool) -> None:
    """A layer that can never be sealed, since a shard is always evicted, does not hang a worker."""
    store = EvictsWhenOneIsMade()
    bloom = BaseBloomFilter(store, "k", FilterParameters(capacity=40_000, error_rate=1e-6), cache_size=0)
    bloom.add("first")
    assert len(store.strings) > 1
    layer = bloom._stack.newest
    store.execute([GrantCredit(layer.key, layer.credit_field, layer.max_items, 0, layer.max_items)])
    if is_sealed:
        bloom._stack.credits.take(layer, Granted(10_000, 10_000))
        store.execute([SealShard(key) for key in layer.shard_keys])
    else:
        bloom._stack.credits.void()
    store.evicts = True
    del store.strings[min(store.strings)]
    assert all(bloom.add_many([f"item {number}" for number in range(500)]))


class GrowsBeforeMarks(MemoryStore):
    """A store over which another worker seals the layer before each of the first marks."""

    other: BaseBloomFilter | None = None
    times = 3

    def execute(self, ops: Operations) -> Results:
        if self.other is not None and self.times and any(isinstance(op, CheckBits) and op.mark for op in ops):
            self.times -= 1
            other, self.other = self.other, None
            other._run(other._protocol.lifecycle.grow(other._stack.newest))
            self.other = other
        return super().execute(ops)


@pytest.mark.parametrize(("capacity", "error_rate"), [(2, 0.5), (3, 0.1), (20, 0.1), (1000, 1e-3)])
def test_layers_are_sealed_under_a_batch(capacity: int, error_rate: float) -> None:
    """A batch larger than the next layers creates no more layers than it fills."""
    store = GrowsBeforeMarks()
    parameters = FilterParameters(capacity=capacity, error_rate=error_rate, expansion=1)
    bloom = BaseBloomFilter(store, "k", parameters, cache_size=0)
    bloom.add("first")
    store.other = BaseBloomFilter(store, "k", parameters, cache_size=0)
    items = [f"item {number}" for number in range(200)]
    new = sum(bloom.add_many(items))
    assert new >= 200 * (1 - error_rate) - 5 * (200 * error_rate) ** 0.5
    assert not any(bloom.add_many(items))
    assert bloom.info().layers <= 4 + 2 * 200 // capacity


def test_marks_of_a_worker_that_stood_still(store: Unlucky) -> None:
    """A worker idle for seconds checks that its filter still exists, and sets no bits in another."""
    now = 1000.0
    parameters = FilterParameters(capacity=20_000, error_rate=1e-3)
    late, early = (BaseBloomFilter(store, "k", parameters, cache_size=0, monotonic=lambda: now) for _ in range(2))
    for bloom in (late, early):
        bloom.add_many([f"item {number}" for number in range(300)])
    early.clear()
    early.add("first")
    now += 6
    marked: list[CheckBits] = []
    execute = store.execute

    def watching(ops: Operations) -> Results:
        marked.extend(op for op in ops if isinstance(op, CheckBits) and op.mark)
        return execute(ops)

    store.execute = watching  # type: ignore[method-assign]  # watched on its way
    assert late.add_many(["a", "b"]) == [True, True]
    assert len(marked) == 2


def test_an_interrupt_while_room_is_given_back(store: Unlucky) -> None:
    """Ctrl-C while an addition returns idle credit leaves its item new."""
    now = 1000.0
    bloom = BaseBloomFilter(store, "k", FilterParameters(capacity=1_000_000), cache_size=100, monotonic=lambda: now)
    bloom.add("before")
    now += 6
    execute = store.execute

    def interrupted(ops: Operations) -> Results:
        if any(isinstance(op, ReturnCredit) for op in ops):
            raise KeyboardInterrupt
        return execute(ops)

    store.execute = interrupted  # type: ignore[method-assign]  # once
    with pytest.raises(KeyboardInterrupt):
        bloom.add("page")
    assert [bloom.add("page"), bloom.add("page")] == [True, False]
