"""Show the stored state of a crawl: its filter with each layer, its queue and its workers.

The exit code is 1 if there is no filter, except with --prometheus. Nothing is changed, and the server may be a replica.

for example:
  scrapy bloom info news
  scrapy bloom info news --watch
  scrapy bloom info --key news:dupefilter --redis-url redis://localhost:6379 --json
  scrapy bloom info news --prometheus > news.prom.new && mv news.prom.new /var/lib/node_exporter/news.prom
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import as_error_rate, as_size, plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._console import duration
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.errors import ConfigError, UnavailableError
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.queue.heartbeat import BEATS_PER_LEASE
from scrapy_bloom.queue.inspection import QueueState

_MAX_WATCH_SECONDS = 86_400
_PACE_SECONDS = 60
_CLEAR_SCREEN = "\033[H\033[2J"
# The metrics, by the attributes of a filter's info and of a queue's state; of workers the number.
METRICS = {
    "exists": "1 if there is a filter at the key",
    "capacity": "Distinct requests that the filter was sized for",
    "error_rate": "Share of new requests taken for seen, at most",
    "count": "Requests in the filter",
    "current_error_rate": "Share of new requests taken for seen now",
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
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--prometheus", action="store_true", help="print metrics in Prometheus' text format")
    form.add_argument(
        "--watch", nargs="?", type=float, const=2.0, metavar="SECONDS", help="refresh every 2 seconds, or every SECONDS"
    )


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    if options.watch is not None and not 0 < options.watch <= _MAX_WATCH_SECONDS:
        raise UsageError(
            f"--watch {options.watch:g}: must be above 0 and at most {_MAX_WATCH_SECONDS:,} seconds", print_help=False
        )
    if options.json and (options.prometheus or options.watch):
        raise UsageError("--json: not beside --prometheus or --watch", print_help=False)
    target = CrawlTarget(options, settings)
    if options.watch is not None:
        _watch(target, options.watch)
    found, queues = _read(target)
    if options.prometheus:
        print(_exposition(target.key, found, queues), end="")
        # A metric reports a missing filter; the output must be published in any case.
        return 0
    report = {
        "server": target.server,
        "key": target.key,
        "exists": found is not None,
        **(_as_dict(found) if found else {}),
        "queues": [asdict(queue) for queue in queues],
    }
    return _console.report(options, report, _text(target, found, queues), answer=found is not None)


def _watch(target: CrawlTarget, seconds: float) -> NoReturn:
    """Refresh the output for ever, with the pace of the last minute; survive an unreachable server."""
    readings: list[StoredFilter] = []
    while True:
        try:
            found, queues = _read(target)
        except UnavailableError as error:
            text = f"{target.key} on {target.server}\n\nRedis is unreachable: {error.cause}"
        else:
            if found is not None:
                readings = [*(each for each in readings if each.id == found.id), found]
                while len(readings) > 1 and found.now - readings[1].now >= _PACE_SECONDS:
                    readings.pop(0)
            text = _text(target, found, queues, readings[0] if readings else None)
        print(f"{_CLEAR_SCREEN if sys.stdout.isatty() else ''}{text}", flush=True)
        time.sleep(seconds)


def _read(target: CrawlTarget) -> tuple[StoredFilter | None, list[QueueState]]:
    found = target.read_filter()
    return found, [target.inspect_queue(name) for name in target.queues_of(found.info.users if found else ())]


def _as_dict(found: StoredFilter) -> dict[str, Any]:
    """Return the figures of a filter, with the names of `FilterInfo`. Without a TTL no layer has an age."""
    described = asdict(found.info)
    for layer in described["by_layer"]:
        layer["age"] = max(0.0, found.now - layer["created"]) if layer["created"] else None
        layer["created"] = layer["created"] or None
    return {
        **found.parameters.arguments(),
        **described,
        "is_new": found.is_empty,
        "unfinished": found.unfinished,
        "age": described["by_layer"][0]["age"],
    }


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


def pace_between(first: StoredFilter, last: StoredFilter) -> tuple[float, float, float | None] | None:
    """Return the pace between two readings of the same filter, or None if no time has passed.

    Returns:
        The seconds by the server's clock, the new requests per second, and the seconds until the newest layer is full
        at this pace; None: never.
    """
    seconds = last.now - first.now
    if seconds <= 0:
        return None
    before, after = Counter[float](), Counter[float]()
    for counts, reading in ((before, first), (after, last)):
        for layer in reading.info.by_layer:
            counts[layer.created] += layer.count
    # Layers of a generation that has ended are gone.
    added = (after - before).total()
    newest = last.info.by_layer[-1]
    room = max(0, newest.capacity - newest.count)
    return seconds, added / seconds, room * seconds / added if added else None


def _text(
    target: CrawlTarget, found: StoredFilter | None, queues: list[QueueState], first: StoredFilter | None = None
) -> str:
    stored = _filter_text(found, first) if found else f"\nThere is no filter at {target.key!r}."
    return "\n".join([f"{target.key} on {target.server}", stored, *map(_queue_text, queues)])


def _filter_text(found: StoredFilter, first: StoredFilter | None) -> str:
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
        rows.append(("forgotten", f"{plural(info.forgotten, 'request')} to be new once more"))
    if first and (pace := pace_between(first, found)):
        seconds, per_second, left = pace
        full = "" if left is None else f"; full in {duration(left)}"
        rows.append(("pace", f"{per_second:,.1f} new requests per second over {duration(seconds)}{full}"))
    if info.users:
        rows.append(("used by", ", ".join(info.users)))
    if found.unfinished:
        rows.append(("INCOMPLETE", f"`scrapy bloom {found.unfinished}` is filling it, or was stopped"))
    empty = "No request was added yet. The memory is that of the first layer, which the first worker allocates."
    layers = empty if found.is_empty else _layer_table(found)
    return f"\n{_console.pairs(rows)}\n\n{layers}"


def _layer_table(found: StoredFilter) -> str:
    rows = [["layer", "full", "", "holds", "capacity", "error rate", "at most", "memory"]]
    for number, layer in enumerate(found.info.by_layer, 1):
        share = layer.count / layer.capacity
        rows.append(
            [
                str(number),
                _console.bar(share),
                f"{share:.0%}",
                f"{layer.count:,}",
                f"{layer.capacity:,}",
                as_error_rate(layer.current_error_rate),
                as_error_rate(layer.error_rate),
                as_size(layer.memory_bytes),
            ]
        )
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
    if queue.is_shared:
        text += ", losses not detectable (shared with scrapy-redis's scheduler)"
    if not queue.workers:
        return f"{text}, no worker of BloomScheduler"
    pause = min(worker.lease for worker in queue.workers) / BEATS_PER_LEASE
    rows = [["worker", f"last heartbeat (every {duration(pause)})", "leases", ""]]
    for worker in queue.workers:
        state = "silent: other workers requeue its requests" if worker.is_silent else ""
        rows.append([worker.name, f"{duration(worker.silent)} ago", f"{worker.holds:,}", state])
    return f"{text}\n\n{_console.table(rows)}"
