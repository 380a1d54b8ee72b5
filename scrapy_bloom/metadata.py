"""What is stored beside the bits: the plan that every worker must agree on, and the layers there are, as JSON."""

import json
import math
import secrets
from dataclasses import InitVar, asdict, dataclass, field
from typing import Any, NamedTuple, Self

from scrapy_bloom import hashing, header, keys, options
from scrapy_bloom.errors import ConfigError, MismatchError, WrongTypeError
from scrapy_bloom.sizing import (
    MAX_LAYER_BYTES,
    MAX_SHARD_BYTES,
    Size,
    bits_needed,
    choose_hashes,
    error_rate_at,
    most_items,
    offered_items,
    roomy_size,
    size_for,
    spread_of_errors,
)

# Format 2 has the key of the hash, and a counter for each layer; format 1 has neither.
FORMAT = 2
# With a time to live a new generation begins after each fifth of it, and a layer is deleted 1.25 times the TTL after
# its creation: what was added last is then still remembered for 1.05 times the TTL, which leaves a twentieth for a
# worker that was stopped between its look at the clock and its addition.
GENERATIONS = 5
LIFETIME = 1.25
# A layer has room for so much more than its capacity, for what idle or killed workers asked for and did not use: a
# filter that was sized right does not grow.
MARGIN = 1 / 64
# A filter of format 1 may hold more than it should; this part of its error rate counts as left all the same.
_LEAST_LEFT = 2.0**-20
# Below this as many items were new to a layer as were offered to it, but for less than that part of them.
_NEGLIGIBLE_ERROR_RATE = 1e-3


class Identity(NamedTuple):
    """What tells a filter from others at the same key: its epoch, and the secret key of its hash."""

    epoch: int
    hash_key: int

    def __repr__(self) -> str:
        return f"Identity(epoch={self.epoch})"


# What reading a damaged text may raise.
_DAMAGED = (ValueError, KeyError, TypeError, OverflowError, AttributeError, RecursionError)
# More than any layer has, in what can be stored.
_MOST_HASHES = 1 << 12
_MOST_SHARDS = 1 << 12

# That of a filter which is not made yet.
NO_IDENTITY = Identity(0, 0)


def has_counters(text: str) -> bool:
    """Whether a stored filter has a counter for each layer."""
    return bool(json.loads(text)["format"] > 1)


@dataclass(frozen=True)
class Layer:
    """One layer of a filter: `index` (also in the seeds of its hashes), what it holds, when it began (Unix seconds)."""

    key: str
    index: int
    identity: Identity
    capacity: int
    error_rate: float
    size: Size
    created: float

    @property
    def shard_keys(self) -> list[str]:
        """The keys of its shards."""
        return [keys.shard_key(self.key, self.index, shard) for shard in range(self.size.shards)]

    @property
    def field(self) -> str:
        """The field of the filter's hash that describes it."""
        return keys.layer_field(self.index)

    @property
    def credit_field(self) -> str:
        """The field of the filter's hash that counts the room of it that was given away."""
        return keys.credit_field(self.index, self.identity.epoch)

    @property
    def most_items(self) -> int:
        """The most items with which it keeps its error rate: all room that there is to give away."""
        return most_items(self.size, self.error_rate)

    def error_rate_with(self, new: float) -> float:
        """Its error rate after so many items were new to it."""
        error_rate = error_rate_at(self.size, new)
        if error_rate < _NEGLIGIBLE_ERROR_RATE:
            return error_rate
        return error_rate_at(self.size, offered_items(self.size, new))

    def error_bound(self, new: float) -> float:
        """The most that its error rate can be with so many items, however its bits fell."""
        return self.error_rate_with(new) * spread_of_errors(self.size)

    def locate(self, item: bytes) -> tuple[str, list[int]]:
        """The key of an item's shard and the item's positions there."""
        size = self.size
        shard, positions = hashing.locate(
            item,
            self.index,
            hashes=size.hashes,
            shards=size.shards,
            shard_bits=size.shard_bits,
            key=self.identity.hash_key,
        )
        return keys.shard_key(self.key, self.index, shard), positions

    def dump(self) -> str:
        """The JSON that is stored."""
        stored = {
            "epoch": self.identity.epoch,
            "capacity": self.capacity,
            "error_rate": self.error_rate,
            "hashes": self.size.hashes,
            "bits": self.size.bits,
            "shards": self.size.shards,
            "created": self.created,
        }
        return json.dumps(stored)

    @classmethod
    def parse(cls, key: str, index: int, text: str, hash_key: int) -> Self:
        """The layer that `dump` wrote; raises WrongTypeError for anything else."""
        try:
            stored = json.loads(text)
            size = Size(int(stored["hashes"]), int(stored["bits"]), int(stored["shards"]))
            identity = Identity(int(stored["epoch"]), hash_key)
            capacity, error_rate, created = int(stored["capacity"]), float(stored["error_rate"]), stored["created"]
            layer = cls(key, index, identity, capacity, error_rate, size, float(created))
        except _DAMAGED:
            layer = None
        if layer is None or not layer._is_possible:
            raise WrongTypeError(f"layer {index} of the filter at {key!r} cannot be read: use another key")
        return layer

    @property
    def _is_possible(self) -> bool:
        """Whether its numbers can be those of a layer: damaged ones must not make a worker ask for terabytes."""
        size = self.size
        return (
            min(size.hashes, size.shards, size.bits, self.capacity) > 0
            and 0 < self.error_rate < 1
            and size.hashes <= _MOST_HASHES
            and size.shards <= _MOST_SHARDS
            and size.bits % (8 * size.shards) == 0
            and size.shard_bytes <= MAX_SHARD_BYTES
            and size.bits // 8 <= 2 * MAX_LAYER_BYTES
        )


@dataclass(frozen=True)
class Plan:
    """What every worker of a filter must agree on; refuses values that are not allowed, by their names.

    `capacity` items (in the whole crawl, or in one time to live) at an `error_rate` in (0, 1) that bounds the whole
    filter, layers that each hold `expansion` times the one before (0: it never grows), a `ttl` in seconds or None, and
    the `fingerprint` scheme that the items come from. `prefix` stands before the names in a refusal, which are in
    capitals then: those of settings.
    """

    capacity: int = options.DEFAULT_CAPACITY
    error_rate: float = options.DEFAULT_ERROR_RATE
    expansion: int = options.DEFAULT_EXPANSION
    ttl: float | None = None
    fingerprint: str = "bytes"
    hash: str = field(default=hashing.SCHEME, init=False)
    prefix: InitVar[str] = ""

    def __post_init__(self, prefix: str) -> None:
        names = {
            name: prefix + name.upper() if prefix else name for name in ("capacity", "error_rate", "expansion", "ttl")
        }
        for field_name, name in names.items():
            object.__setattr__(self, field_name, getattr(options, field_name)(name, getattr(self, field_name)))
        capacity, share = self._first_capacity, self._share(self.error_rate)
        needed = bits_needed(capacity, share, choose_hashes(capacity, share)) // 8
        if needed > MAX_LAYER_BYTES:
            raise ConfigError(
                f"{names['capacity']} = {self.capacity!r}: with {names['error_rate']} = {self.error_rate:g} a filter "
                f"for so many would take {needed / 1e9:,.0f} GB, and at most {MAX_LAYER_BYTES / 1e9:.0f} GB are "
                "allowed; set how many different requests the crawl is expected to meet, or a larger error rate"
            )

    @property
    def memory_bytes(self) -> int:
        """Bytes that a new filter takes."""
        return self.first_layer("", NO_IDENTITY, 0, 0.0).size.memory_bytes

    @property
    def generation(self) -> float | None:
        """Seconds after which the newest layer has to make way for another; None: never."""
        return self.ttl and self.ttl / GENERATIONS

    @property
    def lifetime(self) -> float:
        """Seconds after its creation at which a layer is deleted."""
        return self.ttl * LIFETIME if self.ttl else float("inf")

    def dump(self, hash_key: int | None = None) -> str:
        """The JSON of a new filter, with an epoch of its own and, if none is given, a key of its own for its hash."""
        epoch = secrets.randbelow((1 << header.EPOCH_BITS) - 1) + 1
        key = secrets.randbits(hashing.KEY_BITS) if hash_key is None else hash_key
        return json.dumps({"format": FORMAT, "epoch": epoch, "key": f"{key:016x}", **asdict(self)})

    def agree(self, key: str, text: str) -> Identity:
        """The identity of a stored filter; raises MismatchError where it has other parameters or a newer format."""
        try:
            stored: dict[str, Any] = json.loads(text)
            written_as, epoch = int(stored["format"]), int(stored["epoch"])
            # Format 1 had no key: 0 gives its positions.
            hash_key = int(stored.get("key", "0"), 16)
        except _DAMAGED:
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
        return Identity(epoch, hash_key)

    def first_layer(self, key: str, identity: Identity, index: int, now: float) -> Layer:
        """The layer that begins a filter in which nothing is alive."""
        return self._layer(key, identity, index, self._first_capacity, self._share(self.error_rate), now)

    def next_layer(self, newest: Layer, error_rate: float, now: float) -> Layer:
        """The layer that follows those alive, whose error rates are at most `error_rate` together from now on."""
        is_generation = not self.expansion or self.is_over_age(newest, now)
        capacity = self._first_capacity if is_generation else newest.capacity * self.expansion
        left = max(self.error_rate - error_rate, self.error_rate * _LEAST_LEFT)
        share = self._share(left)
        return self._layer(newest.key, newest.identity, newest.index + 1, capacity, share, now)

    def _layer(  # noqa: PLR0917  # what a layer is stored with
        self, key: str, identity: Identity, index: int, capacity: int, error_rate: float, now: float
    ) -> Layer:
        """A layer with room for the margin where another may follow, or for less where it would be too large."""
        too_large = bits_needed(capacity, error_rate, choose_hashes(capacity, error_rate)) / 8 / MAX_LAYER_BYTES
        capacity = math.floor(capacity / max(1.0, too_large))
        roomy = math.ceil(capacity * (1 + MARGIN))
        size = roomy_size(roomy, error_rate) if self.expansion else size_for(capacity, error_rate)
        return Layer(key, index, identity, capacity, error_rate, size, now)

    def _share(self, left: float) -> float:
        """The error rate of a layer, of what the layers alive leave; all of it, where no other will follow.

        The first takes three quarters of the filter's, and the one behind i full ones 3 / (i + 4) of what is left. So
        layer i of a filter that only grows takes 18 / ((i + 1) (i + 2) (i + 3) (i + 4)) of the whole, which sums up to
        1 over all i: the filter's is kept however many there are (after Almeida et al., "Scalable Bloom Filters", 2007,
        who halve it each time: that costs more bits in the first layer, and far more in the twentieth).
        Where layers hold little, as generations do, more is left, and a layer takes as much as an earlier one would.
        """
        if not self.expansion and not self.ttl:
            return left
        # That is 6 / (y^3 - y) of the whole, with y = i + 2: solved for y by a guess and Newton's method.
        whole = 6 * self.error_rate / left
        y: float = whole ** (1 / 3) + whole ** (-1 / 3) / 3
        for _ in range(2):
            y -= (y**3 - y - whole) / (3 * y**2 - 1)
        return left * 3 / (y + 2)

    @property
    def _first_capacity(self) -> int:
        """Items of a generation's first layer: its share of the capacity where it can grow, and else all of it."""
        return -(-self.capacity // GENERATIONS) if self.ttl and self.expansion else self.capacity

    def is_over_age(self, layer: Layer, now: float) -> bool:
        """Whether a layer's generation has ended."""
        return self.generation is not None and now >= layer.created + self.generation
