"""Show the stored state of a crawl: its filter with each layer, its queue and its workers.

The exit code is 1 if there is no filter, except with --prometheus. Nothing is changed, and the server may be a replica.
"""

import argparse
import sys
import time
from collections import deque
from dataclasses import asdict
from typing import NoReturn

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import as_error_rate, as_size, plural
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget, add_target_options
from scrapy_bloom.cli.report import Pace, as_dict, exposition, pace_between
from scrapy_bloom.errors import UnavailableError
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.queue.heartbeat import BEATS_PER_LEASE
from scrapy_bloom.queue.inspection import QueueState

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
    target = CrawlTarget(options, settings)
    if options.watch is not None:
        _watch(target, options.watch)
    found, queues = _read(target)
    if options.prometheus:
        print(exposition(target.key, found, queues), end="")
        # A metric reports a missing filter; the output must be published in any case.
        return ExitCode.DONE
    report = {
        "server": target.server,
        "key": target.key,
        "exists": found is not None,
        **(as_dict(found) if found else {}),
        "queues": [asdict(queue) for queue in queues],
    }
    _console.print_report(options, report, _text(target, found, queues))
    return ExitCode.NO if found is None else ExitCode.DONE


def _watch(target: CrawlTarget, seconds: float) -> NoReturn:
    """Refresh the output for ever, with the pace of the last minute; survive an unreachable server."""
    readings: deque[StoredFilter] = deque()
    while True:
        try:
            found, queues = _read(target)
        except UnavailableError as error:
            text = f"{target.key} on {target.server}\n\nRedis is unreachable: {error.cause}"
        else:
            if found is not None:
                readings.append(found)
                while len(readings) > 1 and found.now - readings[1].now >= _PACE_SECONDS:
                    readings.popleft()
                while readings[0].id != found.id:
                    readings.popleft()
            text = _text(target, found, queues, readings[0] if readings else None)
        print(f"{_CLEAR_SCREEN if sys.stdout.isatty() else ''}{text}", flush=True)
        time.sleep(seconds)


def _read(target: CrawlTarget) -> tuple[StoredFilter | None, list[QueueState]]:
    found = target.read_filter()
    return found, [target.inspect_queue(name) for name in target.queues_of(found)]


def _text(
    target: CrawlTarget, found: StoredFilter | None, queues: list[QueueState], first: StoredFilter | None = None
) -> str:
    stored = _filter_text(found, first) if found else f"\nThere is no filter at {target.key!r}."
    return "\n".join([f"{target.key} on {target.server}", stored, *map(_queue_text, queues)])


def _filter_text(found: StoredFilter, first: StoredFilter | None) -> str:
    info, parameters = found.info, found.parameters
    ttl = f", each kept for at least {_console.duration(parameters.ttl)}" if parameters.ttl else ""
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
    pace = pace_between(first, found) if first else None
    if pace is not None:
        rows.append(("pace", _pace_text(pace)))
    if info.users:
        rows.append(("used by", ", ".join(info.users)))
    if found.unfinished:
        rows.append(("INCOMPLETE", f"`scrapy bloom {found.unfinished}` is filling it, or was stopped"))
    layers = "The filter is empty: the first request allocates its memory." if found.is_empty else _layer_table(found)
    return f"\n{_console.pairs(rows)}\n\n{layers}"


def _pace_text(pace: Pace) -> str:
    text = f"{pace.per_second:,.1f} new requests per second over {_console.duration(pace.seconds)}"
    return text if pace.seconds_left is None else f"{text}; full in {_console.duration(pace.seconds_left)}"


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
            rows[-1].append(_console.duration(max(0.0, found.now - layer.created)))
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
    rows = [["worker", f"last heartbeat (every {_console.duration(pause)})", "leases", ""]]
    for worker in queue.workers:
        state = "silent: other workers requeue its requests" if worker.is_silent else ""
        rows.append([worker.name, f"{_console.duration(worker.silent)} ago", f"{worker.holds:,}", state])
    return f"{text}\n\n{_console.table(rows)}"
