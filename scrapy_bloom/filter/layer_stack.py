"""The layers of a filter as one worker knows them: state only, no steps."""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.credit import Credits
from scrapy_bloom.filter.layer import Identity, Layer
from scrapy_bloom.filter.parameters import FilterParameters, has_counters
from scrapy_bloom.storage import shard_header
from scrapy_bloom.storage.counters import granted_of
from scrapy_bloom.storage.filter_hash import Snapshot

# A worker that was silent for so many seconds looks whether the filter is still there before it adds.
_STALE_SECONDS = 5.0


class ShardState(Enum):
    """The state of a shard by its header: ours and open for additions, ours and sealed, or not ours."""

    LIVE = "live"
    SEALED = "sealed"
    FOREIGN = "foreign"


class LayerStack:
    """The layers of the filter at `key`, oldest first, and what a worker knows of each.

    `monotonic` gives seconds that never go back. What time it is, only the server says.
    """

    def __init__(self, key: str, parameters: FilterParameters, monotonic: Callable[[], float]) -> None:
        self.key = key
        self.parameters = parameters
        self.credits = Credits(monotonic)
        self.layers: list[Layer] = []
        self.identity: Identity | None = None
        # The stored parameters: what is done to a hash of another text is done to another filter.
        self.text = ""
        self.next_index = 0
        # The largest share of its capacity of which a filter that may not grow has warned.
        self.warned_share = 0.0
        # The identities in the headers of this filter's shards.
        self._states: dict[int, ShardState] = {}
        self._monotonic = monotonic
        self._last_contact = -math.inf
        self._deadline = math.inf
        # Items in each layer: the room that its counter gave away or, where there is no counter, what its bits show.
        self._granted: dict[int, int] = {}
        self._counted: dict[int, int] = {}

    @property
    def newest(self) -> Layer:
        """The layer that additions go to."""
        return self.layers[-1]

    @property
    def error_rate(self) -> float:
        """The error rate of the filter as it is now, at most."""
        # Each addition asks for it: a generator costs as much as the formula.
        total = 0.0
        for layer in self.layers:
            total += layer.error_rate_with(self.count(layer))
        return min(1.0, total)

    @property
    def error_bound(self) -> float:
        """The most that the error rates of these layers can be together, however their bits fell."""
        return sum(layer.error_bound(self.count(layer)) for layer in self.layers)

    @property
    def needs_rotation(self) -> bool:
        """True once a layer's time is over."""
        return self._deadline < math.inf and self._monotonic() >= self._deadline

    @property
    def is_stale(self) -> bool:
        """True once it is some seconds ago that this worker saw that the filter is still there."""
        return bool(self.layers) and self._monotonic() - self._last_contact > _STALE_SECONDS

    def is_over(self, now: float) -> bool:
        """Return whether the time of all that this worker knows of the filter is over, so that nothing is lost with it.

        `now` is the server's time. A filter without a TTL is never over.
        """
        return bool(self.parameters.ttl) and all(self.parameters.has_ended(layer, now) for layer in self.layers)

    def note_contact(self) -> None:
        """Remember that the filter was seen now."""
        self._last_contact = self._monotonic()

    def newer_than(self, index: int) -> list[Layer]:
        """Return the layers newer than the one with this index."""
        return [layer for layer in self.layers if layer.index > index]

    def count(self, layer: Layer) -> int:
        """Return how many items a layer holds, as far as this worker knows; room given to others counts as used."""
        granted = self._granted.get(layer.index)
        if granted is None:
            return self._counted.get(layer.index, 0)
        is_newest = layer is self.newest or layer == self.newest
        return max(0, granted - self.credits.held(layer)) if is_newest else granted

    def granted(self, layer: Layer) -> int:
        """Return how much room the counter of a layer gave away; 0 where it has none."""
        return self._granted.get(layer.index, 0)

    def has_counter(self, layer: Layer) -> bool:
        """Return whether a layer has a counter, so that all of its shards were made."""
        return layer.index in self._granted

    def is_made(self, layer: Layer) -> bool:
        """Return whether all shards of a layer were made, as far as that is stored: format 1 tells nothing."""
        return self.has_counter(layer) or not has_counters(self.text)

    def note_granted(self, layer: Layer, granted: int) -> None:
        """Remember how much room the counter of a layer has given away by now."""
        self._granted[layer.index] = granted

    def uncounted(self) -> list[Layer]:
        """Return the layers without a counter whose bits nobody has counted yet."""
        return [layer for layer in self.layers if not self.has_counter(layer) and layer.index not in self._counted]

    def note_counted(self, layer: Layer, count: int) -> None:
        """Remember how many items the bits of a layer show."""
        self._counted[layer.index] = count

    def state_of(self, header: int) -> ShardState:
        """Return what a shard's header says."""
        return self._states.get(shard_header.identity(header), ShardState.FOREIGN)

    def state_of_identity(self, identity: int) -> ShardState:
        """Return what the identity in a shard's header says."""
        return self._states.get(identity, ShardState.FOREIGN)

    def adopt(self, identity: Identity | None, alive: Sequence[Layer], snapshot: Snapshot) -> None:
        """Go on with the layers that a snapshot showed."""
        if identity != self.identity:
            self._counted = {}
        self.identity, self.layers = identity, list(alive)
        self._states = _states_of(identity)
        self.note_contact()
        self._granted = _read_counters(self.key, self.layers, snapshot.fields)
        self._deadline = self._deadline_after(snapshot.now)

    def void(self) -> None:
        """Know nothing any more: the filter was cleared."""
        self.identity, self.layers, self._states = None, [], {}
        self._deadline = math.inf
        self.credits.void()

    def _deadline_after(self, now: float) -> float:
        """Return when the first layer's life or the newest one's generation ends; `now` is the server's time."""
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
