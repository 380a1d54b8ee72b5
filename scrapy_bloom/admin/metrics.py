"""The metrics of a filter and its queues in the text format of Prometheus."""

from collections.abc import Callable, Sequence

from scrapy_bloom.admin.report import FilterReport
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.queue.inspection import QueueState

try:
    from prometheus_client import CollectorRegistry, Gauge, generate_latest
except ImportError:
    raise ConfigError("--prometheus needs a library: pip install 'scrapy-bloom[prometheus]'") from None

FILTER_METRICS: dict[str, tuple[str, Callable[[FilterInfo], float]]] = {
    "scrapy_bloom_capacity": ("Requests for which the filter was sized", lambda info: info.capacity),
    "scrapy_bloom_error_rate": ("Share of new requests taken for seen, at most", lambda info: info.error_rate),
    "scrapy_bloom_estimated_count": ("Requests that it holds, by its bits", lambda info: info.estimated_count),
    "scrapy_bloom_estimated_error_rate": ("Its error rate now", lambda info: info.estimated_error_rate),
    "scrapy_bloom_fill_ratio": ("Share of its bits that are 1", lambda info: info.fill_ratio),
    "scrapy_bloom_memory_bytes": ("Bytes that it takes", lambda info: info.memory_bytes),
    "scrapy_bloom_layers": ("Layers that it has", lambda info: info.layers),
}
QUEUE_METRICS: dict[str, tuple[str, Callable[[QueueState], float]]] = {
    "scrapy_bloom_queue_waiting": ("Requests that wait", lambda queue: queue.waiting),
    "scrapy_bloom_queue_dead_letters": (
        "Requests that no worker could read, or that too many died with",
        lambda queue: queue.dead_letters,
    ),
    "scrapy_bloom_queue_workers": ("Workers that are registered", lambda queue: len(queue.workers)),
    "scrapy_bloom_queue_silent_workers": (
        "Workers that were not heard of for their lease",
        lambda queue: sum(worker.is_silent for worker in queue.workers),
    ),
    "scrapy_bloom_queue_leased": ("Requests that workers hold", lambda queue: queue.leased),
}
UP = "scrapy_bloom_exists"


def exposition(key: str, found: FilterReport | None, queues: Sequence[QueueState]) -> str:
    """Return the metrics, each with the filter's key as the label `filter`, and the queue's as `queue`.

    Raises:
        ConfigError: the library is not installed.
    """
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
