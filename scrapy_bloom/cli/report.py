"""The figures of a filter and its queues: as JSON, as Prometheus' metrics, and as a pace."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.queue.inspection import QueueState


def as_dict(found: StoredFilter) -> dict[str, Any]:
    """Return the figures of a filter, with the names of `FilterInfo`. Without a TTL no layer has an age."""
    described, parameters = asdict(found.info), found.parameters
    for layer in described["by_layer"]:
        layer["age"] = max(0.0, found.now - layer["created"]) if layer["created"] else None
        layer["created"] = layer["created"] or None
    return {
        **described,
        "is_new": found.is_empty,
        "expansion": parameters.expansion,
        "ttl": parameters.ttl,
        "fingerprint": parameters.fingerprint,
        "unfinished": found.unfinished,
        "age": described["by_layer"][0]["age"],
    }


@dataclass(frozen=True)
class Pace:
    """The pace of a filter between two readings.

    Attributes:
        seconds: time between the readings, by the server's clock.
        per_second: new requests per second.
        seconds_left: time until the newest layer is full at this pace; None: never.
    """

    seconds: float
    per_second: float
    seconds_left: float | None


def pace_between(first: StoredFilter, last: StoredFilter) -> Pace | None:
    """Return the pace between two readings of the same filter, or None if no time has passed."""
    seconds = last.now - first.now
    if seconds <= 0:
        return None
    # Layers of a generation that has ended are gone.
    added = sum((_by_generation(last) - _by_generation(first)).values())
    newest = last.info.by_layer[-1]
    room = max(0, newest.capacity - newest.count)
    return Pace(seconds, added / seconds, room * seconds / added if added else None)


def _by_generation(found: StoredFilter) -> Counter[float]:
    counts: Counter[float] = Counter()
    for layer in found.info.by_layer:
        counts[layer.created] += layer.count
    return counts


# The figures by their names in `FilterInfo` and `QueueState`, and their meanings.
_FILTER_FIGURES = {
    "capacity": "Distinct requests that the filter was sized for",
    "error_rate": "Share of new requests taken for seen, at most",
    "count": "Requests in the filter",
    "current_error_rate": "Share of new requests taken for seen now",
    "fill_ratio": "Share of bits that are set",
    "memory_bytes": "Bytes of the filter in Redis",
    "layers": "Layers of the filter",
}
_QUEUE_FIGURES = {
    "waiting": "Pending requests",
    "dead_letters": "Requests that no worker could read, or that killed too many workers",
    "failed": "Failed requests that are kept for the next run",
    "workers": "Registered workers",
    "silent_workers": "Registered workers without a heartbeat for their whole lease",
    "leased": "Requests leased by workers",
}
FILTER_METRICS = {f"scrapy_bloom_{name}": meaning for name, meaning in _FILTER_FIGURES.items()}
QUEUE_METRICS = {f"scrapy_bloom_queue_{name}": meaning for name, meaning in _QUEUE_FIGURES.items()}
UP = "scrapy_bloom_exists"


def exposition(key: str, found: StoredFilter | None, queues: Sequence[QueueState]) -> str:
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
    for figure, (name, meaning) in zip(_FILTER_FIGURES, FILTER_METRICS.items(), strict=True):
        if found is not None:
            Gauge(name, meaning, ["filter"], registry=registry).labels(key).set(getattr(found.info, figure))
    for figure, (name, meaning) in zip(_QUEUE_FIGURES, QUEUE_METRICS.items(), strict=True):
        gauge = Gauge(name, meaning, ["filter", "queue"], registry=registry)
        for queue in queues:
            value = getattr(queue, figure)
            gauge.labels(key, queue.key).set(len(value) if isinstance(value, tuple) else value)
    return generate_latest(registry).decode()
