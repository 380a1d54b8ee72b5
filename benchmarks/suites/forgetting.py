"""The costs of forgotten items: a server's CPU time for claims and marks, and the memory of an item.

A filter in which nothing was forgotten has no marks, and asks for no claims. Under a mark each repeat that the cache
does not know is claimed, a batch in one script. The filters take turns; all of their checks are of repeats, in batches
of 100, without a cache.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from statistics import median

import redis

from benchmarks.harness import report
from benchmarks.harness.digests import fingerprints
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from devtools.servers import available, cpu_seconds, running
from scrapy_bloom import BloomFilter
from scrapy_bloom.storage.filter_keys import forgotten_key

ROUNDS = 15
BATCH = 100
BATCHES = 20
ITEMS = 20_000
CAPACITY = 5_000_000
# Shards of a mebibyte each.
SHARD_BYTES, SHARDS = 1 << 20, 64
UNMARKED, MARKED, CLAIMED = "no mark", "marks, not forgotten", "marks, forgotten"
SMALL, WIDE = "a small filter", "a large filter"


def run(_: Asked) -> list[Plot]:
    """Measure on each available server."""
    for kind in available():
        with running(kind) as server, server.client() as client:
            _claims(server.name, client)
            _marks(server.name, client)
            _memory(server.name, client)
    return []


def _claims(name: str, client: redis.Redis) -> None:
    items = list(islice(fingerprints(), ITEMS))
    filters = {kind: _filter(client, kind, items) for kind in (UNMARKED, MARKED, CLAIMED)}
    filters[MARKED].forget_many([b"another item"] if filters[MARKED].add("another item") else [])
    parts = [items[start : start + BATCH] for start in range(0, BATCH * BATCHES, BATCH)]

    def check(kind: str) -> float:
        if kind == CLAIMED:
            filters[kind].forget_many([item for part in parts for item in part])
        used = cpu_seconds(client)
        for part in parts:
            filters[kind].add_many(part)
        return (cpu_seconds(client) - used) / (BATCH * BATCHES)

    costs = interleave(ROUNDS, {kind: _bound(check, kind) for kind in filters})
    trips = {}
    for kind, bloom in filters.items():
        before = bloom.counters.round_trips
        bloom.add_many(parts[0])
        trips[kind] = bloom.counters.round_trips - before
    base = median(costs[UNMARKED])
    report.table(
        f"Repeats in batches of {BATCH}. {name}, a filter of {CAPACITY:,} at 1e-6; {ROUNDS} rounds, medians.",
        ("filter", "CPU to no mark", "server CPU, us", "more than without, us", "round trips a batch"),
        [
            (
                kind,
                report.times(ratio(cost, costs[UNMARKED])),
                f"{median(cost) * 1e6:.2f}",
                f"{(median(cost) - base) * 1e6:.2f}",
                str(trips[kind]),
            )
            for kind, cost in costs.items()
        ],
    )


def _marks(name: str, client: redis.Redis) -> None:
    small = BloomFilter(client, "small", capacity=100_000, shard_bytes=SHARD_BYTES)
    small.add("a")
    capacity = 100_000 * SHARD_BYTES * SHARDS // small.info().memory_bytes
    large = BloomFilter(client, "large", capacity=capacity, shard_bytes=SHARD_BYTES)
    large.add("a")
    filters = {SMALL: small, WIDE: large}

    def forget(kind: str) -> float:
        used = cpu_seconds(client)
        for _ in range(BATCHES):
            filters[kind].forget("a")
        return (cpu_seconds(client) - used) / BATCHES

    shards = {kind: bloom.info().shards for kind, bloom in filters.items()}
    costs = interleave(ROUNDS, {kind: _bound(forget, kind) for kind in filters})
    each = (median(costs[WIDE]) - median(costs[SMALL])) / (shards[WIDE] - shards[SMALL])
    report.table(
        f"One item forgotten. {name}; {ROUNDS} rounds, medians. A further shard costs {each * 1e6:.1f} us.",
        ("filter", "shards", "server CPU, us"),
        [(kind, str(shards[kind]), f"{median(cost) * 1e6:.1f}") for kind, cost in costs.items()],
    )


def _memory(name: str, client: redis.Redis) -> None:
    items = list(islice(fingerprints(), ITEMS))
    bloom = _filter(client, "memory", items)
    bloom.forget_many(items)
    usage = client.memory_usage(forgotten_key("memory"), samples=0) or 0
    report.line(f"\n{name}: {ITEMS:,} forgotten fingerprints of 40 characters take {usage / ITEMS:.0f} bytes each.")


def _filter(client: redis.Redis, key: str, items: Sequence[str | bytes]) -> BloomFilter:
    bloom = BloomFilter(client, key, capacity=CAPACITY, error_rate=1e-6, cache_size=0)
    bloom.add_many(items)
    return bloom


def _bound(call: Callable[[str], float], kind: str) -> Callable[[], float]:
    return lambda: call(kind)
