"""In every interleaving exactly one worker gets "new" for an item."""

import pytest

from scrapy_bloom.filter import membership
from scrapy_bloom.filter.describe import describe
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.filter_hash import Unlink
from scrapy_bloom.storage.operation import Steps
from scrapy_bloom.storage.shards import SealShard
from tests.support.schedule_search import Search, Work, add

ITEM = b"https://example.com/"
SMALL = FilterParameters(capacity=10, error_rate=1e-4)
# Generations of 20 s; layers live for 125 s.
AGEING = FilterParameters(capacity=10, error_rate=1e-4, ttl=100)


class CreatesBeforeSealing(Lifecycle):
    """The rejected design of a growth: the next layer exists before the full one is sealed."""

    def grow(self, full: Layer) -> Steps[None]:
        now = yield from self.opening.open()
        if self.stack.newest == full:
            yield from self._append_layer(self.stack.parameters.next_layer(full, 0, now))
            yield [SealShard(key) for key in full.shard_keys]
        yield from self.opening.open()


def adding(protocol: FilterProtocol) -> Steps[int]:
    """A worker adds the item."""
    return len((yield from add(protocol, [ITEM])))


def joining(protocol: FilterProtocol) -> Steps[int]:
    """A worker opens the filter only now, and adds the item."""
    yield from protocol.opening.open()
    return len((yield from add(protocol, [ITEM])))


def growing(times: int) -> Work:
    """A worker finds the newest layer full, several times."""

    def work(protocol: FilterProtocol) -> Steps[int]:
        for _ in range(times):
            yield from protocol.lifecycle.grow(protocol.stack.newest)
        return 0

    return work


growing_once = growing(1)


def ageing(protocol: FilterProtocol) -> Steps[int]:
    """A worker checks whether layers have ended."""
    yield from protocol.lifecycle.rotate(adds=True)
    return 0


def leaving(protocol: FilterProtocol) -> Steps[int]:
    """The last user's worker deletes the filter."""
    yield from protocol.lifecycle.remove_reference("queue")
    return 0


def describing(protocol: FilterProtocol) -> Steps[int]:
    """A worker reports how full the filter is."""
    yield from describe(protocol)
    return 0


def asking(protocol: FilterProtocol) -> Steps[int]:
    """A worker looks the item up in a filter with a generation that may have ended."""
    yield from protocol.lifecycle.rotate(adds=False)
    yield from membership.contains(protocol, [ITEM])
    return 0


def restoring(protocol: FilterProtocol) -> Steps[int]:
    """A worker that was silent for a while opens the filter before it adds."""
    yield from protocol.opening.open()
    return 0


def clearing(protocol: FilterProtocol) -> Steps[int]:
    """A worker deletes the filter."""
    yield from protocol.lifecycle.clear()
    return 0


def evicting(protocol: FilterProtocol) -> Steps[int]:
    """The server evicts a shard."""
    yield [Unlink(protocol.stack.newest.shard_keys[0])]
    return 0


def winners(search: Search) -> set[int]:
    """Return how many workers get "new" for the item, over all ends."""
    return {sum(results) for results in search.results()}


@pytest.mark.parametrize(
    "works",
    [
        pytest.param([adding, adding, adding, growing(2)], id="three workers, two growths", marks=pytest.mark.long),
        pytest.param([adding, joining, growing_once], id="one joins during a growth"),
        pytest.param([adding, adding, growing_once, growing_once], id="two find the layer full"),
    ],
)
def test_one_winner_while_the_filter_grows(works: list[Work]) -> None:
    """Before, during and after growths exactly one of all workers gets "new"."""
    assert winners(Search(SMALL, works, whole=len(works) > 3)) == {1}


def test_the_search_can_fail() -> None:
    """If the next layer is created before the full one is sealed, two workers can both get "new"."""
    assert winners(Search(SMALL, [adding, joining, growing_once], lifecycle=CreatesBeforeSealing)) == {1, 2}


def test_one_winner_while_a_generation_ends() -> None:
    """The same holds if a layer is sealed by age at any moment of the checks."""
    assert winners(Search(AGEING, [adding, adding, ageing], ticks=[19.9, 20.1])) == {1}


# The item is in the first layer, and each generation has begun in its time.
LIFE = [(0.0, adding), *((time, ageing) for time in (20.0, 40.0, 60.0, 80.0, 100.0, 120.0))]


def test_no_winner_within_the_ttl() -> None:
    """Until its layer ends an item stays seen, in every interleaving."""
    assert winners(Search(AGEING, [adding, adding, ageing], before=LIFE, ticks=[124.9], whole=True)) == {0}


def test_one_winner_when_an_item_is_forgotten() -> None:
    """When its layer is deleted an item may be new again, to one worker only."""
    search = Search(AGEING, [adding, adding, ageing], before=LIFE, ticks=[124.9, 125.1], whole=True)
    assert winners(search) == {0, 1}


@pytest.mark.parametrize(
    "works",
    [
        pytest.param([adding, adding, clearing], id="cleared", marks=pytest.mark.long),
        pytest.param([adding, adding, evicting], id="evicted"),
        pytest.param([adding, growing_once, evicting], id="evicted during a growth"),
        pytest.param([adding, growing_once, clearing], id="cleared during a growth"),
        pytest.param([adding, joining, evicting], id="one joins while it is evicted"),
    ],
)
def test_no_item_is_lost_with_the_filter(works: list[Work]) -> None:
    """If the filter vanishes meanwhile, at least one worker gets "new"."""
    assert min(winners(Search(SMALL, works, whole=clearing in works))) == 1


@pytest.mark.parametrize("whole", [True, False], ids=["pipelines", "single operations"])
@pytest.mark.parametrize("other", [describing, asking])
@pytest.mark.parametrize("deleting", [leaving, clearing])
def test_a_look_leaves_a_filter_deleted(deleting: Work, other: Work, whole: bool) -> None:
    """When other workers read a filter that is being deleted, no key is left of it."""
    assert Search(SMALL, [deleting, other, other], whole=whole).left_behind(0.0) == {()}


@pytest.mark.parametrize("whole", [True, False], ids=["pipelines", "single operations"])
@pytest.mark.parametrize("deleting", [leaving, clearing])
def test_a_hash_that_is_restored_too_late_is_deleted(deleting: Work, whole: bool) -> None:
    """When a worker about to add restores the hash of a deleted filter, no key is left of it."""
    assert Search(SMALL, [deleting, restoring], whole=whole).left_behind(0.0) == {()}


def sharing(protocol: FilterProtocol) -> Steps[int]:
    """A worker of one queue adds the same item three times."""
    yield from protocol.lifecycle.add_reference("queue")
    new = 0
    for _ in range(3):
        new += yield from adding(protocol)
    return new


def starting_over(protocol: FilterProtocol) -> Steps[int]:
    """A worker of another queue deletes the filter at its start, and finishes once the new one has the item."""
    yield from clearing(protocol)
    yield from protocol.lifecycle.add_reference("another queue")
    if (yield from membership.contains(protocol, [ITEM])):
        yield from protocol.lifecycle.remove_reference("another queue")
    return 0


def test_a_replaced_filter_gets_the_references_again() -> None:
    """The item is new at most once more: the last user of a new filter does not delete it under another one."""
    assert winners(Search(SMALL, [sharing, starting_over], whole=True)) == {1, 2}


class ForgetsReferences(Lifecycle):
    """Add a reference to one filter only."""

    def add_reference(self, name: str) -> Steps[None]:
        yield from super().add_reference(name)
        self.stack.references.clear()


def test_the_search_misses_a_reference() -> None:
    """If a new filter does not get the reference, it is deleted under its user."""
    assert winners(Search(SMALL, [sharing, starting_over], whole=True, lifecycle=ForgetsReferences)) == {1, 2, 3}
