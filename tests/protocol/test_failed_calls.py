"""After a call that failed in part, exactly the items that it may have added without an answer are ambiguous.

An item that is ambiguous without need is fetched twice. A forgotten item is never fetched: its bits are this worker's
own, and the next call takes them for another worker's.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest

from scrapy_bloom._runtime import Runtime
from scrapy_bloom.errors import UnavailableError
from scrapy_bloom.filter import membership
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.pending_batch import PendingBatch
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.bits import CheckBits
from scrapy_bloom.storage.operation import Operations, Results, Steps
from scrapy_bloom.storage.stores import MemoryStore, RetryingStore
from tests.protocol.test_interleavings import growing_once
from tests.support.failed_results import Fate, partly_failed
from tests.support.schedule_search import Search, Work, add

SMALL = FilterParameters(capacity=10, error_rate=1e-4)
A, B = ITEMS = [b"https://example.com/a", b"https://example.com/b"]
# More round trips than an addition has that meets a growth.
MAX_ROUND_TRIPS = 12


def marks_of(operations: Operations) -> int:
    """Return how many of the operations mark an item; these are the first ones."""
    return sum(isinstance(each, CheckBits) and each.mark for each in operations)


def calling_again(trip: int, fates: Sequence[Fate], note: Callable[[set[bytes], set[bytes]], object]) -> Work:
    """A worker whose call fails in its round trip number `trip`, and is made again.

    Operations behind the marks have the last one's fate. The call notes its items in doubt, and the expected ones.
    """

    def work(protocol: FilterProtocol) -> Steps[frozenset[bytes]]:
        batch = PendingBatch(ITEMS, frozenset(), protocol.stack.identity)
        steps = membership.add(protocol, batch)
        expected: set[bytes] = set()
        operations = next(steps)
        for _ in range(trip):
            pending, number = list(batch.pending), marks_of(operations)
            results = yield operations
            expected |= {item for item, (_, was_there) in zip(pending, results[:number], strict=False) if not was_there}
            try:
                operations = steps.send(results)
            except StopIteration as end:
                return frozenset(end.value)
        pending, number = list(batch.pending), marks_of(operations)
        fated = [fates[min(index, len(fates) - 1)] for index in range(len(operations))]
        executed = [each for each, fate in zip(operations, fated, strict=True) if fate.is_executed]
        outcomes = partly_failed(fated, (yield executed) if executed else [])
        for item, fate, result in zip(pending, fated[:number], outcomes[:number], strict=False):
            if fate.is_in_doubt or (fate is Fate.ANSWERED and not result[1]):
                expected.add(item)
        steps.close()
        in_doubt = batch.in_doubt(outcomes)
        note(in_doubt, expected)
        return frozenset((yield from add(protocol, ITEMS, in_doubt)))

    return work


def adding_both(protocol: FilterProtocol) -> Steps[frozenset[bytes]]:
    """A worker adds both items in one batch, and returns the new ones."""
    return frozenset((yield from add(protocol, ITEMS)))


def growing(protocol: FilterProtocol) -> Steps[frozenset[bytes]]:
    """A worker finds the newest layer full."""
    yield from growing_once(protocol)
    return frozenset()


def ignore(_: set[bytes], __: set[bytes]) -> None:
    """Note nothing."""


def winners(other: Work, note: Callable[[set[bytes], set[bytes]], object] = ignore) -> Iterator[tuple[int, list[Fate]]]:
    """Yield how many workers get "new" for an item, over all orders, round trips that fail, and fates in them."""
    for trip, fates in product(range(MAX_ROUND_TRIPS), product(Fate, repeat=len(ITEMS))):
        works = [calling_again(trip, fates, note), other]
        found = Search(SMALL, works, scattered=other is adding_both, whole=other is growing).results()
        for item in ITEMS:
            for number in {sum(item in new for new in results) for results in found}:
                yield number, list(fates)


@pytest.mark.parametrize("other", [adding_both, growing])
def test_exactly_the_items_in_doubt(other: Work) -> None:
    """Each item is new to a worker, and an item is in doubt if the call has or may have marked it without an answer."""
    noted: set[bool] = set()

    def note(in_doubt: set[bytes], expected: set[bytes]) -> None:
        noted.add(bool(in_doubt))
        assert in_doubt == expected

    numbers = list(winners(other, note))
    assert noted == {True, False}
    assert min(number for number, _ in numbers) == 1
    # A call that was refused as a whole costs no second fetch.
    assert {number for number, fates in numbers if set(fates) == {Fate.REFUSED}} == {1}


def _forgets_what_is_under_way(batch: PendingBatch, _: Results | None) -> set[bytes]:
    return {*batch.new, *batch.ambiguous, *batch._marked}


def _forgets_marks_in_a_sealed_layer(batch: PendingBatch, outcomes: Results | None) -> set[bytes]:
    batch._marked.clear()
    return IN_DOUBT(batch, outcomes)


def _forgets_answered_marks(batch: PendingBatch, outcomes: Results | None) -> set[bytes]:
    items, _, by_one = batch._under_way
    batch.begin(items, lambda _: True, by_one=by_one)
    return IN_DOUBT(batch, outcomes)


def _forgets_lost_replies(batch: PendingBatch, outcomes: Results | None) -> set[bytes]:
    assert outcomes is not None
    outcomes.failures = {index: each._replace(is_in_doubt=False) for index, each in outcomes.failures.items()}
    return IN_DOUBT(batch, outcomes)


def _takes_the_others(batch: PendingBatch, outcomes: Results | None) -> set[bytes]:
    return {*ITEMS} - IN_DOUBT(batch, outcomes)


IN_DOUBT = PendingBatch.in_doubt
Judge = Callable[[PendingBatch, Results | None], set[bytes]]
MISTAKES: dict[Judge, Work] = {
    _forgets_what_is_under_way: adding_both,
    _forgets_marks_in_a_sealed_layer: growing,
    _forgets_answered_marks: adding_both,
    _forgets_lost_replies: adding_both,
    _takes_the_others: adding_both,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_lose_an_item(mistake: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds an item that is new to no worker if one in doubt is forgotten."""
    monkeypatch.setattr(PendingBatch, "in_doubt", mistake)
    assert any(number == 0 for number, _ in winners(MISTAKES[mistake]))


class Impatient(Runtime):
    """A clock that a sleep advances, and nothing else."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


class PartlyFailing(MemoryStore):
    """A store whose next round trips that mark have these `fates`, by attempt and by position in the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: list[dict[int, Fate]] = []
        self._asked: list[int] = []

    def execute(self, operations: Operations) -> Results:
        if not (self.fates and marks_of(operations)):
            return super().execute(operations)
        # A later attempt has the failed operations of the first one.
        self._asked = self._asked or list(range(len(operations)))
        fates = [self.fates[0].get(index, Fate.ANSWERED) for index in self._asked]
        replies = super().execute([each for each, fate in zip(operations, fates, strict=True) if fate.is_executed])
        results = partly_failed(fates, replies)
        self._asked = [self._asked[index] for index in results.failures]
        del self.fates[0]
        return results


NEW, KNOWN, DOUBTED = "new", "known", "known, and ambiguous"
FAILURES = [fate for fate in Fate if fate is not Fate.ANSWERED]


@pytest.mark.parametrize("second", [None, *FAILURES], ids=lambda fate: fate and fate.name)
def test_a_filter_doubts_these_items(second: Fate | None) -> None:
    """After one failed attempt, or two, the filter doubts each item that one of them may have marked."""
    for fates in product(Fate, repeat=3):
        failing = [index for index, fate in enumerate(fates) if fate is not Fate.ANSWERED]
        if not failing:
            continue
        store, timeout = PartlyFailing(), 0.0 if second is None else 0.01
        bloom = BaseBloomFilter(RetryingStore(store, timeout, runtime=Impatient()), "k", SMALL, cache_size=0)
        bloom.add_many([KNOWN, DOUBTED])
        bloom.mark_ambiguous([DOUBTED])
        store.fates = [dict(enumerate(fates))]
        if second is not None:
            store.fates.append(dict.fromkeys(failing, second))
        with pytest.raises(UnavailableError):
            bloom.add_many([NEW, KNOWN, DOUBTED])
        assert store.fates == []
        in_doubt = [
            fate.is_in_doubt or (second is not None and second.is_in_doubt and number in failing)
            for number, fate in enumerate(fates)
        ]
        is_ambiguous = [in_doubt[0] or fates[0] is Fate.ANSWERED, in_doubt[1], True]
        assert [bloom.is_ambiguous(item) for item in (NEW, KNOWN, DOUBTED)] == is_ambiguous, fates
        # The next call reports ambiguous and unmarked items as new, and then no item is in doubt.
        assert bloom.add_many([NEW, KNOWN, DOUBTED]) == [True, is_ambiguous[1], True], fates
        assert bloom.add_many([NEW, KNOWN, DOUBTED]) == [False] * 3


@pytest.mark.parametrize("fate", FAILURES, ids=lambda fate: fate.name)
def test_a_call_that_asks_about_cached_items_as_well(fate: Fate) -> None:
    """Behind a new connection a call asks again about cached items; if that fails, its new items are in doubt, too."""
    store = Reconnecting()
    bloom = BaseBloomFilter(RetryingStore(store, 0), "k", FilterParameters(capacity=1000))
    bloom.add_many([KNOWN])
    store.contact += 1
    store.fates = [{}, {0: fate}]
    with pytest.raises(UnavailableError):
        bloom.add_many([KNOWN, NEW])
    assert not bloom.is_cached(NEW)
    assert [bloom.is_ambiguous(item) for item in (KNOWN, NEW)] == [fate.is_in_doubt, True]
    assert bloom.add_many([KNOWN, NEW]) == [fate.is_in_doubt, True]


class Reconnecting(PartlyFailing):
    """A store with the number of its connection."""

    contact = 0

    def execute(self, operations: Operations) -> Results:
        results = super().execute(operations)
        results.contact = self.contact
        return results
