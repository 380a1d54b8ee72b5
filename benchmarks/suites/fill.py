"""A filter filled to its capacity by two processes: memory, rate, and error rate.

Two processes add distinct items by `add_many` in batches of 1,000, with the library's default settings. `--large` adds
10^8 items and looks up 10^9 others, otherwise it is a hundredth of both. The items are numbers of 8 bytes. The lookups
are made by `benchmarks/harness/probe.c`, over the filter's exported bits; before, its positions are compared with the
library's for 15,000 items.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import redis

from benchmarks.harness import report
from benchmarks.harness.counters import Place, Share
from benchmarks.harness.crew import crew
from benchmarks.harness.fill_by_processes import shares
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.harness.probes import Probe, export, stored_layer
from benchmarks.subjects.batches import adding
from benchmarks.suites.cluster import LEAST_ITEMS_A_SECOND
from devtools.servers import Server, available, cpu_seconds, memory_usage, running
from scrapy_bloom.filter.parameters import FilterParameters

ITEMS, LARGE_ITEMS = 1_000_000, 100_000_000
PROBES_AN_ITEM = 10
ERROR_RATE = 1e-6
PROCESSES = 2
BATCH = 1_000
PARTS = 20
KEY = "bench:fill"

Result = TypeVar("Result")


class Filled(NamedTuple):
    """The costs of a filling, its items a second in each part, and the number of new items called seen."""

    items: int
    seconds: float
    rates: list[float]
    client_cpu: float
    server_cpu: float
    called_seen: int


def run(asked: Asked) -> list[Plot]:
    """Fill a filter, and look up items that were never added."""
    items = LARGE_ITEMS if asked.large else ITEMS
    with running(available()[0]) as server, server.client() as client:
        _run(server, client, items, items * PROBES_AN_ITEM)
    return []


def _run(server: Server, client: redis.Redis, items: int, probes: int) -> None:
    parameters = FilterParameters(items, ERROR_RATE)
    place = Place(server.url, KEY, parameters)
    before = int(client.info("memory")["used_memory"])
    filled = _fill(client, place, items)
    report.table(
        f"{items:,} items at an error rate of {ERROR_RATE:g}, filled by {PROCESSES} processes. {server.name}.",
        ("", "measured"),
        [*_rows(filled), *_memory_rows(client, place, before)],
    )
    report.least(f"items a second of {PROCESSES} processes", filled.items / filled.seconds, LEAST_ITEMS_A_SECOND)
    _print_error_rate(client, place, items, probes)
    with place.opened() as bloom:
        _, seconds = _timed(bloom.clear)
    report.line(f"\n`clear` took {seconds:.3f} s.")


def _fill(client: redis.Redis, place: Place, items: int) -> Filled:
    used = cpu_seconds(client)
    seconds, cpu, new, rates = 0.0, 0.0, 0, []
    with crew(adding, [[place]] * PROCESSES) as together:
        for number, part in enumerate(shares(0, items, PARTS), 1):
            tasks = [Share(0, share.start, share.stop, BATCH) for share in shares(part.start, part.stop, PROCESSES)]
            work = together.work(tasks)
            seconds, cpu, new = seconds + work.seconds, cpu + work.cpu, new + sum(work.results)
            rates.append(len(part) / work.seconds)
            report.say(f"  {number} of {PARTS}: {rates[-1]:,.0f} items a second")
    return Filled(items, seconds, rates, cpu, cpu_seconds(client) - used, items - new)


def _rows(filled: Filled) -> list[tuple[str, str]]:
    return [
        ("items a second", f"{filled.items / filled.seconds:,.0f}"),
        (f"items a second in the slowest of {PARTS} parts", f"{min(filled.rates):,.0f}"),
        (f"items a second in the fastest of {PARTS} parts", f"{max(filled.rates):,.0f}"),
        ("seconds", f"{filled.seconds:,.1f}"),
        ("CPU of the processes, us an item", f"{filled.client_cpu / filled.items * 1e6:.2f}"),
        ("CPU of the server, us an item", f"{filled.server_cpu / filled.items * 1e6:.2f}"),
        ("new items called seen while it filled", f"{filled.called_seen:,}"),
    ]


def _memory_rows(client: redis.Redis, place: Place, before: int) -> list[tuple[str, str]]:
    planned, used = place.parameters.memory_bytes, memory_usage(client, place.key)
    grown = int(client.info("memory")["used_memory"]) - before
    shards = stored_layer(client, place.key, place.parameters).shard_keys
    of_layer = sum(client.memory_usage(key, samples=0) or 0 for key in (place.key, *shards))
    return [
        ("bytes planned (`scrapy bloom plan`)", f"{planned:,}"),
        ("bytes of its shards and its hash by MEMORY USAGE", f"{of_layer:,}"),
        ("these bytes to the plan", f"{of_layer / planned:.4f}"),
        ("these bytes an item", f"{of_layer / place.parameters.capacity:.3f}"),
        ("bytes prepared for the next layer", f"{used - of_layer:,}"),
        ("growth of the server's used_memory", f"{grown:,}"),
    ]


def _print_error_rate(client: redis.Redis, place: Place, items: int, probes: int) -> None:
    with place.opened() as bloom:
        info = bloom.info()
    by_bits = f"By samples of the bits {info.estimated_error_rate:.2e}, with {info.layers} layer."
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-") as name:
        directory = Path(name)
        try:
            probe = Probe(directory)
        except FileNotFoundError as error:
            report.line(f"\nError rate not measured by lookups: {error}. {by_bits}")
            return
        layer = stored_layer(client, place.key, place.parameters)
        probe.require_same_positions(layer)
        report.say("  exporting")
        shards = export(client, layer, directory)
        report.say(f"  looking up {probes:,} items")
        present, seconds = _timed(lambda: probe.count(layer, shards, items, probes))
        missing = items - probe.count(layer, shards, 0, items)
    report.line(
        f"\nError rate when full: {present:,} of {probes:,} new items called seen, {report.rate(present, probes)}, by "
        f"lookups in {seconds:,.0f} s. {by_bits} Of the added items {missing:,} are missing."
    )
    report.target("error rate, times the promised one,", present / probes / ERROR_RATE, 1)


def _timed(call: Callable[[], Result]) -> tuple[Result, float]:
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started
