"""What there is to know of a filter: what it is, what it holds, and what this process did with it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerInfo:
    """One layer: what it may hold and what it holds.

    `capacity` items at `error_rate`, in `shards` strings of together `bits` and `memory_bytes`, with `hashes` bits an
    item; `fill_ratio` (0 to 1), `estimated_count` and `estimated_error_rate` are read from the bits; `created` is Unix
    time in seconds.
    """

    capacity: int
    error_rate: float
    shards: int
    bits: int
    hashes: int
    memory_bytes: int
    fill_ratio: float
    estimated_count: int
    estimated_error_rate: float
    created: float


@dataclass(frozen=True)
class FilterInfo:
    """A filter: what was asked of it (`capacity`, `error_rate`) and what it is and holds, over all its `layers`.

    Counts and sizes are sums; `hashes` is that of the newest layer; `by_layer` has each, oldest first.
    """

    capacity: int
    error_rate: float
    layers: int
    shards: int
    bits: int
    hashes: int
    memory_bytes: int
    fill_ratio: float
    estimated_count: int
    estimated_error_rate: float
    by_layer: tuple[LayerInfo, ...]


@dataclass
class Counters:
    """What this process has done: numbers of `added` items, of those that were `ambiguous` and taken for new, of
    `cache_hits` and of `round_trips` to the store, and the sum of the error rate over the additions, which is how many
    new items it may have called seen."""

    added: int = 0
    ambiguous: int = 0
    cache_hits: int = 0
    round_trips: int = 0
    expected_false_positives: float = 0.0
