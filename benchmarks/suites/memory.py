"""The bytes of a filter and a queue on a server, and of a full cache in a process.

The bytes of a filter are compared with the theoretical minimum, a SET and RedisBloom. Nothing is rounded in its favor:
bytes are MEMORY USAGE of all its keys, including the hash of its parameters. Pending requests are those of
BloomScheduler, with Scrapy's `Referer` and depth. The append-only file is not rewritten meanwhile.
"""

import math
import tracemalloc
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import redis
from scrapy import Request
from scrapy.utils.request import fingerprint

from benchmarks.harness import redisbloom, report
from benchmarks.harness.plots import Bars, Plot
from benchmarks.harness.urls import fingerprints, url, urls
from benchmarks.subjects.queued import scheduling
from devtools.servers import available, memory_usage, running
from scrapy_bloom import BloomFilter
from scrapy_bloom.cache import TwoGenerationCache
from scrapy_bloom.fingerprints import Marks
from scrapy_bloom.settings import CACHE_SIZE


class Case(NamedTuple):
    """The parameters of a filter."""

    capacity: int
    error_rate: float
    expansion: int

    @property
    def textbook_bits(self) -> float:
        """The theoretical minimum of bits: -n ln p / (ln 2)^2."""
        return -self.capacity * math.log(self.error_rate) / math.log(2) ** 2


RATES = (1e-3, 1e-6)
SET_SIZES = (10_000, 100_000, 1_000_000)
BATCH = 10_000
SERIALIZERS = {"pickle": None, "MessagePack": "scrapy_bloom.serializer"}
PENDING, QUEUE = 20_000, "bench:requests"
REPEATS = (1_024, CACHE_SIZE.default)
PROMISED = Case(5_000_000, 1e-6, 0)
GROWING = [Case(10**power, rate, 2) for rate in RATES for power in range(4, 8)]
CASES = [*GROWING, PROMISED, PROMISED._replace(expansion=2)]
# The one of the picture, whose SET is measured, too.
DRAWN = Case(1_000_000, 1e-6, 2)
MOST_TIMES_TEXTBOOK = 1.15
MOST_TIMES_BITS = 1.03
OURS, REDISBLOOM = "scrapy-bloom", "RedisBloom"


class Measured(NamedTuple):
    """One server's figures: bits and bytes by case, RedisBloom's bytes, and bytes per SET member by size."""

    bits: dict[Case, int]
    filters: dict[Case, int]
    redisbloom: dict[Case, int]
    sets: dict[int, float]

    def times_bits(self, case: Case) -> float:
        """Return the ratio of MEMORY USAGE to the bits alone."""
        return self.filters[case] * 8 / self.bits[case]


def run(_: Sequence[Path]) -> list[Plot]:
    """Measure on each available server."""
    options = redisbloom.server_options()
    drawn: list[Plot] = []
    for kind in available():
        with running(kind, *options) as server, server.client(protocol=3) as client:
            measured = _measure(client, has_module=bool(options))
            report.say(f"  {server.name}")
            _print(server.name, measured)
            drawn = drawn or ([_plot(measured)] if DRAWN in measured.filters else [])
        _print_queue(kind)
    _print_process()
    return drawn


def _measure(client: redis.Redis, *, has_module: bool) -> Measured:
    measured = Measured({}, {}, {}, {})
    for case in CASES:
        bloom = BloomFilter(client, "bench:bloom", **case._asdict())
        # The first addition allocates the bits.
        bloom.add("first")
        measured.bits[case] = bloom.info().bits
        measured.filters[case] = memory_usage(client, "bench:bloom")
        bloom.clear()
        if has_module:
            _reserve(client, "bench:redisbloom", case)
            measured.redisbloom[case] = memory_usage(client, "bench:redisbloom")
            client.delete("bench:redisbloom")
    endless = fingerprints()
    for members in SET_SIZES:
        while (count := client.scard("bench:set")) < members:
            client.sadd("bench:set", *islice(endless, min(BATCH, members - count)))
        measured.sets[members] = memory_usage(client, "bench:set") / members
    return measured


def _reserve(client: Any, key: str, case: Case) -> None:
    how = ("EXPANSION", case.expansion) if case.expansion else ("NONSCALING",)
    client.execute_command("BF.RESERVE", key, case.error_rate, case.capacity, *how)


def _print(server: str, measured: Measured) -> None:
    a_member = measured.sets[max(SET_SIZES)]
    rows = [
        (
            f"{case.capacity:,}",
            f"{case.error_rate:g}",
            f"{case.expansion}",
            f"{measured.bits[case] / case.textbook_bits:.3f}",
            f"{measured.times_bits(case):.3f}",
            f"{a_member * case.capacity / measured.filters[case]:.1f}",
            f"{measured.redisbloom[case] / measured.filters[case]:.2f}" if measured.redisbloom else "-",
            f"{measured.filters[case] / case.capacity:.2f}",
        )
        for case in CASES
    ]
    report.table(
        f"New filters on {server}. A SET has the bytes a member of one with {max(SET_SIZES):,}.",
        (
            *("capacity", "error rate", "expansion", "bits to textbook", "bytes to bits"),
            *("SET to filter", "RedisBloom to filter", "bytes a URL"),
        ),
        rows,
    )
    sizes = [(f"{members:,}", f"{each:.1f}") for members, each in measured.sets.items()]
    report.table(f"A SET of fingerprints on {server}.", ("members", "bytes a URL"), sizes)
    promise = f"{PROMISED.capacity:,} at {PROMISED.error_rate:g}, expansion {PROMISED.expansion}"
    to_textbook = measured.bits[PROMISED] / PROMISED.textbook_bits
    report.target(f"{server}: bits of {promise}, times the textbook's,", to_textbook, MOST_TIMES_TEXTBOOK)
    report.target(f"{server}: bytes of {promise}, times its bits,", measured.times_bits(PROMISED), MOST_TIMES_BITS)


def _print_queue(kind: str) -> None:
    """Print the bytes of pending requests, and by how many each new one lengthens the append-only file."""
    rows = []
    for name, serializer in SERIALIZERS.items():
        with (
            running(kind, "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0") as server,
            server.client() as client,
            scheduling(server.url, SCHEDULER_SERIALIZER=serializer, SCHEDULER_QUEUE_KEY=QUEUE) as scheduler,
        ):
            before = client.info("persistence")["aof_current_size"]
            for link in urls(0, PENDING):
                request = Request(link, scheduler.spider.parse, headers={"Referer": url(0)}, meta={"depth": 3})
                scheduler.enqueue_request(request)
            written = client.info("persistence")["aof_current_size"] - before
            pending = client.zcard(QUEUE)
            rows.append((name, f"{memory_usage(client, QUEUE) / pending:.0f}", f"{written / pending:.0f}"))
    title = f"Pending requests on {server.name}, with URLs of {_mean_length():.0f} characters"
    report.table(title, ("serializer", "bytes each", "bytes of the append-only file"), rows)


def _mean_length() -> float:
    return sum(map(len, urls(0, 1000))) / 1000


def _print_process() -> None:
    """Print the memory of a full cache: URLs, fingerprints and both containers."""
    rows = []
    for size in REPEATS:
        tracemalloc.start()
        remembered = Marks(lambda request: fingerprint(request).hex().encode(), size)
        seen: TwoGenerationCache[bytes, bool] = TwoGenerationCache(size)
        for link in urls(0, 2 * size):
            seen.put(remembered(Request(link), b""), True)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows.append((f"{size:,}", f"{taken / 1e6:.1f}", f"{taken / size:.0f}"))
    title = f"A process with a full cache (BLOOMFILTER_CACHE_SIZE), with URLs of {_mean_length():.0f} characters:"
    report.table(title, ("repeats", "MB", "bytes each"), rows)


def _plot(measured: Measured) -> Bars:
    set_bytes = measured.sets[DRAWN.capacity]
    redisbloom_bytes = {REDISBLOOM: measured.redisbloom[DRAWN]} if measured.redisbloom else {}
    totals = {OURS: measured.filters[DRAWN], **redisbloom_bytes, "theoretical minimum": DRAWN.textbook_bits / 8}
    values = {"SET": set_bytes, **{name: total / DRAWN.capacity for name, total in totals.items()}}
    return Bars("memory", f"Bytes for each of {DRAWN.capacity:,} URLs", {"error rate 1e-6": values})
