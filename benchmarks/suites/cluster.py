"""A cluster of three masters compared with one server: time, CPU and balance.

One, two and four worker processes add batches of 100 new items to a filter on one server and to a filter on three
masters, in turns. All of them share this machine's cores with the servers. Therefore three costs of an item are
reported apart. The first is the time by the clock, multiplied by the number of workers. The second is the CPU time of
the workers: the library's own cost. The third is the CPU time of all servers. Ratios are medians of the ratios within
each round.

Pages a second assume 50 links a page: 5 of them, or 10 %, are new and reach the filter, and the worker's cache answers
the other 45. In the last column all 50 links reach the filter.

A cluster's shards have names that spread over its slots. Their balance is that of the fullest master: its shards
relative to the mean, at worst over all numbers of shards from 20 to 30 a master, and over ten filters.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from benchmarks.harness import report
from benchmarks.harness.counters import Place
from benchmarks.harness.crew import crew
from benchmarks.harness.interleaved import ratio, rotated
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.subjects.batches import BATCH, Cost, Turn, adding, take
from devtools.clusters import Cluster, running_cluster, slot_of
from devtools.servers import Server, available, running
from scrapy_bloom.filter.layer import NO_IDENTITY, Identity, Layer
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.sizing import LayerSize

MASTERS = 3
WORKERS = (1, 2, 4)
ROUNDS = 9
BATCHES = 200
PARAMETERS = FilterParameters(20_000_000, 1e-6, 0)
KEY = "bench:cluster"
NEW_LINKS, LINKS = 5, 50
BALANCED, KEYS = (3, 6, 12), 10
LEAST_SHARDS, MOST_SHARDS = 20, 30
SHARD_BYTES = 1 << 20

MOST_TIMES_ONE_SERVER = 1.3
LEAST_ITEMS_A_SECOND = 100_000
MOST_TIMES_MEAN = 1.05
ONE, THREE = "one server", "three masters"


class Way(NamedTuple):
    """A place, and a number of workers."""

    place: str
    workers: int


def run(_: Asked) -> list[Plot]:
    """Measure each kind of server on this machine."""
    for kind in available():
        with running(kind) as server, running_cluster(kind, MASTERS) as cluster:
            _print(server, _measure(server, cluster, ROUNDS, BATCHES))
            _print_shards(cluster)
    _print_balance()
    return []


def _measure(server: Server, cluster: Cluster, rounds: int, batches: int) -> dict[Way, list[Cost]]:
    nodes: Mapping[str, Sequence[Server]] = {ONE: [server], THREE: cluster.nodes}
    places = [Place(url, KEY, PARAMETERS) for url in (server.url, cluster.url)]
    ways = [Way(place, workers) for workers in WORKERS for place in nodes]
    costs: dict[Way, list[Cost]] = {way: [] for way in ways}
    # The first turns create the filters, open them in each worker, and touch their memory.
    warming = [Way(place, max(WORKERS)) for place in nodes]
    start = 0
    with ExitStack() as stack:
        together = stack.enter_context(crew(adding, [places] * max(WORKERS)))
        clients = {place: [stack.enter_context(node.client()) for node in each] for place, each in nodes.items()}
        for number in range(-1, rounds):
            for way in warming if number < 0 else rotated(ways, number):
                turn = Turn(list(nodes).index(way.place), way.workers, batches, start)
                cost = take(together, turn, clients[way.place])
                start += turn.items
                if number >= 0:
                    costs[way].append(cost)
        report.say(f"  {server.name}: {start:,} items")
    return costs


def _print(server: Server, costs: Mapping[Way, Sequence[Cost]]) -> None:
    rows = []
    for way, each in costs.items():
        one = costs[Way(ONE, way.workers)]
        rate = median(way.workers / cost.clock for cost in each)
        ratios = [report.times(_ratio(each, one, name)) for name in Cost._fields]
        micros = [f"{median(getattr(cost, name) for cost in each) * 1e6:.1f}" for name in Cost._fields]
        pages = [f"{rate / links:,.0f}" for links in (NEW_LINKS, LINKS)]
        rows.append((way.place, str(way.workers), *ratios, f"{rate:,.0f}", *micros, *pages))
    report.table(
        f"Batches of {BATCH} new items. {server.name}, medians of {len(next(iter(costs.values())))} rounds; costs "
        "relative to one server's, then in us an item.",
        (
            *("filter on", "workers", "clock", "CPU of workers", "CPU of servers", "items a second"),
            *("us by the clock", "us of workers", "us of servers"),
            *(f"pages a second, {NEW_LINKS} checks each", f"{LINKS} checks each"),
        ),
        rows,
    )
    for name, cost in (("CPU time of one worker", "client"), ("time of one worker by the clock", "clock")):
        measured = _ratio(costs[Way(THREE, 1)], costs[Way(ONE, 1)], cost)
        report.target(
            f"{server.name}: {name} for an item on three masters, times that on one server,",
            measured,
            MOST_TIMES_ONE_SERVER,
        )
    rate = median(2 / cost.clock for cost in costs[Way(ONE, 2)])
    report.least(f"{server.name}: items a second of two processes in batches of {BATCH}", rate, LEAST_ITEMS_A_SECOND)


def _ratio(costs: Sequence[Cost], others: Sequence[Cost], name: str) -> float:
    return ratio([getattr(cost, name) for cost in costs], [getattr(cost, name) for cost in others])


def _print_balance() -> None:
    rows, worst = [], 0.0
    for masters in BALANCED:
        spread, plain = (_worst_balance(masters, is_spread=each) for each in (True, False))
        rows.append((f"{masters}", f"{spread - 1:.1%}", f"{plain - 1:.1%}"))
        worst = max(worst, spread)
    report.table(
        f"The fullest master's shards above the mean, with {LEAST_SHARDS} to {MOST_SHARDS} shards a master (computed).",
        ("masters", "names that spread", "plain names"),
        rows,
    )
    report.target("shards of the fullest master, times the mean,", worst, MOST_TIMES_MEAN)


def _worst_balance(masters: int, *, is_spread: bool) -> float:
    """Return the largest ratio of the fullest master's shards to the mean."""
    identity = NO_IDENTITY._replace(is_spread=is_spread)
    return max(
        max(shards_by_master(f"{KEY}:{number}", identity, shards, masters)) * masters / shards
        for number in range(KEYS)
        for shards in range(LEAST_SHARDS * masters, MOST_SHARDS * masters)
    )


def shards_by_master(key: str, identity: Identity, shards: int, masters: int) -> list[int]:
    """Return the number of a layer's shards on each master, if all masters have equally many slots."""
    layer = Layer(key, 0, identity, 1, 0.5, LayerSize(1, 8 * shards, shards), 0.0)
    counts = Counter(slot_of(name) * masters // REDIS_CLUSTER_HASH_SLOTS for name in layer.shard_keys)
    return [counts[master] for master in range(masters)]


def _print_shards(cluster: Cluster) -> None:
    """Print the shards on each master of a real cluster."""
    place = Place(cluster.url, f"{KEY}:balance", PARAMETERS, SHARD_BYTES)
    with place.opened() as bloom:
        bloom.add("first")
        counts = []
        for node in cluster.nodes:
            with node.client() as client:
                counts.append(sum(1 for _ in client.scan_iter(f"{place.key}:*", count=1_000)))
        bloom.clear()
    report.line(f"\nShards of a filter with {sum(counts)}, by master of the cluster: {counts}.")
