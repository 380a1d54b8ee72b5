"""Show what is stored of a crawl: its filter and each layer, its queue, and what its workers do.

The exit code is 1 if there is no filter, but for --prometheus. Nothing is changed, so that a replica may be asked.
"""

import argparse
import sys
import time
from collections import deque
from typing import NoReturn

from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom._format import as_size
from scrapy_bloom.cli import _console
from scrapy_bloom.cli._exit_codes import ExitCode
from scrapy_bloom.cli._target import CrawlTarget
from scrapy_bloom.cli._target import add_options as add_target
from scrapy_bloom.cli.report import FilterReport, Pace, build_report, exposition, pace_between, report_as_dict
from scrapy_bloom.errors import UnavailableError
from scrapy_bloom.filter.describe import LayerInfo
from scrapy_bloom.queue.inspection import QueueState, RegisteredWorker

EXAMPLES = """\
examples:
  scrapy bloom info news
  scrapy bloom info news --watch
  scrapy bloom info --key news:dupefilter --redis-url redis://localhost:6379 --json
  scrapy bloom info news --prometheus > news.prom.new && mv news.prom.new /var/lib/node_exporter/news.prom
"""

_MAX_WATCH_SECONDS = 86_400
# Seconds over which a pace is told.
_PACE_SECONDS = 60
_CLEAR_SCREEN = "\033[H\033[2J"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target(parser)
    form = parser.add_mutually_exclusive_group()
    _console.add_options(form)
    form.add_argument("--prometheus", action="store_true", help="print the text format of Prometheus' metrics")
    form.add_argument(
        "--watch", nargs="?", type=float, const=2.0, metavar="SECONDS", help="show it anew every 2 seconds, or so many"
    )


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Carry it out."""
    if options.watch is not None and not 0 < options.watch <= _MAX_WATCH_SECONDS:
        raise UsageError(
            f"--watch {options.watch:g}: give seconds above 0, {_MAX_WATCH_SECONDS} at most", print_help=False
        )
    target = CrawlTarget.of(options, settings)
    if options.watch is not None:
        _watch(target, options.watch)
    found, queues = _look(target)
    if options.json:
        _console.print_json(report_as_dict(target.server, target.key, found, queues))
    elif options.prometheus:
        print(exposition(target.key, found, queues), end="")
        # A metric says if there is a filter; what was printed is to be published in any case.
        return ExitCode.DONE
    else:
        print(_told(target, found, queues))
    return ExitCode.NO if found is None else ExitCode.DONE


def _watch(target: CrawlTarget, seconds: float) -> NoReturn:
    """Show it anew every so often, with the pace of the last minute; go on when Redis is back."""
    looks: deque[FilterReport] = deque()
    while True:
        try:
            found, queues = _look(target)
        except UnavailableError as error:
            told = f"{target.key} on {target.server}\n\nRedis is away: {error.cause}"
        else:
            if found is not None:
                looks.append(found)
                while len(looks) > 1 and found.stored.now - looks[1].stored.now >= _PACE_SECONDS:
                    looks.popleft()
                while looks[0].stored.text != found.stored.text:
                    looks.popleft()
            told = _told(target, found, queues, looks[0] if looks else None)
        print(f"{_CLEAR_SCREEN if sys.stdout.isatty() else ''}{told}", flush=True)
        time.sleep(seconds)


def _look(target: CrawlTarget) -> tuple[FilterReport | None, list[QueueState]]:
    found = target.run_steps(build_report(target.key))
    names = dict.fromkeys([*target.queues, *(found.stored.users if found else [])])
    return found, [target.inspect_queue(name) for name in names]


def _told(
    target: CrawlTarget, found: FilterReport | None, queues: list[QueueState], first: FilterReport | None = None
) -> str:
    told = [f"{target.key} on {target.server}"]
    told += [f"\nThere is no filter at {target.key!r}."] if found is None else [_filter(found, first)]
    return "\n".join(told + [_queue(queue) for queue in queues])


def _filter(found: FilterReport, first: FilterReport | None) -> str:
    info, parameters = found.info, found.stored.parameters
    ttl = f", each remembered for {_console.duration(parameters.ttl)}" if parameters.ttl else ""
    rows = [
        ("holds", f"about {info.estimated_count:,} of {info.capacity:,} requests{ttl}"),
        ("error rate", f"{info.estimated_error_rate:.2g} now, {info.error_rate:.2g} at most"),
        ("memory", f"{as_size(info.memory_bytes)} in {info.layers} layer(s), {info.shards} strings"),
        ("fingerprints", repr(parameters.fingerprint)),
    ]
    if info.lost_shards:
        rows.append(("LOST", f"{info.lost_shards} of {info.shards} strings are gone: what they knew is fetched again"))
    pace = pace_between(first, found) if first else None
    if pace is not None:
        rows.append(("pace", _pace(pace)))
    if found.stored.users:
        rows.append(("used by", ", ".join(found.stored.users)))
    if found.stored.unfinished:
        rows.append(("NOT COMPLETE", f"`scrapy bloom {found.stored.unfinished}` fills it, or was stopped"))
    if not found.has_layers:
        return f"\n{_console.pairs(rows)}\n\nNothing was added yet: the first request makes the memory."
    return f"\n{_console.pairs(rows)}\n\n{_layers(found)}"


def _pace(pace: Pace) -> str:
    told = f"{pace.per_second:,.1f} new requests a second, over {_console.duration(pace.seconds)}"
    return told if pace.seconds_left is None else f"{told}; full in {_console.duration(pace.seconds_left)}"


def _layers(found: FilterReport) -> str:
    head = ["layer", "full", "", "holds", "room", "error rate", "at most", "memory", "age"]
    rows = [
        _layer(index.index, described, age)
        for index, described, age in zip(found.stored.layers, found.info.by_layer, found.ages, strict=True)
    ]
    return _console.table([head, *rows])


def _layer(index: int, layer: LayerInfo, age: float) -> list[str]:
    share = layer.estimated_count / layer.capacity
    return [
        str(index),
        _console.bar(share),
        f"{share:.0%}",
        f"{layer.estimated_count:,}",
        f"{layer.capacity:,}",
        f"{layer.estimated_error_rate:.2g}",
        f"{layer.error_rate:.2g}",
        as_size(layer.memory_bytes),
        _console.duration(age),
    ]


def _queue(queue: QueueState) -> str:
    told = f"\nqueue {queue.key}: {queue.waiting:,} requests wait, {queue.dead_letters:,} are dead letters"
    if queue.has_losses:
        told += f", {f'{queue.lost:,} or more' if queue.lost else 'others'} were LOST with it"
    if queue.is_shared:
        told += ", scrapy-redis's scheduler takes some, so that a loss would not be noticed"
    if not queue.workers:
        return f"{told}, no worker of BloomScheduler"
    head = ["worker", "last heard of", "holds", ""]
    return f"{told}\n\n{_console.table([head, *map(_worker, queue.workers)])}"


def _worker(worker: RegisteredWorker) -> list[str]:
    heard = "unknown" if worker.silent is None else f"{_console.duration(worker.silent)} ago"
    state = "silent: others put back what it holds" if worker.is_silent else "closes the queue" * worker.is_closing
    return [worker.name, heard, f"{worker.holds:,}", state]
