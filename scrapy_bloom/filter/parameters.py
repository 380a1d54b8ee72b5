"""The parameters that all workers of a filter share, and the layers they define."""

import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import InitVar, asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

from scrapy_bloom import options
from scrapy_bloom._format import as_number
from scrapy_bloom.errors import SETTING_NAMES, ConfigError, MismatchError, Names, WrongTypeError
from scrapy_bloom.filter import hashing
from scrapy_bloom.filter.layer import DAMAGED, NO_IDENTITY, Identity, Layer
from scrapy_bloom.filter.sizing import (
    MAX_LAYER_BYTES,
    MAX_SHARD_BYTES,
    LayerSize,
    bits_needed,
    choose_hashes,
    roomy_size,
    size_for,
)
from scrapy_bloom.storage import shard_header

# Format 2 has a hash key, and a counter for each layer; format 1 has neither. In format 3 the shards spread over a
# cluster by their names.
FORMAT = 3
_PLAIN_FORMAT, _SPREAD_FORMAT = 2, 3
# With a TTL, a generation lasts a fifth of it, and a layer is deleted 1.25 times the TTL after its
# creation. Its last items were then remembered for 1.05 times the TTL. The margin of a twentieth
# covers a worker that was stopped between reading the clock and adding.
GENERATIONS = 5
LIFETIME = 1.25
# So many TTLs after its creation a layer expires in the server, if no worker has deleted it.
EXPIRY = 1.5
# The room of a layer beyond its capacity. It makes up for the unused credit of idle or killed
# workers, so that a filter of the right size does not grow.
MARGIN = 1 / 64
# A filter of format 1 may be overfull: its next layer gets this share of the error rate all the
# same.
_MIN_SHARE_LEFT = 2.0**-20


def has_counters(text: str) -> bool:
    """Return whether a stored filter has a counter for each layer."""
    return bool(json.loads(text)["format"] > 1)


def copied(text: str, epoch: int, *, is_spread: bool) -> str:
    """Return the description of a copy of the filter that `text` describes; format 1 has no shards that spread."""
    stored = json.loads(text)
    if has_counters(text):
        stored["format"] = _SPREAD_FORMAT if is_spread else _PLAIN_FORMAT
    return json.dumps({**stored, "epoch": epoch})


class Difference(NamedTuple):
    """A parameter that is `mine` in this worker and `theirs` in a stored filter."""

    name: str
    mine: object
    theirs: object

    def __str__(self) -> str:
        return f"{self.name} = {self.mine!r} here, {self.theirs!r} in the stored filter"


@dataclass(frozen=True)
class FilterParameters:
    """The parameters that all workers of a filter share. Invalid values are refused.

    Attributes:
        capacity: items of the whole crawl, or of one `ttl`.
        error_rate: share of new items that may be reported as seen over the whole filter, between 0
            and 1.
        expansion: growth factor of the layers' capacities; 0: the filter never grows.
        ttl: minimum seconds for which an item is remembered; None: for ever.
        fingerprint: name of the items' fingerprint scheme.
        hash: name of the hash scheme.
        prefix: prefix of the settings' names in errors; without it, errors name arguments. Not
            stored.
    """

    capacity: int = options.CAPACITY.default
    error_rate: float = options.ERROR_RATE.default
    expansion: int = options.EXPANSION.default
    ttl: float | None = None
    fingerprint: str = "bytes"
    hash: str = field(default=hashing.SCHEME, init=False)
    prefix: InitVar[str] = ""

    def __post_init__(self, prefix: str) -> None:
        names = {}
        for argument, value in self.arguments().items():
            if argument in options.BY_NAME:
                name = names[argument] = prefix + argument.upper() if prefix else argument
                object.__setattr__(self, argument, options.BY_NAME[argument].read(name, value))
        capacity, share = self._first_capacity, self._share(self.error_rate)
        needed = bits_needed(capacity, share, choose_hashes(capacity, share)) // 8
        if needed > MAX_LAYER_BYTES:
            raise ConfigError(
                f"{names['capacity']} = {self.capacity!r}: with {names['error_rate']} = {as_number(self.error_rate)} "
                f"such a filter would take {needed / 1e9:,.0f} GB; the limit is {MAX_LAYER_BYTES / 1e9:.0f} GB. Set "
                "the expected number of different requests, or a larger error rate"
            )

    def arguments(self) -> dict[str, Any]:
        """Return the parameters as arguments of `BloomFilter`."""
        return {name: getattr(self, name) for name in _argument_names(self)}

    def differences(self, other: "FilterParameters") -> list[Difference]:
        """Return the parameters that differ from those of `other`."""
        return _differences(self, asdict(other))

    @property
    def memory_bytes(self) -> int:
        """Bytes that the server allocates for a new filter."""
        return self.first_layer("", NO_IDENTITY, 0, 0.0).size.memory_bytes

    @property
    def generation(self) -> float | None:
        """Seconds after which the newest layer is followed by another; None: never."""
        return self.ttl and self.ttl / GENERATIONS

    @property
    def lifetime(self) -> float:
        """Seconds after its creation at which a layer expires."""
        return self.ttl * LIFETIME if self.ttl else float("inf")

    def has_ended(self, layer: Layer, now: float) -> bool:
        """Return whether a layer has expired; the next rotation deletes it."""
        return now >= layer.created + self.lifetime

    def expires_at(self, began: float) -> int | None:
        """Return the expiry in the server of data created at `began`; None: never.

        Unix seconds in, Unix milliseconds out. Workers are done with a layer before it expires in
        the server.
        """
        return math.ceil((began + self.ttl * EXPIRY) * 1000) if self.ttl else None

    def to_json(self, randbelow: Callable[[int], int] = secrets.randbelow, *, is_spread: bool = False) -> str:
        """Return the JSON of a new filter, with its own epoch and hash key."""
        epoch = randbelow((1 << shard_header.EPOCH_BITS) - 1) + 1
        key = randbelow(1 << hashing.KEY_BITS)
        written_as = _SPREAD_FORMAT if is_spread else _PLAIN_FORMAT
        return json.dumps({"format": written_as, "epoch": epoch, "key": f"{key:016x}", **asdict(self)})

    @classmethod
    def from_json(cls, key: str, text: str) -> Self:
        """Return the parameters of a stored filter.

        Raises:
            MismatchError: the filter has a newer format.
            WrongTypeError: the text describes no filter.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            _refuse_newer(key, int(stored["format"]))
            return cls(**{name: stored[name] for name in _argument_names(cls)})
        except DAMAGED:  # includes an invalid value
            raise _not_a_filter(key) from None

    def verify_stored(self, key: str, text: str, names: Names = SETTING_NAMES) -> Identity:
        """Return the identity of a stored filter; errors use the user's `names`.

        Raises:
            MismatchError: the filter has other parameters, or a newer format.
            WrongTypeError: the text describes no filter.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            written_as, epoch = int(stored["format"]), int(stored["epoch"])
            # Format 1 had no key: 0 gives its positions.
            hash_key = int(stored.get("key", "0"), 16)
        except DAMAGED:
            raise _not_a_filter(key) from None
        _refuse_newer(key, written_as)
        differences = _differences(self, stored)
        if differences:
            raise MismatchError(
                f"the filter at {key!r} was made with other parameters: {'; '.join(map(str, differences))}. Use the "
                f"stored values, use another key, or start anew with {names.anew}"
            )
        return Identity(epoch, hash_key, written_as >= _SPREAD_FORMAT)

    def first_layer(
        self, key: str, identity: Identity, index: int, now: float, max_shard_bytes: int = MAX_SHARD_BYTES
    ) -> Layer:
        """Return the first layer of a filter without live layers."""
        capacity, share = self._first_capacity, self._share(self.error_rate)
        return Layer(key, index, identity, *self._size(capacity, share, max_shard_bytes), now)

    def next_layer(
        self,
        newest: Layer,
        error_rate: float,
        now: float,
        max_shard_bytes: int = MAX_SHARD_BYTES,
        *,
        expansion: int | None = None,
    ) -> Layer:
        """Return the layer after `newest`, given the live layers' total `error_rate`.

        It is `expansion` times as large, by default as often as the filter's layers grow.
        """
        is_generation = not self.expansion or self.has_expired_generation(newest, now)
        capacity = self._first_capacity if is_generation else newest.capacity * (expansion or self.expansion)
        left = max(self.error_rate - error_rate, self.error_rate * _MIN_SHARE_LEFT)
        share = self._share(left)
        sized = self._size(capacity, share, max_shard_bytes)
        return Layer(newest.key, newest.index + 1, newest.identity, *sized, now)

    def _size(self, capacity: int, error_rate: float, max_shard_bytes: int) -> tuple[int, float, LayerSize]:
        """Return the capacity, or less if the layer would be too large, its error rate and its size.

        In a filter that may grow the layer has room for the margin, too.
        """
        too_large = bits_needed(capacity, error_rate, choose_hashes(capacity, error_rate)) / 8 / MAX_LAYER_BYTES
        capacity = math.floor(capacity / max(1.0, too_large))
        roomy = math.ceil(capacity * (1 + MARGIN))
        if self.expansion:
            return capacity, error_rate, roomy_size(roomy, error_rate, max_shard_bytes)
        return capacity, error_rate, size_for(capacity, error_rate, max_shard_bytes)

    def _share(self, left: float) -> float:
        """Return the error rate of the next layer, a share of the rate that is `left`.

        A filter that never has another layer gives it all. Otherwise the first layer takes three
        quarters of the filter's rate, and a layer behind i full ones takes 3 / (i + 4) of the rest.
        So layer i of a filter that only grows takes `18 / ((i + 1) (i + 2) (i + 3) (i + 4))` of the
        whole. The sum over all i is 1: the filter keeps its error rate with any number of layers.

        This follows Almeida et al., "Scalable Bloom Filters", 2007, who halve the rate each time.
        Halving costs more bits in the first layer, and far more in the twentieth. Where layers hold
        little, as generations do, more of the rate is left. A layer then takes as much as an
        earlier one would.
        """
        if not self.expansion and not self.ttl:
            return left
        # That is 6 / (y^3 - y) of the whole, with y = i + 2: solved for y by a guess and Newton's
        # method.
        whole = 6 * self.error_rate / left
        y: float = whole ** (1 / 3) + whole ** (-1 / 3) / 3
        for _ in range(2):
            y -= (y**3 - y - whole) / (3 * y**2 - 1)
        return left * 3 / (y + 2)

    @property
    def _first_capacity(self) -> int:
        """Capacity of a generation's first layer: a share of the whole if it can grow."""
        return -(-self.capacity // GENERATIONS) if self.ttl and self.expansion else self.capacity

    def has_expired_generation(self, layer: Layer, now: float) -> bool:
        """Return whether a layer's generation has ended."""
        return self.generation is not None and now >= layer.created + self.generation


def _argument_names(parameters: FilterParameters | type[FilterParameters]) -> list[str]:
    return [each.name for each in fields(parameters) if each.init]


def _differences(wanted: FilterParameters, stored: Mapping[str, Any]) -> list[Difference]:
    values = asdict(wanted).items()
    return [Difference(name, mine, stored.get(name)) for name, mine in values if stored.get(name) != mine]


def _refuse_newer(key: str, written_as: int) -> None:
    if written_as > FORMAT:
        raise MismatchError(
            f"the filter at {key!r} has format {written_as}, and this scrapy-bloom knows formats up to {FORMAT}: "
            "upgrade scrapy-bloom here, or use another key"
        )


def _not_a_filter(key: str) -> WrongTypeError:
    return WrongTypeError(f"the key {key!r} holds a hash that is not a filter: use another key")
