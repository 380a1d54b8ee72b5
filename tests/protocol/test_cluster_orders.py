"""The filter over a cluster: the operations of a round trip in any order, each with an outcome of its own.

The nodes of a cluster execute the operations of one round trip independently, and an operation that is redirected or
retried is executed last. So in these searches each operation comes at any time, in any order, and loses its own reply.
"""

from collections.abc import Set
from typing import Any

import pytest

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.pending_batch import PendingBatch
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.operation import Steps
from tests.protocol.test_interleavings import (
    CreatesBeforeSealing,
    adding,
    clearing,
    evicting,
    growing_once,
    joining,
    restoring,
    winners,
)
from tests.support.schedule_search import Search, Work, add

SMALL = FilterParameters(capacity=10, error_rate=1e-4)
A, B = b"https://example.com/a", b"https://example.com/b"


def adding_both(protocol: FilterProtocol) -> Steps[frozenset[bytes]]:
    """A worker adds two items in one batch, and returns the new ones."""
    return frozenset((yield from add(protocol, [A, B])))


def winners_of_both(search: Search) -> set[int]:
    """Return how many workers get "new" for either item, over all ends."""
    return {sum(item in new for new in results if new) for results in search.results() for item in (A, B)}


@pytest.mark.parametrize(
    "works",
    [
        pytest.param([adding_both, adding_both], id="two workers"),
        pytest.param([adding_both, growing_once], id="a growth"),
    ],
)
def test_one_winner_of_each_item(works: list[Work]) -> None:
    """In any order of the operations exactly one worker gets "new" for an item."""
    assert winners_of_both(_scattered([_as_set(work) for work in works])) == {1}


@pytest.mark.parametrize("others", [[], [adding_both]], ids=["alone", "beside another worker"])
def test_a_lost_reply_costs_no_item(others: list[Work]) -> None:
    """An item whose reply is lost is new to at least one worker, and the other item to exactly one."""
    found = winners_of_both(_scattered([adding_both, *others], replies=1))
    assert found == ({1} if not others else {1, 2})


@pytest.mark.parametrize(
    ("works", "replies"),
    [
        pytest.param([adding, growing_once, evicting], 1, id="evicted during a growth"),
        pytest.param([adding, clearing], 1, id="cleared"),
        pytest.param([adding, joining, evicting], 1, id="one joins while it is evicted"),
        pytest.param([adding, restoring, clearing], 0, id="one opens while it is cleared"),
    ],
)
def test_no_item_is_lost_with_the_filter(works: list[Work], replies: int) -> None:
    """If the filter vanishes meanwhile, at least one worker gets "new"."""
    assert min(winners(_scattered(works, replies=replies))) == 1


def test_growth_in_any_order() -> None:
    """A layer is sealed before the next one exists, in any order of the operations of a round trip."""
    assert winners(_scattered([adding, joining, growing_once])) == {1}
    wrong = Search(SMALL, [adding, joining, growing_once], scattered=True, lifecycle=CreatesBeforeSealing)
    assert winners(wrong) == {1, 2}


def _mark_none(_: PendingBatch, __: Set[int]) -> None:
    """The mistake: a retried operation counts like any other."""


def _mark_the_next(batch: PendingBatch, retried: Set[int]) -> None:
    """The mistake: the indexes are those of another list."""
    batch.ambiguous.update(batch.pending[index - 1] for index in retried)


@pytest.mark.parametrize("mistake", [_mark_none, _mark_the_next])
def test_mistakes_lose_an_item(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds an item that is new to no worker, if doubt is attached to none or to the wrong operation."""
    monkeypatch.setattr(PendingBatch, "mark_retried", mistake)
    assert 0 in winners_of_both(_scattered([adding_both], replies=1))


def _scattered(works: list[Work], replies: int = 0) -> Search:
    return Search(SMALL, works, scattered=True, replies=replies)


def _as_set(work: Work) -> Work:
    """Return a work whose result is a set of items, also if it adds none."""

    def steps(protocol: FilterProtocol) -> Steps[frozenset[bytes]]:
        result: Any = yield from work(protocol)
        return result or frozenset()

    return steps
