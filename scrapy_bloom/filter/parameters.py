"""The parameters that every worker of a filter must agree on, stored as JSON, and the layers that follow from them."""

import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import InitVar, asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

from scrapy_bloom import options
from scrapy_bloom._names import SETTINGS, Names
from scrapy_bloom.errors import ConfigError, MismatchError, WrongTypeError
from scrapy_bloom.filter import hashing
from scrapy_bloom.filter.layer import DAMAGED, NO_IDENTITY, Identity, Layer
from scrapy_bloom.filter.sizing import MAX_LAYER_BYTES, bits_needed, choose_hashes, roomy_size, size_for
from scrapy_bloom.storage import shard_header

# Format 2 has the key of the hash, and a counter for each layer; format 1 has neither.
FORMAT = 2
# With a time to live a new generation begins after each fifth of it, and a layer is deleted 1.25 times the TTL after
# its creation: what was added last is then still remembered for 1.05 times the TTL, which leaves a twentieth for a
# worker that was stopped between its look at the clock and its addition.
GENERATIONS = 5
LIFETIME = 1.25
# So many times the TTL after its creation the server deletes a layer by itself, if no worker has done so until then.
EXPIRY = 1.5
# A layer has room for so much more than its capacity, for what idle or killed workers asked for and did not use: a
# filter that was sized right does not grow.
MARGIN = 1 / 64
# A filter of format 1 may hold more than it should; this part of its error rate counts as left all the same.
_MIN_SHARE_LEFT = 2.0**-20


def has_counters(text: str) -> bool:
    """Return whether a stored filter has a counter for each layer."""
    return bool(json.loads(text)["format"] > 1)


class Difference(NamedTuple):
    """A parameter that a worker wants as `mine`, and that a stored filter has as `theirs`."""

    name: str
    mine: object
    theirs: object

    def __str__(self) -> str:
        return f"{self.name} = {self.mine!r} here, {self.theirs!r} in the stored filter"


@dataclass(frozen=True)
class FilterParameters:
    """The parameters that every worker of a filter must agree on; values that are not allowed are refused by name.

    Attributes:
        capacity: items of the whole crawl, or of one `ttl`.
        error_rate: share of new items that may be taken for seen over the whole filter, from 0 to 1, both excluded.
        expansion: how many times as much as the one before each layer holds; 0: the filter never grows.
        ttl: seconds for which an item is remembered at least; None: for ever.
        fingerprint: name of the scheme that the items come from.
        hash: name of the scheme of the hashes.
        prefix: stands before the names in a refusal, which are in capitals then: those of settings. It is not stored.
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
                f"{names['capacity']} = {self.capacity!r}: with {names['error_rate']} = {self.error_rate:g} a filter "
                f"for so many would take {needed / 1e9:,.0f} GB, and at most {MAX_LAYER_BYTES / 1e9:.0f} GB are "
                "allowed; set how many different requests the crawl is expected to meet, or a larger error rate"
            )

    def arguments(self) -> dict[str, Any]:
        """Return the parameters by the names under which `BloomFilter` takes them."""
        return {name: getattr(self, name) for name in _argument_names(self)}

    def differences(self, other: "FilterParameters") -> list[Difference]:
        """Return the parameters that differ from those of `other`."""
        return _differences(self, asdict(other))

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

    def has_ended(self, layer: Layer, now: float) -> bool:
        """Return whether a layer's time is over, so that whoever rotates deletes it."""
        return now >= layer.created + self.lifetime

    def expires_at(self, began: float) -> int | None:
        """Return the Unix time in milliseconds at which the server deletes what began then; None: never.

        It comes after all that workers do with it: what has expired has ended before.
        """
        return math.ceil((began + self.ttl * EXPIRY) * 1000) if self.ttl else None

    def to_json(self, randbelow: Callable[[int], int] = secrets.randbelow) -> str:
        """Return the JSON of a new filter, with an epoch and a hash key of its own."""
        epoch = randbelow((1 << shard_header.EPOCH_BITS) - 1) + 1
        key = randbelow(1 << hashing.KEY_BITS)
        return json.dumps({"format": FORMAT, "epoch": epoch, "key": f"{key:016x}", **asdict(self)})

    @classmethod
    def from_json(cls, key: str, text: str) -> Self:
        """Return the parameters of a stored filter.

        Raises:
            MismatchError: it has a newer format.
            WrongTypeError: the text is not that of a filter.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            _refuse_newer(key, int(stored["format"]))
            return cls(**{name: stored[name] for name in _argument_names(cls)})
        except DAMAGED:  # also a value that is not allowed
            raise _not_a_filter(key) from None

    def verify_stored(self, key: str, text: str, names: Names = SETTINGS) -> Identity:
        """Return the identity of a stored filter; errors use the user's `names`.

        Raises:
            MismatchError: it has other parameters, or a newer format.
            WrongTypeError: the text is not that of a filter.
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
        return Identity(epoch, hash_key)

    def first_layer(self, key: str, identity: Identity, index: int, now: float) -> Layer:
        """Return the layer that begins a filter in which nothing is alive."""
        return self._layer(key, identity, index, self._first_capacity, self._share(self.error_rate), now)

    def next_layer(self, newest: Layer, error_rate: float, now: float) -> Layer:
        """Return the layer that follows those alive, whose error rates together stay at `error_rate` at most."""
        is_generation = not self.expansion or self.has_expired_generation(newest, now)
        capacity = self._first_capacity if is_generation else newest.capacity * self.expansion
        left = max(self.error_rate - error_rate, self.error_rate * _MIN_SHARE_LEFT)
        share = self._share(left)
        return self._layer(newest.key, newest.identity, newest.index + 1, capacity, share, now)

    def _layer(  # noqa: PLR0917  # what a layer is stored with
        self, key: str, identity: Identity, index: int, capacity: int, error_rate: float, now: float
    ) -> Layer:
        """Return a layer with room for the margin where another may follow, or for less where it would be too large."""
        too_large = bits_needed(capacity, error_rate, choose_hashes(capacity, error_rate)) / 8 / MAX_LAYER_BYTES
        capacity = math.floor(capacity / max(1.0, too_large))
        roomy = math.ceil(capacity * (1 + MARGIN))
        size = roomy_size(roomy, error_rate) if self.expansion else size_for(capacity, error_rate)
        return Layer(key, index, identity, capacity, error_rate, size, now)

    def _share(self, left: float) -> float:
        """Return the error rate of a layer, of what the layers alive leave; all of it, where no other will follow.

        The first takes three quarters of the filter's, and the one behind i full ones 3 / (i + 4) of what is left. So
        layer i of a filter that only grows takes `18 / ((i + 1) (i + 2) (i + 3) (i + 4))` of the whole. That sums up to
        1 over all i: the filter's error rate is kept however many there are. It is after Almeida et al., "Scalable
        Bloom Filters", 2007, who halve it each time. That costs more bits in the first layer, and far more in the
        twentieth. Where layers hold little, as generations do, more is left. A layer then takes as much as an earlier
        one would.
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
