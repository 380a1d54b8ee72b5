"""Strings that are allocated ahead of their layer change nothing but the time of its creation."""

from typing import Any

import pytest

from scrapy_bloom.errors import RefusedError
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.operation import Memory, Operations, Results, Steps
from scrapy_bloom.storage.shards import FULL, CreateShard, Creation, PrepareShard
from scrapy_bloom.storage.stores import MemoryStore
from tests.protocol.test_interleavings import (
    SMALL,
    adding,
    clearing,
    evicting,
    growing,
    growing_once,
    joining,
    restoring,
    winners,
)
from tests.support.schedule_search import Search, Work

# After this time every prepared string has expired.
LONG_AFTER = 1_000_000.0


class Prepares(Lifecycle):
    """Prepares layers of any size."""

    min_prepared_bytes = 0


def preparing(protocol: FilterProtocol) -> Steps[int]:
    """A worker prepares the layer after the newest one."""
    newest = protocol.stack.newest
    protocol.stack.note_granted(newest, newest.max_items)
    while operations := protocol.lifecycle.prepare_next(newest):
        [creation] = yield operations
        protocol.lifecycle.note_prepared(creation)
    return 0


def prepared(works: list[Work], **options: Any) -> Search:
    return Search(SMALL, works, lifecycle=Prepares, **options)


@pytest.mark.parametrize(
    "works",
    [
        pytest.param([adding, preparing], id="no growth"),
        pytest.param([preparing, growing_once], id="a growth"),
        pytest.param([preparing, growing(2)], id="two growths", marks=pytest.mark.long),
        pytest.param([preparing, preparing, growing_once], id="two prepare"),
    ],
)
@pytest.mark.parametrize("scattered", [False, True], ids=["one server", "cluster"])
def test_one_winner(works: list[Work], scattered: bool) -> None:
    """Whenever strings are prepared, exactly one worker gets "new"."""
    assert winners(prepared([*works, adding], scattered=scattered)) == {1}


@pytest.mark.parametrize(
    "works",
    [
        pytest.param([adding, preparing, clearing], id="cleared"),
        pytest.param([adding, preparing, evicting], id="evicted"),
        pytest.param([preparing, growing_once, clearing, adding], id="cleared during a growth", marks=pytest.mark.long),
    ],
)
def test_no_item_is_lost_with_the_filter(works: list[Work]) -> None:
    """If the filter vanishes meanwhile, at least one worker gets "new"."""
    assert min(winners(prepared(works, whole=True))) == 1


@pytest.mark.parametrize("others", [[clearing], [clearing, restoring]])
def test_nothing_is_left_behind(others: list[Work]) -> None:
    """A string prepared for a filter that was deleted meanwhile expires."""
    assert prepared([preparing, *others], whole=True).left_behind(LONG_AFTER) == {()}


def test_the_search_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a preparation overwrites a shard in use, an item added there is new twice."""

    def overwrite(self: PrepareShard, memory: Memory) -> Creation:
        memory.strings.pop(self.key, None)
        return CreateShard(self.key, self.size, 0, sealed=False, expires=1).apply(memory)

    monkeypatch.setattr(PrepareShard, "apply", overwrite)
    assert 2 in winners(prepared([joining, joining, preparing, growing_once], whole=True))


class Watched(MemoryStore):
    """Records the round trips that allocate strings."""

    def __init__(self) -> None:
        super().__init__()
        self.trips: list[tuple[int, bool]] = []
        self.rooms: list[int] = []

    def execute(self, ops: Operations) -> Results:
        before = set(self.strings)
        results = super().execute(ops)
        made = len(set(self.strings) - before)
        self.rooms += [op.room for op in ops if isinstance(op, PrepareShard)]
        if made:
            self.trips.append((made, any(isinstance(op, PrepareShard) for op in ops)))
        return results


def test_a_growth_allocates_nothing() -> None:
    """All strings of a large next layer exist before the growth, each of them made by another addition."""
    store = Watched()
    bloom = BaseBloomFilter(
        store, "k", FilterParameters(capacity=20_000, error_rate=1e-3, expansion=2000), cache_size=0
    )
    for number in range(0, 20_000, 50):
        bloom.add_many([f"item {each}" for each in range(number, number + 50)])
    assert not bloom._stack.newer_than(0)
    ahead = [trip for trip in store.trips if trip[1]]
    for number in range(20_000, 30_000, 50):
        bloom.add_many([f"item {each}" for each in range(number, number + 50)])
    layer = bloom._stack.newest
    assert layer.index == 1
    assert len(ahead) == layer.size.shards > 1
    assert ahead == [trip for trip in store.trips if trip[1]] == [(1, True)] * layer.size.shards
    # Each string is made only if all others that the layer lacks fit.
    each = layer.size.memory_bytes // layer.size.shards
    assert store.rooms == [each * left for left in range(layer.size.shards, 0, -1)]
    # Nothing was allocated by the growth itself.
    assert sum(made for made, _ in store.trips) == 1 + layer.size.shards
    assert store.expiries == {}
    bloom.clear()
    assert store.strings == {}


def test_right_size() -> None:
    """A large filter that holds its capacity, and no more, takes no memory for a second layer."""
    bloom = BaseBloomFilter(MemoryStore(), "k", FilterParameters(capacity=10_000_000, error_rate=1e-3))
    bloom.add("a")
    stack, lifecycle = bloom._stack, bloom._protocol.lifecycle
    due = []
    for granted in (stack.newest.capacity, stack.newest.max_items):
        stack.note_granted(stack.newest, granted)
        due.append(len(lifecycle.prepare_next(stack.newest)))
    assert due == [0, 1]


def test_a_growth_without_room_leaves_no_string(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server evicted a prepared string and has no room for another, the layer's other strings are deleted."""
    store = MemoryStore()
    bloom = BaseBloomFilter(
        store, "k", FilterParameters(capacity=20_000, error_rate=1e-3, expansion=2000), cache_size=0
    )
    for number in range(0, 20_000, 50):
        bloom.add_many([f"item {each}" for each in range(number, number + 50)])
    assert len(store.strings) > 2
    del store.strings["k:1:0"]
    create = CreateShard.apply

    def without_room(self: CreateShard, memory: Memory) -> Creation:
        is_allocated = self.allocate and self.key not in memory.strings
        return Creation(FULL, 1, 1) if is_allocated else create(self, memory)

    monkeypatch.setattr(CreateShard, "apply", without_room)
    with pytest.raises(RefusedError, match="no room for layer 1"):
        bloom.add_many([f"item {each}" for each in range(20_000, 25_000)])
    assert [*store.strings] == ["k:0:0"]


@pytest.mark.parametrize("parameters", [{"ttl": 1000.0}, {"expansion": 0}, {"expansion": 2}], ids=str)
def test_where_nothing_is_prepared(parameters: dict[str, Any]) -> None:
    """A filter that never grows, one with a TTL and a small one allocate no string ahead."""
    store = Watched()
    bloom = BaseBloomFilter(store, "k", FilterParameters(1000, 1e-3, **parameters), cache_size=0)
    bloom.add_many([f"item {each}" for each in range(3000)])
    assert not any(is_ahead for _, is_ahead in store.trips)
