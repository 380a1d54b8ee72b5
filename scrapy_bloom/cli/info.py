"""Show the stored state of a crawl: its filter with each layer, its queue and its workers.

The exit code is 1 if there is no filter, except with --prometheus. Nothing is changed, and the server may be a replica.

for example:
  scrapy bloom info news
  scrapy bloom info --key news:dupefilter --redis-url redis://localhost:6379 --json
  scrapy bloom info news --prometheus > news.prom.new && mv news.prom.new /var/lib/node_exporter/news.prom
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from scrapy.settings import Settings

from scrapy_bloom.cli import _console
from scrapy_bloom.cli._console import duration
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.info import StoredFilter, sum_of
from scrapy_bloom.queue import inspection
from scrapy_bloom.queue.heartbeat import BEATS_PER_LEASE
from scrapy_bloom.queue.inspection import QueueState
from scrapy_bloom.text import as_error_rate, as_size, plural

# The metrics, by the attributes of a filter's info and of a queue's state; of workers the number.
METRICS = {
    "exists": "1 if there is a filter at the key",
    "capacity": "Distinct requests that the filter was sized for",
    "error_rate": "Share of new requests mistaken for duplicates, at most",
    "count": "Requests in the filter",
    "current_error_rate": "Share of new requests mistaken for duplicates now",
    "fill_ratio": "Share of bits that are set",
    "memory_bytes": "Bytes of the filter in Redis",
    "layers": "Layers of the filter",
    "queue_waiting": "Pending requests",
    "queue_dead_letters": "Requests that no worker could read, or that killed too many workers",
    "queue_failed": "Failed requests that are kept for the next run",
    "queue_workers": "Registered workers",
    "queue_silent_workers": "Registered workers without a heartbeat for their whole lease",
    "queue_leased": "Requests leased by workers",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    parser.add_argument("--prometheus", action="store_true", help="print metrics in Prometheus' text format")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    if options.json and options.prometheus:
        raise ConfigError("--json: not beside --prometheus")
    target = CrawlTarget(options, settings)
    filters = [part.read_filter() for part in target.partitions]
    states = target.inspect_queues()
    found, queues = _sum_of(filters), [*map(inspection.sum_of, states)]
    if options.prometheus:
        print(_exposition(target.key, found, queues), end="")
        # A metric reports a missing filter; the output must be published in any case.
        return 0
    report = {"server": target.server, "key": target.key, "exists": found is not None}
    partitions = [_partition(*each, states) for each in enumerate(zip(target.partitions, filters, strict=True))]
    report |= {**(_as_dict(found) if found else {}), "queues": [asdict(queue) for queue in queues]}
    report |= {"partitions": partitions}
    stored = _filter_text(found, partitions) if found else f"\nThere is no filter at {target.key!r}."
    text = "\n".join([f"{target.key} on {target.server}", stored, *map(_queue_text, queues)])
    return _console.report(options, report, text, answer=found is not None)


def _sum_of(filters: Sequence[StoredFilter | None]) -> StoredFilter | None:
    """Return the filters of all partitions as one."""
    there = [each for each in filters if each]
    if not there:
        return None
    info = sum_of([each.info for each in there])
    return replace(there[0], info=info, unfinished=next((each.unfinished for each in there if each.unfinished), None))


def _partition(
    number: int, part: tuple[CrawlTarget, StoredFilter | None], states: Sequence[Sequence[QueueState]]
) -> dict[str, Any]:
    """Return the figures of a partition."""
    target, found = part
    queues = [each[number] for each in states]
    figures = {name: getattr(found.info, name) if found else 0 for name in ("count", "memory_bytes")}
    figures |= {name: sum(getattr(queue, name) for queue in queues) for name in ("waiting", "leased")}
    return {"number": number, "key": target.key, "exists": found is not None, **figures}


def _as_dict(found: StoredFilter) -> dict[str, Any]:
    """Return the figures of a filter, with the names of `FilterInfo`. Without a TTL no layer has an age."""
    described = asdict(found.info)
    for layer in described["by_layer"]:
        layer["age"] = max(0.0, found.now - layer["created"]) if layer["created"] else None
        layer["created"] = layer["created"] or None
    state = {"is_new": found.is_empty, "unfinished": found.unfinished, "age": described["by_layer"][0]["age"]}
    return {**found.parameters.arguments(), **described, **state}


def _exposition(key: str, found: StoredFilter | None, queues: Sequence[QueueState]) -> str:
    """Return the metrics in Prometheus' text format, labeled with the keys of `filter` and `queue`.

    Raises:
        ConfigError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415  # an optional extra
    except ImportError:
        raise ConfigError("--prometheus needs a library: pip install 'scrapy-bloom[prometheus]'") from None
    registry = CollectorRegistry()
    figures = {"exists": found is not None, **(vars(found.info) if found else {})}
    for name, meaning in METRICS.items():
        labels = ["filter", "queue"] if name.startswith("queue_") else ["filter"]
        gauge = Gauge(f"scrapy_bloom_{name}", meaning, labels, registry=registry)
        if name in figures:
            gauge.labels(key).set(figures[name])
        for queue in queues if len(labels) > 1 else ():
            value = getattr(queue, name.removeprefix("queue_"))
            gauge.labels(key, queue.key).set(len(value) if isinstance(value, tuple) else value)
    return generate_latest(registry).decode()


def _filter_text(found: StoredFilter, partitions: Sequence[dict[str, Any]]) -> str:
    info, parameters = found.info, found.parameters
    ttl = f", each kept for at least {duration(parameters.ttl)}" if parameters.ttl else ""
    rows = [
        ("holds", f"{info.count:,} of {info.capacity:,} requests{ttl}"),
        ("error rate", f"{as_error_rate(info.current_error_rate)} now, {as_error_rate(info.error_rate)} at most"),
        ("memory", f"{as_size(info.memory_bytes)} in {plural(info.layers, 'layer')}, {plural(info.shards, 'shard')}"),
        ("fingerprints", repr(parameters.fingerprint)),
    ]
    if info.lost_shards:
        rows.append(("LOST", f"{plural(info.lost_shards, 'shard')}: their pages are fetched again"))
    if info.forgotten:
        rows.append(("forgotten", f"{plural(info.forgotten, 'request')} to be new again"))
    if found.unfinished:
        rows.append(("INCOMPLETE", f"`scrapy bloom {found.unfinished}` is filling it, or was stopped"))
    empty = "No request was added yet. The memory is that of the first layer, which the first worker allocates."
    layers = empty if found.is_empty else _layer_table(found)
    if len(partitions) > 1:
        layers = _partition_table(partitions)
    return f"\n{_console.pairs(rows)}\n\n{layers}"


def _partition_table(partitions: Sequence[dict[str, Any]]) -> str:
    rows = [["partition", "holds", "memory", "pending", "leased", "filter"]]
    for each in partitions:
        counts = [f"{each['count']:,}", as_size(each["memory_bytes"]), f"{each['waiting']:,}", f"{each['leased']:,}"]
        rows.append([f"{each['number']}", *counts, each["key"] if each["exists"] else "none"])
    return _console.table(rows)


def _layer_table(found: StoredFilter) -> str:
    rows = [["layer", "full", "", "holds", "capacity", "error rate", "at most", "memory"]]
    for number, layer in enumerate(found.info.by_layer, 1):
        share = layer.count / layer.capacity
        fill = [_console.bar(share), f"{share:.0%}", f"{layer.count:,}", f"{layer.capacity:,}"]
        rates = [as_error_rate(layer.current_error_rate), as_error_rate(layer.error_rate)]
        rows.append([str(number), *fill, *rates, as_size(layer.memory_bytes)])
        if layer.created:
            rows[0][8:] = ["age"]
            rows[-1].append(duration(max(0.0, found.now - layer.created)))
    return _console.table(rows)


def _queue_text(queue: QueueState) -> str:
    text = (
        f"\nqueue {queue.key}: {plural(queue.waiting, 'pending request')}, {plural(queue.dead_letters, 'dead letter')}"
    )
    if queue.failed:
        text += f", {plural(queue.failed, 'failed request')} kept for the next run"
    if queue.has_losses:
        text += f", {queue.lost:,} or more requests LOST" if queue.lost else ", an unknown number of requests LOST"
    if not queue.workers:
        return f"{text}, no worker of BloomScheduler"
    pause = min(worker.lease for worker in queue.workers) / BEATS_PER_LEASE
    rows = [["worker", f"last heartbeat (every {duration(pause)})", "leases", ""]]
    for worker in queue.workers:
        state = "silent: other workers requeue its requests" if worker.is_silent else ""
        rows.append([worker.name, f"{duration(worker.silent)} ago", f"{worker.holds:,}", state])
    return f"{text}\n\n{_console.table(rows)}"
