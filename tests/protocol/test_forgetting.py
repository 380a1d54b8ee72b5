"""A forgotten item is new exactly once more, to one worker, in every interleaving."""

from collections.abc import Sequence
from typing import Any

import pytest

from scrapy_bloom.filter import forgetting, membership
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.membership import Reading, read
from scrapy_bloom.filter.pending_batch import PendingBatch
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.filter_hash import Unlink
from scrapy_bloom.storage.forgotten import Claim, ClaimForgotten, ForgetItems
from scrapy_bloom.storage.operation import Memory, Steps
from tests.protocol.test_interleavings import (
    AGEING,
    ITEM,
    LIFE,
    SMALL,
    adding,
    ageing,
    clearing,
    evicting,
    growing_once,
    joining,
)
from tests.support.failed_results import Fate, partly_failed
from tests.support.schedule_search import Search, Work, add

OTHER = b"https://example.com/other"
KNOWN = [(0.0, adding)]


def forgetting_item(protocol: FilterProtocol) -> Steps[int]:
    """A worker forgets the item."""
    return len((yield from forgetting.forget(protocol, [ITEM])))


def forgetting_then(*works: Work) -> Work:
    """A worker forgets the item and does its works; return whether it was in, and how often it was new."""

    def work(protocol: FilterProtocol) -> Steps[tuple[int, int]]:
        was_in = yield from forgetting_item(protocol)
        new = 0
        for each in works:
            new += yield from each(protocol)
        return was_in, new

    return work


def forgetting_another(protocol: FilterProtocol) -> Steps[int]:
    """A worker forgets another item, which the filter knows as well."""
    yield from forgetting.forget(protocol, [OTHER])
    return 0


def adding_another(protocol: FilterProtocol) -> Steps[int]:
    """A worker adds another item."""
    yield from membership.add(protocol, PendingBatch([OTHER], frozenset(), protocol.stack.identity))
    return 0


def adding_twice(protocol: FilterProtocol) -> Steps[int]:
    """A worker adds the item twice."""
    first = yield from adding(protocol)
    return first + (yield from adding(protocol))


def losing_the_set(protocol: FilterProtocol) -> Steps[int]:
    """The server evicts the forgotten items."""
    yield [Unlink(protocol.forgotten_key)]
    return 0


def outcomes(search: Search) -> set[tuple[int, int]]:
    """Return how many workers forgot the item, and how many got "new", over all ends."""
    found = set()
    for results in search.results():
        pairs = [result if isinstance(result, tuple) else (0, result or 0) for result in results]
        found.add((sum(was_in for was_in, _ in pairs), sum(new for _, new in pairs)))
    return found


def news(search: Search) -> set[int]:
    """Return how many workers got "new", over all ends."""
    return {new for _, new in outcomes(search)}


@pytest.mark.parametrize("scattered", [False, True], ids=["one server", "a cluster"])
@pytest.mark.parametrize(
    "others",
    [
        pytest.param([], id="alone"),
        pytest.param([adding], id="another worker"),
        pytest.param([adding, adding], id="two other workers"),
        pytest.param([joining], id="one joins"),
        pytest.param([growing_once], id="a growth"),
        pytest.param([adding, growing_once], id="another worker and a growth"),
    ],
)
def test_a_forgotten_item_is_new_once(others: Sequence[Work], scattered: bool) -> None:
    """In any order exactly one of all workers gets "new"."""
    works = [forgetting_then(adding, adding), *others]
    assert outcomes(Search(SMALL, works, before=KNOWN, scattered=scattered)) == {(1, 1)}


@pytest.mark.parametrize("others", [[], [adding], [growing_once]], ids=["alone", "another worker", "a growth"])
@pytest.mark.parametrize("times", [0, 1], ids=["first", "again"])
def test_two_workers_forget_it(times: int, others: Sequence[Work]) -> None:
    """An item that is forgotten several times is new once at least, and once for each time at most."""
    before = [*KNOWN, *[(0.0, forgetting_item)] * times]
    search = Search(SMALL, [forgetting_then(adding), forgetting_then(adding), *others], before=before)
    assert {(2, 1)} <= outcomes(search) <= {(2, new) for new in range(1, 3 + times)}


@pytest.mark.parametrize(
    "others", [[adding], pytest.param([adding, growing_once], marks=pytest.mark.long)], ids=["one", "a growth"]
)
def test_an_item_that_was_not_in(others: Sequence[Work]) -> None:
    """An item is new for its first addition, and once more only if it was forgotten after that."""
    assert outcomes(Search(SMALL, [forgetting_then(adding, adding), *others])) == {(0, 1), (1, 2)}


# The item is forgotten shortly before its layer ends.
FORGOTTEN = [*LIFE, (124.0, forgetting_item)]


@pytest.mark.parametrize("ticks", [[], [124.9], [125.1], [124.9, 125.1]], ids=str)
@pytest.mark.parametrize(
    "works", [[adding_twice, adding_twice], [adding, adding, ageing]], ids=["two workers", "and a third"]
)
def test_with_a_ttl(works: Sequence[Work], ticks: Sequence[float]) -> None:
    """An item forgotten is new once when its layer ends meanwhile, and its claim outlives the layer."""
    assert news(Search(AGEING, works, before=FORGOTTEN, ticks=ticks, whole=True)) == {1}


@pytest.mark.parametrize("others", [[adding], [ageing]], ids=["another worker", "ageing"])
def test_forgetting_as_the_layer_ends(others: Sequence[Work]) -> None:
    """The item is new once because its layer has ended, or was forgotten, and twice only for both."""
    works = [forgetting_then(adding, adding), *others]
    found = outcomes(Search(AGEING, works, before=LIFE, ticks=[124.9, 125.1], whole=True))
    assert {(0, 1), (1, 1)} <= found <= {(0, 1), (1, 1), (1, 2)}


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([evicting], id="a shard evicted"),
        pytest.param([losing_the_set], id="the set evicted"),
        pytest.param([clearing], id="cleared"),
        pytest.param([adding, evicting], id="a shard evicted beside a worker"),
        pytest.param([adding, losing_the_set], id="the set evicted beside a worker"),
        pytest.param([losing_the_set, evicting], id="both evicted"),
        pytest.param([growing_once, losing_the_set], id="the set evicted during a growth"),
    ],
)
def test_no_item_is_lost_with_the_set(others: Sequence[Work]) -> None:
    """If set or filter vanish meanwhile, at least one worker gets "new"."""
    works = [forgetting_then(adding, adding), *others]
    assert min(news(Search(SMALL, works, before=KNOWN, whole=clearing in others))) == 1


def _beside_another_first_one() -> Search:
    """The set is evicted between two workers that each forget the filter's first item."""
    works = [forgetting_then(adding, adding), forgetting_another, losing_the_set]
    return Search(SMALL, works, before=[*KNOWN, (0.0, adding_another)])


def test_no_item_is_lost_with_a_set_that_begins_anew() -> None:
    """A set that another worker begins after the loss does not hide the loss."""
    assert min(news(_beside_another_first_one())) == 1


@pytest.mark.parametrize("scattered", [False, True], ids=["one server", "a cluster"])
@pytest.mark.parametrize("others", [[], [adding], [growing_once]], ids=["alone", "another worker", "a growth"])
def test_a_lost_reply(others: Sequence[Work], scattered: bool) -> None:
    """With a lost reply the item is new once or twice."""
    works = [forgetting_then(adding, adding), *others]
    assert outcomes(Search(SMALL, works, before=KNOWN, replies=1, scattered=scattered)) == {(1, 1), (1, 2)}


def claiming_again(fate: Fate) -> Work:
    """A worker whose first claim has this fate; its call fails, and is made again."""

    def work(protocol: FilterProtocol) -> Steps[int]:
        batch = PendingBatch([ITEM], frozenset(), protocol.stack.identity)
        steps = membership.add(protocol, batch)
        operations = next(steps)
        while not isinstance(operations[0], ClaimForgotten):
            try:
                operations = steps.send((yield operations))
            except StopIteration as end:
                return len(end.value)
        replies = (yield operations) if fate.is_executed else []
        steps.close()
        in_doubt = batch.in_doubt(partly_failed([fate], replies))
        assert in_doubt == ({ITEM} if fate.is_in_doubt else set())
        return len((yield from add(protocol, [ITEM], in_doubt)))

    return work


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.CUT_OFF, Fate.REFUSED])
@pytest.mark.parametrize("before", [[], [growing_once]], ids=["one layer", "two layers"])
def test_a_failed_claim(fate: Fate, before: Sequence[Work]) -> None:
    """If the call fails with its claim, the item is new to at least one worker, and to one if nothing was executed."""
    known = [*KNOWN, *((0.0, work) for work in (*before, forgetting_item))]
    assert news(Search(SMALL, [claiming_again(fate), adding], before=known)) == ({1, 2} if fate.is_in_doubt else {1})


def test_a_worker_that_dies_while_it_forgets() -> None:
    """The item is new at most once, and a later attempt finishes the work."""
    assert outcomes(Search(SMALL, [forgetting_item, adding, adding], before=KNOWN, crashes=1)) <= {
        (was_in, new) for was_in in (0, 1) for new in (0, 1, 2)
    }


@pytest.mark.parametrize("whole", [True, False], ids=["pipelines", "single operations"])
def test_nothing_is_left_of_a_cleared_filter(whole: bool) -> None:
    """A worker that forgets while the filter is cleared leaves no key behind."""
    assert Search(SMALL, [forgetting_item, clearing], before=KNOWN, whole=whole).left_behind(0.0) == {()}


# Wrong designs that look right: the search must find the fault of each.


def test_a_set_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each layer has its own forgotten items, an item of two layers is new twice."""
    forget, claim = ForgetItems.apply, ClaimForgotten.apply

    def in_layer(item: bytes, layer: int) -> bytes:
        return item + b"%d" % layer

    def forget_in_each(self: ForgetItems, memory: Memory) -> int:
        items = [(in_layer(item, layer), layer) for item, newest in self.items for layer in range(newest + 1)]
        return forget(self._replace(items=tuple(items)), memory)

    def claim_in_any(self: ClaimForgotten, memory: Memory) -> tuple[bool, ...]:
        found = []
        for each in self.claims:
            layers = (Claim(in_layer(each.item, layer), 0, each.mark) for layer in range(4))
            found.append(any(claim(self._replace(claims=(layer,)), memory) == (True,) for layer in layers))
        return tuple(found)

    monkeypatch.setattr(ForgetItems, "apply", forget_in_each)
    monkeypatch.setattr(ClaimForgotten, "apply", claim_in_any)
    works = [forgetting_then(adding, adding), adding, growing_once]
    assert (1, 3) in outcomes(Search(SMALL, works))


def test_an_item_that_was_not_in_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an item is put into the set without a look at the layers, it is new twice."""

    def find_all(protocol: FilterProtocol, layers: Sequence[Layer], items: Sequence[bytes], _: Any) -> Steps[Reading]:
        reading = yield from read(protocol, layers, items, _)
        return reading._replace(found={item: [(layers[-1].index, 0)] for item in items})

    monkeypatch.setattr(forgetting, "read", find_all)
    assert (1, 2) in outcomes(Search(SMALL, [forgetting_then(adding, adding)]))


def test_an_old_entry_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a TTL, an item whose layer has ended is new twice if its entry still counts."""
    claim = ClaimForgotten.apply

    def claim_of_any_age(self: ClaimForgotten, memory: Memory) -> tuple[bool, ...] | None:
        return claim(self._replace(claims=tuple(each._replace(layer=0) for each in self.claims)), memory)

    assert news(_after_the_layer_ended()) == {0}
    monkeypatch.setattr(ClaimForgotten, "apply", claim_of_any_age)
    assert 1 in news(_after_the_layer_ended())


def test_a_claim_ends_with_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a TTL, a claimed item is new again too early unless the newest layer gets it, too."""
    monkeypatch.setattr(membership, "_short_lived", lambda *_: set())
    assert 2 in news(_as_the_layer_ends())


def test_a_lost_set_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a lost set counts as an empty one, an item is lost."""
    claim = ClaimForgotten.apply

    def claim_of_nothing(self: ClaimForgotten, memory: Memory) -> tuple[bool, ...]:
        return claim(self, memory) or tuple(False for _ in self.claims)

    monkeypatch.setattr(ClaimForgotten, "apply", claim_of_nothing)
    works = [forgetting_then(adding, adding), losing_the_set]
    assert (1, 0) in outcomes(Search(SMALL, works, before=KNOWN))


def test_a_set_of_another_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a set begun anew counts as the lost one, an item is lost."""
    monkeypatch.setattr("scrapy_bloom.storage.shard_header.is_far", lambda *_: False)
    assert min(news(_beside_another_first_one())) == 0


def _after_the_layer_ended() -> Search:
    """A forgotten item was new since, because its layer had ended."""
    return Search(AGEING, [adding, adding], before=[*FORGOTTEN, (125.1, adding)], whole=True)


def _as_the_layer_ends() -> Search:
    """Two workers add an item that was forgotten shortly before its layer ends."""
    return Search(AGEING, [adding_twice, adding_twice], before=FORGOTTEN, ticks=[124.9, 125.1], whole=True)
