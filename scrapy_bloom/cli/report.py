"""Report the stored state of a filter, its pace, and the Prometheus metrics of a filter and its queues."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.describe import FilterInfo, describe_layers
from scrapy_bloom.filter.stored_filter import StoredFilter, inspect_forgotten, read
from scrapy_bloom.queue.inspection import QueueState
from scrapy_bloom.storage.forgotten import NOTHING, ForgottenSet
from scrapy_bloom.storage.operation import Steps
from scrapy_bloom.transport.slots import owner_of

# The memory of an item in the set, with a fingerprint of 40 digits.
_BYTES_AN_ITEM = 160


@dataclass(frozen=True)
class FilterReport:
    """A stored filter, the statistics of its bits, and its forgotten items.

    Without layers, `info` describes an empty filter. A filter that has lost its forgotten items begins anew.
    """

    stored: StoredFilter
    info: FilterInfo
    forgotten: ForgottenSet = NOTHING
    has_lost_forgotten: bool = False

    @property
    def has_layers(self) -> bool:
        """True after the first addition."""
        return bool(self.stored.layers)

    @property
    def ages(self) -> list[float]:
        """The age of each layer in seconds, oldest first."""
        return [max(0.0, self.stored.now - layer.created) for layer in self.stored.layers]

    @property
    def forgotten_bytes(self) -> int:
        """The memory of the forgotten items, estimated if the server tells none."""
        return self.forgotten.memory_bytes or _BYTES_AN_ITEM * self.forgotten.items

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it, with the names of `FilterInfo`."""
        described = asdict(self.info)
        layers = described.pop("by_layer")
        for layer, age in zip(layers, self.ages, strict=False):
            layer["age"] = age
        parameters = self.stored.parameters
        return {
            **described,
            "is_new": not self.has_layers,
            "expansion": parameters.expansion,
            "ttl": parameters.ttl,
            "fingerprint": parameters.fingerprint,
            "age": max(self.ages, default=0.0),
            "forgotten": self.forgotten.items,
            "forgotten_bytes": self.forgotten_bytes,
            "has_lost_forgotten": self.has_lost_forgotten,
            "unfinished": self.stored.unfinished,
            "users": self.stored.references,
            "by_layer": layers,
        }


@dataclass
class NodeShare:
    """The part of a filter on one node of a cluster."""

    shards: int = 0
    memory_bytes: int = 0


def shares_of_nodes(client: Any, found: FilterReport) -> dict[str, NodeShare]:
    """Return the share of each node of a cluster, by its address, in a filter."""
    shares: dict[str, NodeShare] = {}
    for layer in found.stored.layers:
        for key in layer.shard_keys:
            share = shares.setdefault(owner_of(client, key), NodeShare())
            share.shards += 1
            share.memory_bytes += layer.size.memory_bytes // layer.size.shards
    return dict(sorted(shares.items()))


def build_report(key: str) -> Steps[FilterReport | None]:
    """Return the report on the filter at a key, or None if the key is empty."""
    stored = yield from read(key)
    if stored is None:
        return None
    info = yield from describe_layers(stored.parameters, stored.layers, stored.is_made)
    if info.lost_shards:
        # A filter that was cleared meanwhile, or that deleted an expired layer, has lost nothing.
        again = yield from read(key)
        if again is None or again.layers != stored.layers:
            return (yield from build_report(key))
    return FilterReport(stored, info, *(yield from inspect_forgotten(stored)))


@dataclass(frozen=True)
class Pace:
    """The pace of a filter between two reports.

    Attributes:
        seconds: time between the reports, by the server's clock.
        per_second: new requests per second.
        seconds_left: time until the newest layer is full at this pace; None: never.
    """

    seconds: float
    per_second: float
    seconds_left: float | None


def pace_between(first: FilterReport, last: FilterReport) -> Pace | None:
    """Return the pace between two reports on the same filter, or None if no time has passed."""
    seconds = last.stored.now - first.stored.now
    if seconds <= 0:
        return None
    before, now = _counts(first), _counts(last)
    added = sum(count - before.get(layer, 0) for layer, count in now.items())
    per_second = max(0.0, added / seconds)
    newest = last.info.by_layer[-1]
    room = max(0, newest.capacity - newest.estimated_count)
    return Pace(seconds, per_second, room / per_second if per_second else None)


def _counts(found: FilterReport) -> dict[int, int]:
    """Return the estimated number of requests in each layer, by the layer's index."""
    described = zip(found.stored.layers, found.info.by_layer, strict=False)
    return {layer.index: info.estimated_count for layer, info in described}


FILTER_METRICS: dict[str, tuple[str, Callable[[FilterInfo], float]]] = {
    "scrapy_bloom_capacity": ("Distinct requests that the filter was sized for", lambda info: info.capacity),
    "scrapy_bloom_error_rate": ("Share of new requests taken for seen, at most", lambda info: info.error_rate),
    "scrapy_bloom_estimated_count": (
        "Requests in the filter, estimated from its bits",
        lambda info: info.estimated_count,
    ),
    "scrapy_bloom_estimated_error_rate": (
        "Current error rate, estimated from the bits",
        lambda info: info.estimated_error_rate,
    ),
    "scrapy_bloom_fill_ratio": ("Share of bits that are set", lambda info: info.fill_ratio),
    "scrapy_bloom_memory_bytes": ("Bytes of the filter in Redis", lambda info: info.memory_bytes),
    "scrapy_bloom_layers": ("Layers of the filter", lambda info: info.layers),
}
QUEUE_METRICS: dict[str, tuple[str, Callable[[QueueState], float]]] = {
    "scrapy_bloom_queue_waiting": ("Pending requests", lambda queue: queue.waiting),
    "scrapy_bloom_queue_dead_letters": (
        "Requests that no worker could read, or that killed too many workers",
        lambda queue: queue.dead_letters,
    ),
    "scrapy_bloom_queue_workers": ("Registered workers", lambda queue: len(queue.workers)),
    "scrapy_bloom_queue_silent_workers": (
        "Registered workers without a heartbeat for their whole lease",
        lambda queue: sum(worker.is_silent for worker in queue.workers),
    ),
    "scrapy_bloom_queue_leased": ("Requests leased by workers", lambda queue: queue.leased),
}
UP = "scrapy_bloom_exists"


def exposition(key: str, found: FilterReport | None, queues: Sequence[QueueState]) -> str:
    """Return the metrics in Prometheus' text format, labeled with the keys of `filter` and `queue`.

    Raises:
        ConfigError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415  # an optional extra
    except ImportError:
        raise ConfigError("--prometheus needs a library: pip install 'scrapy-bloom[prometheus]'") from None
    registry = CollectorRegistry()
    Gauge(UP, "1 if there is a filter at the key", ["filter"], registry=registry).labels(key).set(found is not None)
    if found is not None:
        for name, (meaning, of_filter) in FILTER_METRICS.items():
            Gauge(name, meaning, ["filter"], registry=registry).labels(key).set(of_filter(found.info))
    for name, (meaning, of_queue) in QUEUE_METRICS.items():
        gauge = Gauge(name, meaning, ["filter", "queue"], registry=registry)
        for queue in queues:
            gauge.labels(key, queue.key).set(of_queue(queue))
    return generate_latest(registry).decode()
