"""A look at one item in a stored filter: where its bits are, and what they say. Nothing is added."""

from dataclasses import dataclass

from scrapy_bloom.filter.steps import Steps
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.storage import layout
from scrapy_bloom.storage.bits import LookUpBits


@dataclass(frozen=True)
class Place:
    """The place of an item in one layer: the key of its shard, and whether its bits are all set there.

    It is lost where the string there is not this filter's; then nothing is known of the item.
    """

    layer: int
    key: str
    is_seen: bool
    is_lost: bool


def look_up(stored: StoredFilter, item: bytes) -> Steps[list[Place]]:
    """Return the places of an item, oldest layer first."""
    located = [layer.locate(item) for layer in stored.layers]
    checks = [LookUpBits(key, positions) for key, positions in located]
    replies = (yield checks) if checks else []
    places = []
    for layer, check, (header, are_set) in zip(stored.layers, checks, replies, strict=True):
        is_lost = not layout.is_of(layout.identity(header), layer.identity.epoch)
        places.append(Place(layer.index, check.key, are_set and not is_lost, is_lost))
    return places
