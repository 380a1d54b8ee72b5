"""A worker that fills an unfinished filter harms no filter that a crawl creates meanwhile, with the same shards' keys.

An import does that if its SET is deleted while it is copied. The hash of its filter is at another key.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from scrapy_bloom.filter.layer_stack import LayerStack
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.opening import Opening, ReplacedError
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.filter_hash import DeleteUnusedHash, Load, RestoreFields
from scrapy_bloom.storage.operation import Steps, one
from scrapy_bloom.storage.shards import DeleteShard
from tests.protocol.test_interleavings import SMALL, joining, winners
from tests.support.schedule_search import KEY, Search, Work, add

STAGING = f"{{{KEY}}}:import"
MEMBERS = [b"a", b"b"]


def staged(protocol: FilterProtocol) -> Steps[None]:
    """An unfinished filter begins beside an empty key."""
    yield from protocol.lifecycle.clear()
    fields = {
        filter_keys.FILTER_FIELD: SMALL.to_json(),
        filter_keys.PREFIX_FIELD: KEY,
        filter_keys.UNFINISHED_FIELD: "import",
    }
    yield [RestoreFields(STAGING, filter_keys.FILTER_FIELD, tuple(fields.items()))]


def filling(kind: type[Lifecycle] = Lifecycle, delete: Callable[[str, int], DeleteShard] = DeleteShard) -> Work:
    """A worker fills the unfinished filter; it deletes the filter if another one has its shards."""

    def work(beside: FilterProtocol) -> Steps[int]:
        opening = Opening(LayerStack(STAGING, SMALL, lambda: 0.0), beside.events, fills=True)
        protocol = FilterProtocol(opening)
        protocol.lifecycle = kind(opening)
        try:
            for member in MEMBERS:
                yield from add(protocol, [member])
        except ReplacedError:
            yield [DeleteUnusedHash(STAGING, opening.stack.text)]
            yield [delete(key, layer.identity.epoch) for layer in opening.stack.layers for key in layer.shard_keys]
        return 0

    return work


def ending(_: FilterProtocol) -> Steps[int]:
    """Another process finishes or deletes the unfinished filter."""
    snapshot = yield from one(Load(STAGING))
    yield [DeleteUnusedHash(STAGING, snapshot.fields.get(filter_keys.FILTER_FIELD, ""))]
    return 0


def crawling(protocol: FilterProtocol) -> Steps[int]:
    """A worker of a crawl creates a filter at the key, and adds the item twice."""
    first = yield from joining(protocol)
    return first + (yield from joining(protocol))


def search(works: Sequence[Work], **options: Any) -> Search:
    return Search(SMALL, works, before=[(0.0, staged)], credit=0, **options)


@pytest.mark.parametrize("crashes", [0, 1])
@pytest.mark.parametrize("scattered", [False, True], ids=["one server", "cluster"])
def test_a_crawl_begins_meanwhile(scattered: bool, crashes: int) -> None:
    """The item is new once: the crawl loses no shard, even if the other process is killed."""
    results = search([filling(), crawling], scattered=scattered, crashes=crashes).results()
    assert {new for _, new in results} - {None} == {1}


def test_nothing_comes_back() -> None:
    """Once the hash is gone, the worker that fills the filter creates no other one, and leaves no late write."""
    left = search([filling(), ending], whole=True).left_behind(0.0)
    assert all(STAGING not in keys for keys in left)


class Replacing(Lifecycle):
    """Replaces shards of any epoch, as a worker of a crawl does."""

    def _leftovers(self, missing: Sequence[str]) -> Steps[dict[str, int | None]]:
        return dict.fromkeys(missing)
        yield


@pytest.mark.parametrize(
    "mistake",
    [filling(Replacing), filling(delete=lambda key, _: DeleteShard(key))],
    ids=["replaces a shard in use", "deletes a shard in use"],
)
def test_the_search_can_fail(mistake: Work) -> None:
    """Without the epoch, the crawl loses its shard, and the item is new twice."""
    assert max(winners(search([mistake, crawling]))) > 1
