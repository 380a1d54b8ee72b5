"""The room of a layer: in every interleaving, the workers' additions stay within it."""

import os
from collections import Counter
from collections.abc import Sequence

import pytest
import redis

from devtools.proxy.faults import Place, proxying
from scrapy_bloom import BloomFilter, MemoryBloomFilter
from scrapy_bloom._format import as_text
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.credit import Credits
from scrapy_bloom.filter.layer import NO_IDENTITY, Layer
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.bits import CheckBits
from scrapy_bloom.storage.counters import GrantCredit, Granted
from scrapy_bloom.storage.filter_hash import DeleteField, Load, SetFieldIfAbsent
from scrapy_bloom.storage.operation import Operations, Results, Steps, one
from scrapy_bloom.storage.stores import MemoryStore
from tests.support.schedule_search import Search, Work, add
from tests.support.servers import Server

SMALL = FilterParameters(capacity=10, error_rate=1e-4)
LEFT = 2


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def almost_full(protocol: FilterProtocol) -> Steps[None]:
    """Grant all but the last items of the newest layer's room."""
    layer = protocol.stack.newest
    yield [GrantCredit(layer.key, layer.credit_field, layer.max_items - 1 - LEFT, 0, layer.max_items)]


def adding(name: str, number: int, *, batch: bool) -> Work:
    """A worker adds so many items of its own, in one batch or singly."""
    items = [f"{name} {index}".encode() for index in range(number)]

    def work(protocol: FilterProtocol) -> Steps[int]:
        if batch:
            return len((yield from add(protocol, items)))
        new = 0
        for item in items:
            new += len((yield from add(protocol, [item])))
        return new

    return work


def growing(protocol: FilterProtocol) -> Steps[int]:
    """A worker finds the newest layer full."""
    yield from protocol.lifecycle.grow(protocol.stack.newest)
    return 0


def giving_back(protocol: FilterProtocol) -> Steps[int]:
    """A worker adds an item and returns its unused credit."""
    added = yield from add(protocol, [b"one"])
    yield from protocol.return_credit()
    return len(added)


def most_in_first_layer(search: Search) -> int:
    """Return the most items granted by the first layer, over all ends."""
    return max(dict(filling).get("f:0:0", 0) for filling in search.fillings())


def search(works: Sequence[Work], **options: object) -> Search:
    """A search in which the first layer has room for two items."""
    return Search(SMALL, works, before=[(0.0, almost_full)], credit=0, whole=True, **options)  # type: ignore[arg-type]


class FullError(Exception):
    """There is no room left, in a search that ends there."""


class EndsWhenFull(Lifecycle):
    """A protocol that does not grow."""

    def grow(self, full: Layer) -> Steps[None]:
        raise FullError(full)
        yield []


def adding_until_full(name: str, number: int) -> Work:
    """A worker adds items of its own singly, until there is no room for more."""

    def work(protocol: FilterProtocol) -> Steps[int]:
        try:
            new: int = yield from adding(name, number, batch=False)(protocol)
        except FullError:
            return 0
        return new

    return work


class ReadsBeforeItRaises(FilterProtocol):
    """A protocol that reads the counter to ask for credit, and then raises it."""

    def obtain(self, need: int) -> Steps[bool]:
        if not self.stack.layers:
            return (yield from super().obtain(need))
        while self.stack.credits.held(self.stack.newest) < 1:
            layer = self.stack.newest
            fields = (yield from one(Load(self.stack.key))).fields
            if layer.credit_field not in fields:
                return (yield from super().obtain(need))
            given = int(fields[layer.credit_field].removeprefix("closed "))
            granted = min(need, layer.max_items - given)
            if granted > 0 and "closed" not in fields[layer.credit_field]:
                yield [
                    DeleteField(self.stack.key, layer.credit_field),
                    SetFieldIfAbsent(self.stack.key, layer.credit_field, str(given + granted)),
                ]
                self.take(layer, Granted(granted, given + granted))
            else:
                yield from self.lifecycle.grow(layer)
        return True


@pytest.mark.parametrize(
    ("works", "options"),
    [
        pytest.param([adding("a", 2, batch=False), adding("b", 2, batch=False)], {}, id="one by one"),
        pytest.param([adding("a", 3, batch=True), adding("b", 2, batch=True)], {}, id="batches"),
        pytest.param([adding_until_full(name, 2) for name in "abc"], {"lifecycle": EndsWhenFull}, id="three workers"),
        pytest.param(
            [adding("a", 2, batch=True), adding("b", 1, batch=True)],
            {"replies": 1},
            id="a reply is lost",
            marks=pytest.mark.long,
        ),
        pytest.param(
            [adding("a", 2, batch=False), adding("b", 2, batch=False)],
            {"crashes": 1},
            id="a worker dies",
            marks=pytest.mark.long,
        ),
        pytest.param([adding("a", 2, batch=True), growing], {}, id="a growth"),
        pytest.param([adding("a", 2, batch=True), giving_back], {}, id="room is given back"),
    ],
)
def test_no_layer_is_overfilled(works: list[Work], options: dict[str, int]) -> None:
    """In every order, with lost replies and crashes, the layer grants no more credit than its room."""
    assert 0 < most_in_first_layer(search(works, **options)) <= LEFT


def test_every_item_is_new_once() -> None:
    """Every item is new to exactly one worker, even if credit ends between them."""
    same = [adding("a", 2, batch=True), adding("a", 2, batch=False)]
    assert {sum(results) for results in search(same).results()} == {2}


@pytest.mark.parametrize("batch", [False, True])
def test_the_search_can_fail(batch: bool) -> None:
    """With a counter read before it is raised, two workers both get the last of the room."""
    works = [adding("a", 2, batch=batch), adding("b", 2, batch=batch)]
    assert most_in_first_layer(search(works, protocol=ReadsBeforeItRaises)) > LEFT


def layer(capacity: int) -> Layer:
    """A layer with room for so many items."""
    return FilterParameters(capacity=capacity).first_layer("k", NO_IDENTITY, 0, 0.0)


def test_blocks_double_while_they_are_used_up_quickly() -> None:
    """A worker asks for 1/4096 of the capacity at first, then twice as much each time, up to 1/64."""
    clock = Clock()
    credit, million = Credits("k", clock), layer(1_000_000)
    blocks = []
    for _ in range(9):
        asked = credit.ask(million, 1, 1)
        blocks.append(asked.block)
        credit.take(million, Granted(asked.need + asked.block, 0))
        clock.now += 0.9
    assert blocks[:4] == [244, 488, 976, 1953]
    assert blocks[-1] == 1_000_000 // 64
    clock.now += 6
    assert credit.ask(million, 1, 1).block == 244


def test_what_lies_idle_is_given_back_once() -> None:
    """Credit unused for five seconds is returned once, except for the part to keep."""
    clock = Clock()
    credit, layer_ = Credits("k", clock), layer(1000)
    credit.take(layer_, Granted(7, 7))
    assert credit.held(layer_) == 0, "credit granted before the layer was known is void"
    credit.take(layer_, Granted(7, 7))
    assert not credit.is_idle
    clock.now += 5.1
    assert credit.is_idle
    assert [op.number for op in credit.release(keep=2)] == [5]
    assert credit.held(layer_) == 2
    assert not credit.is_idle
    assert credit.release(keep=2) == []


def test_credit_is_of_one_layer() -> None:
    """Credit is void when its layer is sealed or replaced, and so is its refund."""
    credit = Credits("k", Clock())
    first, second = layer(1000), layer(2000)
    assert credit.held(first) == 0
    credit.take(first, Granted(10, 10))
    assert credit.held(first) == 10
    assert credit.held(second) == 0
    credit.refund(first, 3)
    assert credit.held(second) == 0
    assert credit.held(first) == 0


def test_a_forked_process_has_no_credit() -> None:
    """A forked child starts without its parent's credit."""
    credit, layer_ = Credits("k", Clock()), layer(1000)
    credit.held(layer_)
    credit.take(layer_, Granted(10, 10))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, bytes([credit.held(layer_)]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == bytes([0])
    assert credit.held(layer_) == 10


def given(client: redis.Redis, key: str) -> int:
    """Return the credit granted by the newest layer."""
    texts = {as_text(name): text for name, text in client.hgetall(key).items()}
    newest = max(name for name in texts if name.startswith("credit:"))
    return int(texts[newest])


def test_room_is_given_back_at_the_end(client: redis.Redis, key: str) -> None:
    """A closed worker returns its unused credit, and can continue all the same."""
    bloom = BloomFilter(client, key, capacity=1_000_000)
    bloom.add_many(["a", "b"])
    assert given(client, key) > 200
    bloom.release_idle_credit()
    assert given(client, key) > 200, "recently used credit is kept"
    for _ in range(2):
        bloom.close()
        assert given(client, key) == 2
    assert bloom.add("c")
    assert given(client, key) > 200


@pytest.mark.parametrize("place", [Place.BEFORE, Place.AFTER, Place.REPLY])
def test_room_is_given_back_once(valkey: Server, key: str, place: Place) -> None:
    """Credit is not returned again when a refund's outcome is unknown."""
    with (
        proxying(valkey.port, "EVAL", "EVALSHA") as proxy,
        redis.Redis(port=proxy.port) as through,
        valkey.client() as client,
    ):
        bloom = BloomFilter(through, key, capacity=1_000_000, retry_timeout=10)
        bloom.add_many(["a", "b"])
        before = given(client, key)
        proxy.fail(place, place)
        bloom.close()
        assert given(client, key) == (before if place is Place.BEFORE else 2)
        assert bloom.add("c")


class CountsNewMarks(MemoryStore):
    """A store that counts the items new to each shard."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: Counter[str] = Counter()

    def execute(self, operations: Operations) -> Results:
        results = super().execute(operations)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(operation, CheckBits) and operation.mark and not result[1]:
                self.marked[operation.key] += 1
        return results


def test_room_that_was_granted_before_the_hash_was_lost() -> None:
    """A restored counter grants no credit while workers hold unknown grants: no layer is overfilled."""
    store, clock = CountsNewMarks(), Clock()
    parameters = FilterParameters(capacity=20_000, error_rate=1e-9)
    early, late = (BaseBloomFilter(store, "f", parameters, cache_size=0, monotonic=clock) for _ in range(2))
    early.add("first")
    for number in range(2000):
        assert late.add(f"late {number}")
    layer = late._stack.newest
    held = late._stack.credits.held(layer)
    assert held > 100
    store.hashes.clear()
    number = 0
    while len(early._stack.layers) == 1:
        number += 1
        early.add(f"early {number}")
    for number in range(held):
        assert late.add(f"more {number}")
    assert store.marked["f:0:0"] <= layer.max_items


def test_a_restored_counter_counts_room_that_is_not_used_yet() -> None:
    """The unused credit of the worker that restores the hash counts as granted."""
    store = MemoryStore()
    bloom = BaseBloomFilter(store, "f", FilterParameters(capacity=100_000, error_rate=1e-9), cache_size=0)
    bloom.add("a")
    layer, granted = bloom._stack.newest, bloom._stack.granted(bloom._stack.newest)
    assert granted > 10
    store.hashes.clear()
    bloom.contains_many(["a"])
    bloom._run(bloom._protocol.opening.open())
    assert store.hashes["f"][layer.credit_field] == f"closed {granted}"


def test_marks_in_a_filter_that_took_anothers_place_take_room(client: redis.Redis, key: str) -> None:
    """Bits set by a late worker in a filter that is new to it count as additions."""
    early, late = (BloomFilter(client, key, capacity=100_000, cache_size=0) for _ in range(2))
    for bloom in (early, late):
        bloom.add_many([f"before {number}" for number in range(200)])
    early.clear()
    early.add("first")
    early.close()
    assert given(client, key) == 1
    assert all(late.add_many([f"late {number}" for number in range(200)]))
    late.close()
    assert given(client, key) == 1 + 200 + 200


def test_few_round_trips_are_for_credit() -> None:
    """At most one round trip in 150 carries a credit request, and none is for it alone."""
    bloom = MemoryBloomFilter(capacity=1_000_000)
    bloom.add("first")
    before, asked = bloom.counters.round_trips, 0
    execute = bloom._store.execute

    def counting(operations: Operations) -> Results:
        nonlocal asked
        asked += sum(isinstance(operation, GrantCredit) for operation in operations)
        return execute(operations)

    bloom._store.execute = counting  # type: ignore[method-assign]  # counted on its way
    for number in range(3000):
        bloom.add(f"item {number}")
    assert bloom.counters.round_trips == before + 3000
    assert 1 <= asked <= 20
