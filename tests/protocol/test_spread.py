"""Workers of different placements share a filter: its description decides on the names of its shards."""

import pytest

from scrapy_bloom.filter import unlisted_shards
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.placement import Placement
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.filter_hash import Unlink
from scrapy_bloom.storage.operation import Steps
from scrapy_bloom.storage.stores import MemoryStore, run_steps
from tests.protocol.test_interleavings import SMALL, adding, clearing, evicting, growing_once, joining, winners
from tests.support.schedule_search import Search, Work

SPREAD = Placement(is_spread=True)
# Layers of several shards from a few thousand items on.
SMALL_SHARDS = Placement(4096, is_spread=True)


def spreading(work: Work) -> Work:
    """A worker on a cluster, whose new filters spread."""

    def placed(protocol: FilterProtocol) -> Steps[int]:
        protocol.stack.placement = SPREAD
        result: int = yield from work(protocol)
        return result

    return placed


def replacing(protocol: FilterProtocol) -> Steps[int]:
    """A worker on a cluster replaces the filter by a new filter, which spreads."""
    protocol.stack.placement = SPREAD
    yield from protocol.lifecycle.clear()
    yield from protocol.lifecycle.ensure_layer()
    return 0


@pytest.mark.parametrize("scattered", [False, True], ids=["one server", "cluster"])
def test_one_winner(scattered: bool) -> None:
    """A worker on a cluster goes on in a filter that does not spread."""
    works = [spreading(adding), spreading(joining), growing_once]
    assert winners(Search(SMALL, works, scattered=scattered, whole=scattered)) == {1}


@pytest.mark.parametrize(
    "works",
    [
        pytest.param([spreading(adding), adding, clearing], id="cleared", marks=pytest.mark.long),
        pytest.param([adding, replacing], id="replaced"),
        pytest.param([spreading(adding), replacing, evicting], id="replaced and evicted", marks=pytest.mark.long),
    ],
)
def test_no_item_is_lost_with_the_filter(works: list[Work]) -> None:
    """If the filter is replaced by one with other names, at least one worker gets "new"."""
    assert min(winners(Search(SMALL, works, whole=True))) == 1


@pytest.mark.parametrize("placement", [SMALL_SHARDS, SMALL_SHARDS._replace(is_spread=False)], ids=["spread", "plain"])
def test_unlisted_shards(placement: Placement) -> None:
    """All shards of a filter without a hash are found, whether they spread or not."""
    store = MemoryStore()
    bloom = BaseBloomFilter(store, "books", FilterParameters(capacity=5000, error_rate=1e-6), placement=placement)
    bloom.add_many([str(number) for number in range(20_000)])
    assert bloom.info().layers == 3
    shards = set(store.strings)
    assert len(shards) > 20
    store.execute([Unlink("books")])
    assert run_steps(unlisted_shards.find("books", []), store.execute).keys() == shards
    BaseBloomFilter(store, "books", SMALL, flush=True)
    assert not store.strings


def test_gap() -> None:
    """A layer that spreads is found up to the first shard that is gone."""
    store = MemoryStore()
    bloom = BaseBloomFilter(store, "books", FilterParameters(capacity=5000, error_rate=1e-6), placement=SMALL_SHARDS)
    bloom.add("a")
    first, second, gone, *_, last = store.strings
    store.execute([Unlink("books"), Unlink(last)])
    assert run_steps(unlisted_shards.find("books", []), store.execute).keys() == store.strings.keys()
    store.execute([Unlink(gone)])
    assert run_steps(unlisted_shards.find("books", []), store.execute).keys() == {first, second}


@pytest.mark.parametrize("placement", [SMALL_SHARDS, SMALL_SHARDS._replace(is_spread=False)], ids=["spread", "plain"])
@pytest.mark.parametrize("layers", [1, 2])
def test_prepared_strings(placement: Placement, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a crawl deletes prepared strings: a part of a layer, or of a layer that has shards of another size."""
    monkeypatch.setattr(Lifecycle, "min_prepared_bytes", 1)
    store = MemoryStore()
    parameters = FilterParameters(capacity=5000, error_rate=1e-6)
    blooms = [
        BaseBloomFilter(store, "books", parameters, placement=each)
        for each in (placement, placement._replace(max_shard_bytes=2048))
    ]
    numbers = iter(range(20_000))
    blooms[0].add_reference("queue")
    while sum(name.startswith("books:1:") for name in store.strings) < 5 or blooms[0].info().layers < layers:
        for bloom in blooms:
            bloom.add_many([str(next(numbers)) for _ in range(10)])
    assert blooms[0].info().layers == layers
    assert blooms[0].remove_reference("queue")
    assert not store.strings


def test_unknown_layer() -> None:
    """A worker that knows the first layer only does not restore a lost hash without the others."""
    store = MemoryStore()
    parameters = FilterParameters(capacity=5000, error_rate=1e-6)
    early, late = (BaseBloomFilter(store, "books", parameters, placement=SMALL_SHARDS) for _ in range(2))
    early.add("a")
    late.add_many([str(number) for number in range(20_000)])
    before = store.hashes["books"]["filter"]
    store.execute([Unlink("books")])
    early.add_many([f"other {number}" for number in range(5000)])
    assert store.hashes["books"]["filter"] != before


def test_the_stored_filter_decides() -> None:
    """Workers of both placements, and of other sizes of shards, use the same shards."""
    store = MemoryStore()
    parameters = FilterParameters(capacity=5000, error_rate=1e-6)
    spread, plain = (
        BaseBloomFilter(store, "books", parameters, placement=placement, cache_size=0)
        for placement in (SMALL_SHARDS, Placement())
    )
    items = [str(number) for number in range(20_000)]
    for begin in range(0, len(items), 500):
        first, second = items[begin : begin + 250], items[begin + 250 : begin + 500]
        assert sum(spread.add_many(first)) + sum(plain.add_many(second)) == 500
    assert (spread.info().layers, sum(spread.add_many(items)), sum(plain.add_many(items))) == (3, 0, 0)
    assert all(name.endswith("}") for name in store.strings)
    plain.clear()
    assert not store.strings
