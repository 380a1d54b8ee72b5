"""Show the stored state of a crawl: its filter with each layer, its queue and its workers.

The exit code is 1 if there is no filter, except with --prometheus. Nothing is changed, and the server may be a replica.
"""

import argparse
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import NoReturn

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import as_error_rate, as_size, plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.cli.report import (
    FilterReport,
    NodeShare,
    Pace,
    build_report,
    exposition,
    pace_between,
    shares_of_nodes,
)
from scrapy_bloom.errors import UnavailableError
from scrapy_bloom.queue.heartbeats import heartbeat_pause
from scrapy_bloom.queue.inspection import QueueState
from scrapy_bloom.transport.server_info import is_cluster

EXAMPLES = """\
examples:
  scrapy bloom info news
  scrapy bloom info news --watch
  scrapy bloom info --key news:dupefilter --redis-url redis://localhost:6379 --json
  scrapy bloom info news --prometheus > news.prom.new && mv news.prom.new /var/lib/node_exporter/news.prom
"""

_MAX_WATCH_SECONDS = 86_400
_PACE_SECONDS = 60
_CLEAR_SCREEN = "\033[H\033[2J"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    form = parser.add_mutually_exclusive_group()
    _console.add_json_option(form)
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
    target = CrawlTarget.of(options, settings)
    if options.watch is not None:
        _watch(target, options.watch)
    found, queues = _read(target)
    if options.prometheus:
        print(exposition(target.key, found, queues), end="")
        # A metric reports a missing filter; the output must be published in any case.
        return ExitCode.DONE
    report = {
        **target.servers,
        "key": target.key,
        "exists": found is not None,
        **({} if found is None else found.as_dict()),
        **({} if found is None else {"nodes": {name: asdict(each) for name, each in _shares(target, found).items()}}),
        "queues": [asdict(queue) for queue in queues],
    }
    _console.print_report(options, report, _text(target, found, queues))
    return ExitCode.NO if found is None else ExitCode.DONE


def _watch(target: CrawlTarget, seconds: float) -> NoReturn:
    """Refresh the output for ever, with the pace of the last minute; survive an unreachable server."""
    reports: deque[FilterReport] = deque()
    while True:
        try:
            found, queues = _read(target)
        except UnavailableError as error:
            text = f"{target.key} on {target.server}\n\nRedis is unreachable: {error.cause}"
        else:
            if found is not None:
                reports.append(found)
                while len(reports) > 1 and found.stored.now - reports[1].stored.now >= _PACE_SECONDS:
                    reports.popleft()
                while reports[0].stored.text != found.stored.text:
                    reports.popleft()
            text = _text(target, found, queues, reports[0] if reports else None)
        print(f"{_CLEAR_SCREEN if sys.stdout.isatty() else ''}{text}", flush=True)
        time.sleep(seconds)


def _read(target: CrawlTarget) -> tuple[FilterReport | None, list[QueueState]]:
    found = target.run_steps(build_report(target.key))
    names = dict.fromkeys([*target.queues, *(found.stored.references if found else [])])
    return found, [target.inspect_queue(name) for name in names]


def _text(
    target: CrawlTarget, found: FilterReport | None, queues: list[QueueState], first: FilterReport | None = None
) -> str:
    title = f"{target.key} on {target.server}"
    if target.is_separate:
        title += f"; the queue on {target.queue_server}"
    stored = f"\nThere is no filter at {target.key!r}."
    if found is not None:
        stored = _filter_text(found, _shares(target, found), first)
    return "\n".join([title, stored, *map(_queue_text, queues)])


def _shares(target: CrawlTarget, found: FilterReport) -> dict[str, NodeShare]:
    """Return the share of each node of a cluster; a single server has none."""
    return shares_of_nodes(target.filter_client, found) if is_cluster(target.filter_client) else {}


def _filter_text(found: FilterReport, shares: Mapping[str, NodeShare], first: FilterReport | None) -> str:
    info, parameters = found.info, found.stored.parameters
    ttl = f", each kept for at least {_console.duration(parameters.ttl)}" if parameters.ttl else ""
    shards = plural(info.shards, "shard")
    rows = [
        ("holds", f"about {info.estimated_count:,} of {info.capacity:,} requests{ttl}"),
        ("error rate", f"{as_error_rate(info.estimated_error_rate)} now, {as_error_rate(info.error_rate)} at most"),
        ("memory", f"{as_size(info.memory_bytes)} in {plural(info.layers, 'layer')}, {shards}"),
        ("fingerprints", repr(parameters.fingerprint)),
    ]
    for name, share in shares.items():
        rows.append((f"on {name}", f"{as_size(share.memory_bytes)}, {plural(share.shards, 'shard')}"))
    if info.lost_shards:
        rows.append(("LOST", f"{info.lost_shards} of {shards}: their pages are fetched again"))
    if number := found.forgotten.items:
        rows.append(("forgotten", f"{plural(number, 'request')} to be new once more, {as_size(found.forgotten_bytes)}"))
    if found.has_lost_forgotten:
        rows.append(("LOST", "the forgotten requests: the filter begins anew, and all pages are fetched again"))
    pace = pace_between(first, found) if first else None
    if pace is not None:
        rows.append(("pace", _pace_text(pace)))
    if found.stored.references:
        rows.append(("used by", ", ".join(found.stored.references)))
    if found.stored.unfinished:
        rows.append(("INCOMPLETE", f"`scrapy bloom {found.stored.unfinished}` is filling it, or was stopped"))
    layers = _layer_table(found) if found.has_layers else "The filter is empty: the first request allocates its memory."
    return f"\n{_console.pairs(rows)}\n\n{layers}"


def _pace_text(pace: Pace) -> str:
    text = f"{pace.per_second:,.1f} new requests per second over {_console.duration(pace.seconds)}"
    return text if pace.seconds_left is None else f"{text}; full in {_console.duration(pace.seconds_left)}"


def _layer_table(found: FilterReport) -> str:
    rows = [["layer", "full", "", "holds", "capacity", "error rate", "at most", "memory", "age"]]
    for stored, layer, age in zip(found.stored.layers, found.info.by_layer, found.ages, strict=True):
        share = layer.estimated_count / layer.capacity
        rows.append(
            [
                str(stored.index),
                _console.bar(share),
                f"{share:.0%}",
                f"{layer.estimated_count:,}",
                f"{layer.capacity:,}",
                as_error_rate(layer.estimated_error_rate),
                as_error_rate(layer.error_rate),
                as_size(layer.memory_bytes),
                _console.duration(age),
            ]
        )
    return _console.table(rows)


def _queue_text(queue: QueueState) -> str:
    text = (
        f"\nqueue {queue.key}: {plural(queue.waiting, 'pending request')}, {plural(queue.dead_letters, 'dead letter')}"
    )
    if queue.has_losses:
        text += f", {queue.lost:,} or more requests LOST" if queue.lost else ", an unknown number of requests LOST"
    if queue.is_shared:
        text += ", losses not detectable (shared with scrapy-redis's scheduler)"
    if not queue.workers:
        return f"{text}, no worker of BloomScheduler"
    pause = heartbeat_pause(min(worker.lease for worker in queue.workers))
    rows = [["worker", f"last heartbeat (every {_console.duration(pause)})", "leases", ""]]
    for worker in queue.workers:
        heartbeat = "unknown" if worker.silent is None else f"{_console.duration(worker.silent)} ago"
        state = "closes the queue" if worker.is_closing else ""
        if worker.is_silent:
            state = "silent: other workers requeue its requests"
        rows.append([worker.name, heartbeat, f"{worker.holds:,}", state])
    return f"{text}\n\n{_console.table(rows)}"
