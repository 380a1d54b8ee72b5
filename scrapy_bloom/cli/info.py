"""Show the stored state of a crawl: its filter with each layer, its queue and its workers.

The exit code is 1 if there is no filter. Nothing is changed, and the server may be a replica.

for example:
  scrapy bloom info news
  scrapy bloom info --key news:dupefilter --redis-url redis://localhost:6379 --json
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from scrapy.settings import Settings

from scrapy_bloom.cli import console
from scrapy_bloom.cli.target import CrawlTarget, add_target_options
from scrapy_bloom.filter.info import StoredFilter
from scrapy_bloom.filter.info import sum_of as sum_of_filters
from scrapy_bloom.queue.heartbeat import BEATS_PER_LEASE
from scrapy_bloom.queue.inspection import QueueState, sum_of
from scrapy_bloom.text import as_error_rate, as_size, plural


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    target = CrawlTarget(options, settings)
    filters = [part.read_filter() for part in target.partitions]
    states = [part.inspect_queue(part.queue) for part in target.partitions if part.queue]
    parts = []
    for number, (part, each) in enumerate(zip(target.partitions, filters, strict=True)):
        figures = {name: getattr(each.info, name) if each else 0 for name in ("count", "memory_bytes")}
        figures |= {name: getattr(states[number], name) if states else 0 for name in ("waiting", "leased")}
        parts.append({"number": number, "key": part.key, "exists": each is not None, **figures})
    there = [each for each in filters if each]
    found = replace(there[0], info=sum_of_filters([each.info for each in there])) if there else None
    queues = [sum_of(states)] if states else []
    report = {"server": target.server, "key": target.key, "exists": found is not None}
    report |= {**(_as_dict(found) if found else {}), "queues": [*map(asdict, queues)], "partitions": parts}
    stored = f"{_filter_text(found)}\n\n{_table(found, parts)}" if found else f"There is no filter at {target.key!r}."
    text = "\n\n".join([f"{target.key} on {target.server}", stored, *map(_queue_text, queues)])
    return console.report(options, report, text, answer=found is not None)


def _as_dict(found: StoredFilter) -> dict[str, Any]:
    """Return the figures of a filter, with the names of `FilterInfo`. Without a TTL no layer has a time of creation."""
    described = asdict(found.info)
    for layer in described["by_layer"]:
        layer["created"] = layer["created"] or None
    return {**found.parameters.arguments(), **described, "is_new": found.is_empty}


def _filter_text(found: StoredFilter) -> str:
    info, parameters, noun = found.info, found.parameters, found.parameters.noun
    ttl = f", each kept for at least {console.duration(parameters.ttl)}" if parameters.ttl else ""
    rows = [
        ("holds", f"{info.count:,} of {info.capacity:,} {noun}s{ttl}"),
        ("error rate", f"{as_error_rate(info.current_error_rate)} now, {as_error_rate(info.error_rate)} at most"),
        ("memory", f"{as_size(info.memory_bytes)} in {plural(info.layers, 'layer')}, {plural(info.shards, 'shard')}"),
        ("fingerprints", repr(parameters.fingerprint)),
    ]
    if info.lost_shards:
        rows.append(("LOST", f"{plural(info.lost_shards, 'shard')}: their {noun}s are new again"))
    if info.forgotten:
        rows.append(("forgotten", f"{plural(info.forgotten, noun)} to be new again"))
    return console.pairs(rows)


def _table(found: StoredFilter, parts: Sequence[dict[str, Any]]) -> str:
    """Return the table of the partitions, or of the layers of a crawl without any."""
    if len(parts) > 1:
        rows = [["partition", "holds", "memory", "pending", "leased", "filter"]]
        for each in parts:
            held, memory, *pending = (each[name] for name in ("count", "memory_bytes", "waiting", "leased"))
            counts = [f"{held:,}", as_size(memory), *(f"{number:,}" for number in pending)]
            rows.append([f"{each['number']}", *counts, each["key"] if each["exists"] else "none"])
    elif found.is_empty:
        return "Nothing was added yet. The memory is that of the first layer, which the first worker allocates."
    else:
        rows = [["layer", "full", "holds", "capacity", "error rate", "at most", "memory"]]
        for number, layer in enumerate(found.info.by_layer, 1):
            fill = [f"{layer.count / layer.capacity:.0%}", f"{layer.count:,}", f"{layer.capacity:,}"]
            rates = [as_error_rate(layer.current_error_rate), as_error_rate(layer.error_rate)]
            rows.append([str(number), *fill, *rates, as_size(layer.memory_bytes)])
    return console.table(rows)


def _queue_text(queue: QueueState) -> str:
    text = f"queue {queue.key}: {plural(queue.waiting, 'pending request')}, {plural(queue.dead_letters, 'dead letter')}"
    if queue.failed:
        text += f", {plural(queue.failed, 'failed request')} kept for the next run"
    if queue.has_losses:
        text += f", {queue.loss} LOST"
    if not queue.workers:
        return f"{text}, no worker of BloomScheduler"
    pause = min(worker.lease for worker in queue.workers) / BEATS_PER_LEASE
    rows = [["worker", f"last heartbeat (every {console.duration(pause)})", "last sync", "leases", ""]]
    for worker in queue.workers:
        state = "silent: other workers requeue its requests" if worker.is_silent else ""
        synced = "none" if worker.synced is None else f"{console.duration(worker.synced)} ago"
        rows.append([worker.name, f"{console.duration(worker.silent)} ago", synced, f"{worker.holds:,}", state])
    return f"{text}\n\n{console.table(rows)}"
