"""10^10 URLs on paper: nodes, memory, shards, opening and growth, computed from costs measured in this run.

A small filter on three masters of this machine gives the CPU time of an item, and another one the time to create and
to open a shard of 4 MB. Sizes come from the formulas of `scrapy bloom plan`; `fill` compares them with MEMORY USAGE. A
master is assumed to have 16 GB, of which the filter takes half: a snapshot or the next layer then finds room. No
network lies between workers and masters here; a real one adds a ping to each batch, but no CPU time of the filter.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

from benchmarks.harness import report
from benchmarks.harness.counters import Place, connected
from benchmarks.harness.crew import crew
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.subjects.batches import BATCH, Turn, adding, take
from benchmarks.suites.cluster import MASTERS, NEW_LINKS, PARAMETERS
from devtools.clusters import Cluster, running_cluster
from devtools.servers import available
from scrapy_bloom import BloomFilter
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.layer import NO_IDENTITY, Layer
from scrapy_bloom.filter.parameters import FilterParameters

URLS = 10_000_000_000
ERROR_RATE = 1e-6
SHARD_BYTES = 4 * 1024 * 1024
NODE_BYTES = 8_000_000_000
MIN_SHARD_BYTES = 1024 * 1024
ONE_SHARD_ITEMS, SHARDED_ITEMS = 200_000, 30_000_000
BATCHES, ROUNDS, OPENINGS = 100, 7, 10
PROCESSES = 16
KEY = "bench:scale"


class Costs(NamedTuple):
    """Seconds of CPU for an item, of a worker and of all servers, and seconds to create and to open a shard."""

    client: float
    server: float
    create: float
    open: float


def run(_: Asked) -> list[Plot]:
    """Measure the costs, and compute the plan."""
    kind = available()[0]
    with running_cluster(kind, MASTERS) as cluster:
        costs = _measure(cluster, BATCHES, SHARDED_ITEMS)
        name = cluster.nodes[0].name
    _print(name, costs)
    return []


def _measure(cluster: Cluster, batches: int, items: int) -> Costs:
    place = Place(cluster.url, KEY, PARAMETERS)
    with ExitStack() as stack:
        together = stack.enter_context(crew(adding, [[place]]))
        clients = [stack.enter_context(node.client()) for node in cluster.nodes]
        turns = [Turn(0, 1, batches, number * batches * BATCH) for number in range(ROUNDS + 1)]
        # The first turn creates the filter.
        _, *costs = [take(together, turn, clients) for turn in turns]
    report.say("  items")
    one, many = (
        _shard_costs(Place(cluster.url, f"{KEY}:{each}", FilterParameters(each, ERROR_RATE), MIN_SHARD_BYTES))
        for each in (ONE_SHARD_ITEMS, items)
    )
    report.say("  shards")
    shards = many.shards - one.shards
    return Costs(
        median(cost.client for cost in costs),
        median(cost.server for cost in costs),
        (many.create - one.create) / (many.bytes - one.bytes) * SHARD_BYTES,
        (many.open - one.open) / shards,
    )


class ShardCosts(NamedTuple):
    """The shards of a filter, their bytes, and the seconds to create it by its first addition, and to open it."""

    shards: int
    bytes: int
    create: float
    open: float


def _shard_costs(place: Place) -> ShardCosts:
    creations, openings = [], []
    with connected(place.url) as client:

        def opened() -> BloomFilter:
            return BloomFilter.with_parameters(client, place.key, place.parameters, shard_bytes=place.shard_bytes)

        for _ in range(ROUNDS):
            creations.append(_seconds(lambda: opened().add("first")))
            openings += [_seconds(opened) for _ in range(OPENINGS)]
            info = opened().info()
            opened().clear()
    # A disturbance would exceed the small difference between two openings.
    return ShardCosts(info.shards, info.bits // 8, median(creations), min(openings))


def planned(items: int) -> list[Layer]:
    """Return the layers of a filter for so many items: equal ones, if they exceed the limit of a layer."""
    for number in itertools.count(1):
        with contextlib.suppress(ConfigError):
            parameters = FilterParameters(-(-items // number), ERROR_RATE, 1)
            layers = [parameters.first_layer("", NO_IDENTITY, 0, 0.0, SHARD_BYTES)]
            while len(layers) < number:
                used = sum(layer.error_rate for layer in layers)
                layers.append(parameters.next_layer(layers[-1], used, 0.0, SHARD_BYTES))
            return layers
    raise AssertionError


def _print(server: str, costs: Costs) -> None:
    layers = planned(URLS)
    memory, shards = (sum(getattr(layer.size, name) for layer in layers) for name in ("memory_bytes", "shards"))
    masters = math.ceil(memory / NODE_BYTES)
    # An item that is new to a layer is looked up in all layers before it.
    checks = (len(layers) + 1) / 2
    capacity, rate = masters / costs.server / checks, PROCESSES / costs.client / checks
    sizes = " and ".join(f"{layer.size.memory_bytes / 1e9:.1f} GB" for layer in layers)
    rows = [
        ("layers", f"{len(layers)}: {sizes}", "computed by the plan's formulas"),
        ("memory", f"{memory / 1e9:.1f} GB, {memory / URLS:.2f} bytes a URL", "computed by the plan's formulas"),
        (f"shards of {SHARD_BYTES >> 20} MB", f"{shards:,}", "computed by the plan's formulas"),
        ("masters", f"{masters}", f"computed, {NODE_BYTES / 1e9:.0f} GB of the filter each"),
        ("checks an item", f"{checks:g}", "computed: a new item is looked up in each former layer"),
        ("CPU of the servers, us a check", f"{costs.server * 1e6:.1f}", f"measured, {MASTERS} masters"),
        ("CPU of a worker, us a check", f"{costs.client * 1e6:.1f}", f"measured, batches of {BATCH}"),
        ("items a second of all masters, a core each", f"{capacity:,.0f}", "computed from the CPU of the servers"),
        (f"items a second of {PROCESSES} worker processes", f"{rate:,.0f}", "computed from the CPU of a worker"),
        ("hours to add all of them", f"{URLS / min(capacity, rate) / 3600:.1f}", "computed from both"),
        ("pages a second", f"{min(capacity, rate) / NEW_LINKS:,.0f}", f"computed, {NEW_LINKS} new links a page"),
        (f"creation, us a shard of {SHARD_BYTES >> 20} MB", f"{costs.create * 1e6:,.0f}", "measured"),
        (
            "creation of the first layer, s",
            f"{costs.create * layers[0].size.shards:.0f}",
            "computed, a shard a round trip",
        ),
        ("opening by a worker, us a shard", f"{costs.open * 1e6:.1f}", "measured"),
        ("opening by a worker, s", f"{costs.open * shards:.2f}", "computed"),
        (
            "additions that prepare the next layer",
            f"{layers[-1].size.shards:,}",
            "computed, a shard an addition, of some million additions in the last eighth of a layer",
        ),
    ]
    report.table(f"{URLS:,} URLs at {ERROR_RATE:g}. Costs: {server}.", ("", "value", "how"), rows)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
