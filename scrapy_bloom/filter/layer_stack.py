"""The layers of a filter as one worker knows them: state only, no steps."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.credit import Credits
from scrapy_bloom.filter.layer import Identity, Layer
from scrapy_bloom.filter.parameters import FilterParameters, has_counters
from scrapy_bloom.filter.placement import PLAIN, Placement
from scrapy_bloom.storage import shard_header
from scrapy_bloom.storage.counters import granted_of
from scrapy_bloom.storage.filter_hash import Snapshot
from scrapy_bloom.storage.filter_keys import prefix_of

# From this share of its capacity on, a layer that ends is followed by a larger one.
NEARLY_FULL = 7 / 8
# After so many silent seconds a worker reopens the filter before it adds.
_STALE_SECONDS = 5.0


class ShardState(Enum):
    """The state of a shard by its header: our open shard, our sealed one, or foreign."""

    LIVE = "live"
    SEALED = "sealed"
    FOREIGN = "foreign"


class LayerStack:
    """The layers of a filter, oldest first, with a worker's knowledge of each.

    `key` is that of the filter's hash, and `prefix` the beginning of the shards' keys. `monotonic`
    gives seconds that never go back. The time of day comes from the server alone. `placement` is
    that of the shards that this worker creates.
    """

    def __init__(
        self,
        key: str,
        parameters: FilterParameters,
        monotonic: Callable[[], float],
        placement: Placement = PLAIN,
    ) -> None:
        self.key = self.prefix = key
        self.parameters = parameters
        self.placement = placement
        self.credits = Credits(key, monotonic, is_unlimited=not parameters.expansion)
        self.layers: list[Layer] = []
        self.identity: Identity | None = None
        # The stored parameters. They fence writes: an operation on a hash with another text fails.
        self.text = ""
        self.next_index = 0
        # The fields of this worker's references, which every filter at the key is to have.
        self.references: set[str] = set()
        # The largest share of its capacity at which a filter that may not grow has warned.
        self.warned_share = 0.0
        self._states: dict[int, ShardState] = {}
        # The marks of forgotten items last seen in the shards, by key; all others have none.
        self._marks: dict[str, int] = {}
        self._monotonic = monotonic
        self._last_contact = -math.inf
        self._deadline = math.inf
        # Items in each layer: the room that its counter granted or, without a counter, an estimate
        # from its bits.
        self._granted: dict[int, int] = {}
        self._counted: dict[int, int] = {}

    @property
    def newest(self) -> Layer:
        """The layer that additions go to."""
        return self.layers[-1]

    def first_layer(self, identity: Identity, index: int, now: float) -> Layer:
        """Return the first layer of a filter without live layers."""
        return self.parameters.first_layer(self.prefix, identity, index, now, self.placement.max_shard_bytes)

    def layer_after(self, full: Layer, items: int, now: float) -> Layer:
        """Return the layer after `full`, which counts with at least so many items."""
        error_rate = self.error_bound(full, items)
        # A worker that restored the hash has closed the layer, however full it was.
        was_full = not self.has_counter(full) or self.granted(full) >= full.capacity * NEARLY_FULL
        expansion = self.parameters.expansion if was_full else 1
        return self.parameters.next_layer(full, error_rate, now, self.placement.max_shard_bytes, expansion=expansion)

    @property
    def error_rate(self) -> float:
        """The current error rate of the filter, at most."""
        # Computed for each addition: a generator would cost as much as the formula.
        total = 0.0
        for layer in self.layers:
            total += layer.error_rate_with(self.count(layer))
        return min(1.0, total)

    def error_bound(self, full: Layer, items: int) -> float:
        """Return the maximum of the layers' error rates together, however their bits fell.

        The layer that is `full` counts with at least so many items.
        """
        counts = (max(self.count(layer), items if layer == full else 0) for layer in self.layers)
        return sum(layer.error_bound(count) for layer, count in zip(self.layers, counts, strict=True))

    @property
    def needs_rotation(self) -> bool:
        """True once a layer has expired or a generation has ended."""
        return self._deadline < math.inf and self._monotonic() >= self._deadline

    @property
    def is_stale(self) -> bool:
        """True if this worker has not seen the filter for some seconds."""
        return bool(self.layers) and self._monotonic() - self._last_contact > _STALE_SECONDS

    def has_expired(self, now: float) -> bool:
        """Return whether all known layers have expired; False without a TTL.

        `now` is the server's time.
        """
        return bool(self.parameters.ttl) and all(self.parameters.has_ended(layer, now) for layer in self.layers)

    def note_contact(self) -> None:
        """Note that the filter was seen now."""
        self._last_contact = self._monotonic()

    def newer_than(self, index: int) -> list[Layer]:
        """Return the layers with a higher index."""
        return [layer for layer in self.layers if layer.index > index]

    def count(self, layer: Layer) -> int:
        """Return the items in a layer; other workers' credit counts as used."""
        granted = self._granted.get(layer.index)
        if granted is None:
            return self._counted.get(layer.index, 0)
        newest = self.layers[-1]
        is_newest = layer is newest or layer == newest
        return max(0, granted - self.credits.held(layer)) if is_newest else granted

    def granted(self, layer: Layer) -> int:
        """Return the room that a layer's counter has granted; 0 without a counter."""
        return self._granted.get(layer.index, 0)

    def has_counter(self, layer: Layer) -> bool:
        """Return whether a layer has a counter, and so was created completely."""
        return layer.index in self._granted

    def is_made(self, layer: Layer) -> bool:
        """Return whether a layer was created completely; true in format 1."""
        return self.has_counter(layer) or not has_counters(self.text)

    def note_granted(self, layer: Layer, granted: int) -> None:
        """Note the room that a layer's counter has granted by now."""
        self._granted[layer.index] = granted

    def uncounted(self) -> list[Layer]:
        """Return the layers without a counter and without an estimate."""
        return [layer for layer in self.layers if not self.has_counter(layer) and layer.index not in self._counted]

    def note_counted(self, layer: Layer, count: int) -> None:
        """Note the number of items that a layer's bits show."""
        self._counted[layer.index] = count

    def state_of(self, header: int) -> ShardState:
        """Return a shard's state by its header."""
        # As `shard_header.identity` does, without a call: each check comes here.
        return self._states.get(header >> shard_header.MARK_BITS, ShardState.FOREIGN)

    def note_marks(self, headers: Iterable[tuple[str, int]]) -> bool:
        """Note the marks in the headers of shards, given with their keys; return whether one has changed."""
        marks = {key: header & shard_header.MARK for key, header in headers if header & shard_header.MARK}
        changed = marks.items() - self._marks.items()
        self._marks.update(changed)
        return bool(changed)

    def owns(self, identity: int) -> bool:
        """Return whether a shard with this identity is the filter's own."""
        return identity in self._states

    def adopt(self, identity: Identity | None, alive: Sequence[Layer], snapshot: Snapshot) -> None:
        """Take over the live layers of a snapshot."""
        if identity != self.identity:
            self._counted, self._marks = {}, {}
        self.identity, self.layers = identity, list(alive)
        self.prefix = prefix_of(self.key, snapshot.fields)
        self._states = _states_of(identity)
        self.note_contact()
        self._granted = _read_counters(self.key, self.layers, snapshot.fields)
        self._deadline = self._deadline_after(snapshot.now)

    def void(self) -> None:
        """Drop everything: the filter was cleared."""
        self.identity, self.layers, self._states = None, [], {}
        self._deadline = math.inf
        self.credits.void()

    def _deadline_after(self, now: float) -> float:
        """Return when the next layer expires or the newest generation ends.

        `now` is the server's time.
        """
        generation = self.parameters.generation
        if not self.layers or generation is None:
            return math.inf
        ends = min(self.newest.created + generation, self.layers[0].created + self.parameters.lifetime)
        return self._monotonic() + ends - now


def _states_of(identity: Identity | None) -> dict[int, ShardState]:
    if identity is None:
        return {}
    return {shard_header.live(identity.epoch): ShardState.LIVE, shard_header.sealed(identity.epoch): ShardState.SEALED}


def _read_counters(key: str, layers: Sequence[Layer], fields: Mapping[str, str]) -> dict[int, int]:
    try:
        return {layer.index: granted_of(fields[layer.credit_field]) for layer in layers if layer.credit_field in fields}
    except ValueError:
        raise WrongTypeError(f"a counter of the filter at {key!r} cannot be read: use another key") from None
