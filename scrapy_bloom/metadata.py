"""What is stored beside the bits: the plan that every worker must agree on, and the layers there are, as JSON."""

import json
import math
import secrets
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from scrapy_bloom import hashing, header, keys, options
from scrapy_bloom.errors import MismatchError, WrongTypeError
from scrapy_bloom.sizing import Size, size_for

FORMAT = 1
# With a time to live a new generation begins after each fifth of it, and a layer is deleted 1.25 times the TTL after
# its creation: what was added last is then still remembered for 1.05 times the TTL, which leaves a twentieth for a
# worker that was stopped between its look at the clock and its addition.
GENERATIONS = 5
LIFETIME = 1.25
# A layer counts as full this part of its items early, for the sample's error and for what others add meanwhile; it has
# room for twice as much more, so that a filter that was sized right does not grow.
MARGIN = 1 / 64
# A filter whose layers were overfilled, by very many workers at once, gives the next one this part of its error rate.
_LEAST_LEFT = 1 / 64


@dataclass(frozen=True)
class Layer:
    """One layer of a filter: `index` (also the seed of its hashes), what it holds, and when it began (Unix seconds)."""

    key: str
    index: int
    epoch: int
    capacity: int
    error_rate: float
    size: Size
    created: float

    @property
    def shard_keys(self) -> list[str]:
        """The keys of its shards."""
        return [keys.shard_key(self.key, self.index, shard) for shard in range(self.size.shards)]

    def locate(self, item: bytes) -> tuple[str, list[int]]:
        """The key of an item's shard and the item's positions there."""
        size = self.size
        shard, positions = hashing.locate(
            item, self.index, hashes=size.hashes, shards=size.shards, shard_bits=size.shard_bits
        )
        return keys.shard_key(self.key, self.index, shard), positions

    def dump(self) -> str:
        """The JSON that is stored."""
        stored = {
            "epoch": self.epoch,
            "capacity": self.capacity,
            "error_rate": self.error_rate,
            "hashes": self.size.hashes,
            "bits": self.size.bits,
            "shards": self.size.shards,
            "created": self.created,
        }
        return json.dumps(stored)

    @classmethod
    def parse(cls, key: str, index: int, text: str) -> Self:
        """The layer that `dump` wrote; raises WrongTypeError for anything else."""
        try:
            stored = json.loads(text)
            size = Size(stored["hashes"], stored["bits"], stored["shards"])
            return cls(key, index, stored["epoch"], stored["capacity"], stored["error_rate"], size, stored["created"])
        except (ValueError, KeyError, TypeError):
            raise WrongTypeError(f"layer {index} of the filter at {key!r} cannot be read: use another key") from None


@dataclass(frozen=True)
class Plan:
    """What every worker of a filter must agree on; refuses values that are not allowed, by their names.

    `capacity` items (in the whole crawl, or in one time to live) at an `error_rate` in (0, 1) that bounds the whole
    filter, layers that each hold `expansion` times the one before (0: it never grows), a `ttl` in seconds or None, and
    the `fingerprint` scheme that the items come from.
    """

    capacity: int = options.DEFAULT_CAPACITY
    error_rate: float = options.DEFAULT_ERROR_RATE
    expansion: int = options.DEFAULT_EXPANSION
    ttl: float | None = None
    fingerprint: str = "bytes"
    hash: str = field(default=hashing.SCHEME, init=False)

    def __post_init__(self) -> None:
        for name in ("capacity", "error_rate", "expansion", "ttl"):
            object.__setattr__(self, name, getattr(options, name)(name, getattr(self, name)))

    @property
    def memory_bytes(self) -> int:
        """Bytes that a new filter takes."""
        return self.first_layer("", 0, 0, 0.0).size.memory_bytes

    @property
    def generation(self) -> float | None:
        """Seconds after which the newest layer has to make way for another; None: never."""
        return self.ttl and self.ttl / GENERATIONS

    @property
    def lifetime(self) -> float:
        """Seconds after its creation at which a layer is deleted."""
        return self.ttl * LIFETIME if self.ttl else float("inf")

    def dump(self) -> str:
        """The JSON of a new filter, with an epoch of its own."""
        epoch = secrets.randbelow((1 << header.EPOCH_BITS) - 1) + 1
        return json.dumps({"format": FORMAT, "epoch": epoch, **asdict(self)})

    def agree(self, key: str, text: str) -> int:
        """The epoch of a stored filter; raises MismatchError where it was made by another plan or a newer format."""
        try:
            stored: dict[str, Any] = json.loads(text)
            written_as, epoch = int(stored["format"]), int(stored["epoch"])
        except (ValueError, KeyError, TypeError):
            raise WrongTypeError(f"the key {key!r} holds a hash that is not a filter: use another key") from None
        if written_as > FORMAT:
            raise MismatchError(
                f"the filter at {key!r} has format {written_as}, and this scrapy-bloom knows formats up to "
                f"{FORMAT}: upgrade scrapy-bloom here, or use another key"
            )
        differences = [
            f"{name} = {mine!r} here, {stored.get(name)!r} in the stored filter"
            for name, mine in asdict(self).items()
            if stored.get(name) != mine
        ]
        if differences:
            raise MismatchError(
                f"the filter at {key!r} was made with other parameters: {'; '.join(differences)}. Use the stored "
                f"values, use another key, or start anew: with SCHEDULER_FLUSH_ON_START = True, or by clear()"
            )
        return epoch

    def first_layer(self, key: str, index: int, epoch: int, now: float) -> Layer:
        """The layer that begins a filter in which nothing is alive."""
        capacity, error_rate = self._first_capacity, self._share(self.error_rate)
        return Layer(key, index, epoch, capacity, error_rate, self._size(capacity, error_rate), now)

    def next_layer(self, newest: Layer, error_rate: float, now: float) -> Layer:
        """The layer that follows those alive, whose error rates are now `error_rate` together."""
        capacity = self._first_capacity if self.is_over_age(newest, now) else newest.capacity * self.expansion
        share = self._share(max(self.error_rate - error_rate, self.error_rate * _LEAST_LEFT))
        size = self._size(capacity, share)
        return Layer(newest.key, newest.index + 1, newest.epoch, capacity, share, size, now)

    def _size(self, capacity: int, error_rate: float) -> Size:
        """The size of a layer, with room for what a filter that grows has to keep free at the end of it."""
        return size_for(math.ceil(capacity * (1 + 2 * MARGIN)) if self.expansion else capacity, error_rate)

    def _share(self, left: float) -> float:
        """The error rate of a layer: half of what is left, or all of it where no other layer will follow.

        The sum over all layers stays below the plan's (Almeida et al., "Scalable Bloom Filters", 2007).
        """
        return left / 2 if self.expansion or self.ttl else left

    @property
    def _first_capacity(self) -> int:
        """Items of a generation's first layer: its share of the capacity where it can grow, and else all of it."""
        return -(-self.capacity // GENERATIONS) if self.ttl and self.expansion else self.capacity

    def is_over_age(self, layer: Layer, now: float) -> bool:
        """Whether a layer's generation has ended."""
        return self.generation is not None and now >= layer.created + self.generation
