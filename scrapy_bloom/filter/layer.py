"""One stored layer of a filter, and estimates of its fill from samples."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter import hashing
from scrapy_bloom.filter.sizing import (
    MAX_LAYER_BYTES,
    MAX_SHARD_BYTES,
    LayerSize,
    count_of_fill,
    error_rate_at,
    max_items,
    offered_items,
    spread_of_errors,
)
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.bits import CountBits
from scrapy_bloom.storage.shard_header import HEADER_BYTES

# Below this error rate nearly all items offered to a layer were new to it; the share of the others
# is smaller still.
_NEGLIGIBLE_ERROR_RATE = 1e-3
# The errors that reading a damaged text may raise.
DAMAGED = (ValueError, KeyError, TypeError, OverflowError, AttributeError, RecursionError)
# More than any real layer has.
_MAX_HASHES = 1 << 12
MAX_SHARDS = 1 << 16


class Identity(NamedTuple):
    """The epoch and the secret hash key of a filter, unique at its key.

    If it `is_spread`, its shards spread over the slots of a cluster.
    """

    epoch: int
    hash_key: int
    is_spread: bool = False

    def __repr__(self) -> str:
        return f"Identity(epoch={self.epoch})"


# The identity of a filter that does not exist yet.
NO_IDENTITY = Identity(0, 0)


@dataclass(frozen=True)
class Layer:
    """One layer of a filter.

    Attributes:
        key: the beginning of its shards' keys, by default the key of the filter's hash.
        index: its number, from 0. It is part of the seeds of its hash functions.
        identity: the filter's identity.
        capacity: items for which it is sized.
        error_rate: its error rate when full.
        size: its bits, hash functions and shards.
        created: Unix time in seconds.
        shard_keys: the keys of its shards.
    """

    key: str
    index: int
    identity: Identity
    capacity: int
    error_rate: float
    size: LayerSize
    created: float
    # Computed once: every check reads one of them.
    shard_keys: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A damaged text may name any number; `is_possible` refuses it.
        shards = min(self.size.shards, MAX_SHARDS)
        spread_over = shards if self.identity.is_spread else None
        keys = [filter_keys.shard_key(self.key, self.index, shard, spread_over) for shard in range(shards)]
        object.__setattr__(self, "shard_keys", keys)

    @property
    def field(self) -> str:
        """The field of the filter's hash that describes the layer."""
        return filter_keys.layer_field(self.index)

    @property
    def credit_field(self) -> str:
        """The field of the filter's hash that counts the granted room."""
        return filter_keys.credit_field(self.index, self.identity.epoch)

    @property
    def max_items(self) -> int:
        """The room that its counter may grant: more items would exceed its error rate."""
        return max_items(self.size, self.error_rate)

    def error_rate_with(self, new: float) -> float:
        """Return its error rate once `new` items were new to it."""
        error_rate = error_rate_at(self.size, new)
        if error_rate < _NEGLIGIBLE_ERROR_RATE:
            return error_rate
        return error_rate_at(self.size, offered_items(self.size, new))

    def error_bound(self, new: float) -> float:
        """Return the maximum of its error rate with `new` items, however its bits fell."""
        return self.error_rate_with(new) * spread_of_errors(self.size)

    def locate(self, item: bytes) -> tuple[str, list[int]]:
        """Return the key of an item's shard and the item's positions there."""
        size = self.size
        shard, positions = hashing.locate(
            item,
            self.index,
            hashes=size.hashes,
            shards=size.shards,
            # As `size.shard_bits`, without a call: each check comes here.
            shard_bits=size.bits // size.shards,
            key=self.identity.hash_key,
        )
        return self.shard_keys[shard], positions

    def to_json(self) -> str:
        """Return the stored JSON."""
        stored = {
            "epoch": self.identity.epoch,
            "capacity": self.capacity,
            "error_rate": self.error_rate,
            "hashes": self.size.hashes,
            "bits": self.size.bits,
            "shards": self.size.shards,
            "created": self.created,
        }
        # Without it the text is that of format 2.
        return json.dumps(stored | ({"spread": True} if self.identity.is_spread else {}))

    @classmethod
    def from_json(cls, key: str, index: int, text: str, hash_key: int) -> Self:
        """Return the layer from its stored JSON.

        Raises:
            WrongTypeError: the text describes no layer.
        """
        try:
            stored = json.loads(text)
            size = LayerSize(int(stored["hashes"]), int(stored["bits"]), int(stored["shards"]))
            identity = Identity(int(stored["epoch"]), hash_key, bool(stored.get("spread")))
            capacity, error_rate, created = int(stored["capacity"]), float(stored["error_rate"]), stored["created"]
            layer = cls(key, index, identity, capacity, error_rate, size, float(created))
        except DAMAGED:
            layer = None
        if layer is None or not layer.is_possible:
            raise WrongTypeError(f"layer {index} of the filter at {key!r} cannot be read: use another key")
        return layer

    @property
    def is_possible(self) -> bool:
        """True if its numbers are plausible.

        A damaged text must not make a worker allocate terabytes.
        """
        size = self.size
        return (
            min(size.hashes, size.shards, size.bits, self.capacity) > 0
            and 0 < self.error_rate < 1
            and size.hashes <= _MAX_HASHES
            and size.shards <= MAX_SHARDS
            and size.bits % (8 * size.shards) == 0
            and size.shard_bytes <= MAX_SHARD_BYTES
            and size.bits // 8 <= 2 * MAX_LAYER_BYTES
        )


# A server counts 64 KB in 0.1 to 0.2 ms. At half full they give the items within 0.2 % (one
# standard deviation).
_SAMPLE_BYTES = 64 * 1024


def sample_bits(layer: Layer) -> list[CountBits]:
    """Return the operations that count the ones at the start of each shard."""
    end = min(HEADER_BYTES + _SAMPLE_BYTES, layer.size.shard_bytes) - 1
    return [CountBits(key, HEADER_BYTES, end) for key in layer.shard_keys]


def sampled_fill(operations: Sequence[CountBits], ones: Sequence[int]) -> float:
    """Return the fill ratio from samples."""
    counted = sum(8 * (sample.end - sample.start + 1) for sample in operations)
    return sum(ones) / counted


def sampled_count(layer: Layer, operations: Sequence[CountBits], ones: Sequence[int]) -> int:
    """Return the number of items in a layer from samples."""
    return count_of_fill(sampled_fill(operations, ones), layer.size)
