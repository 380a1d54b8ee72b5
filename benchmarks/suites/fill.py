"""A filter filled to its capacity by two processes: memory, rate, and error rate.

Two processes add distinct items by `add_many` in batches of 500, with the library's default settings. `--large` adds
10^8 items, otherwise it is a hundredth of them. The items are numbers of 8 bytes. Then 10^8 random digests are looked
up in the exported bits of the first layer (`benchmarks/harness/blocks.c`), or 10^9 with `--large`.
"""

import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.filling import Place, counters, shares
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from devtools.servers import Server, available, cpu_seconds, running
from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.sizing import BLOCK_BITS, BLOCK_BYTES

ITEMS, PROBES = 1_000_000, 100_000_000
TIMES_LARGER, TIMES_MORE_PROBES = 100, 10
ERROR_RATE = 1e-6
PROCESSES = 2
BATCH = 500
KEY = "bench:fill"
MOST_BYTES = 4.3

_SOURCE = Path(__file__).parents[1] / "harness" / "blocks.c"


def run(asked: Asked) -> list[Plot]:
    """Fill a filter, and look up items that were never added."""
    items, probes = (ITEMS * TIMES_LARGER, PROBES * TIMES_MORE_PROBES) if asked.large else (ITEMS, PROBES)
    with running(available()[0]) as server, server.client() as client:
        place = Place(server.url, KEY, FilterParameters(items, ERROR_RATE))
        rows = _fill(client, place, items)
        bloom = place.open()
        missing = sum(
            bloom.contains_many(counters(part.start, part.stop)).count(False)
            for part in shares(0, items, max(1, items // BATCH))
        )
        _print(server, client, [*rows, ("added items that are missing", f"{missing:,}")], bloom, probes)
    return []


def _fill(client: Any, place: Place, items: int) -> list[tuple[str, str]]:
    with multiprocessing.get_context("spawn").Pool(PROCESSES, _open, (place,)) as pool:
        pool.map(_add, [range(0)] * PROCESSES, 1)  # both have opened the filter
        used, before = cpu_seconds(client), int(client.info("memory")["used_memory"])
        began = time.monotonic()
        new, cpu = map(sum, zip(*pool.map(_add, shares(0, items, PROCESSES), 1), strict=True))
        seconds = time.monotonic() - began
    used = cpu_seconds(client) - used
    grown = int(client.info("memory")["used_memory"]) - before
    return [
        ("items a second", f"{items / seconds:,.0f}"),
        ("CPU of the processes, us an item", f"{cpu / items * 1e6:.2f}"),
        ("CPU of the server, us an item", f"{used / items * 1e6:.2f}"),
        ("new items called seen while it filled", f"{items - new:,}"),
        ("growth of the server's used_memory, with the next layer's prepared shards", f"{grown:,}"),
    ]


_opened: list[BloomFilter] = []  # in a process of the pool


def _open(place: Place) -> None:
    _opened.append(place.open())


def _add(share: range) -> tuple[int, float]:
    """Add a share in batches; return how many were new, and the CPU seconds of this process."""
    used, new = time.process_time(), 0
    for start in range(share.start, share.stop, BATCH):
        new += sum(_opened[0].add_many(counters(start, min(start + BATCH, share.stop))))
    return new, time.process_time() - used


def _print(server: Server, client: Any, rows: list[tuple[str, str]], bloom: BloomFilter, probes: int) -> None:
    info = bloom.info()
    first, items = info.by_layer[0], bloom.parameters.capacity
    shards = shards_of_layer(client, KEY, 1)
    of_layer = sum(client.memory_usage(key, samples=0) or 0 for key in (KEY, *shards))
    report.table(
        f"{items:,} items at an error rate of {ERROR_RATE:g}, filled by {PROCESSES} processes. {server.name}.",
        ("", "measured"),
        [
            *rows,
            ("bytes planned (`scrapy bloom plan`)", f"{first.memory_bytes:,}"),
            ("bytes of its shards and its hash by MEMORY USAGE", f"{of_layer:,}"),
            ("these bytes to the plan", f"{of_layer / first.memory_bytes:.4f}"),
        ],
    )
    report.target("bytes of a URL at 1e-6, by MEMORY USAGE,", of_layer / items, MOST_BYTES)
    bits = b"".join(client.get(name) for name in shards)
    ones = [
        int.from_bytes(bits[at : at + BLOCK_BYTES], "little").bit_count() for at in range(0, len(bits), BLOCK_BYTES)
    ]
    exact = sum((each / BLOCK_BITS) ** first.hashes for each in ones) / len(ones)
    report.target("error rate of the full layer by its bits, times the promised one,", exact / ERROR_RATE, 1)
    report.line(f"\nBy its counts {info.current_error_rate:.2e}, with {info.layers} layer.")
    found = probed(bits, first.hashes, probes)
    if found is None:
        report.line("\nThere is no C compiler `cc` on this machine: no probes.")
    else:
        report.line(f"\nBy {probes:,} probes, of which {found:,} found all bits: {report.rate(found, probes)}.")


def shards_of_layer(client: Any, key: str, layer: int) -> list[bytes]:
    """Return the keys of a layer's shards in order; the first layer is 1."""
    names = client.scan_iter(f"{{{key}}}:*:{layer}:*")
    return sorted(names, key=lambda name: int(name.rpartition(b":")[2]))


def probed(bits: bytes, hashes: int, probes: int) -> int | None:
    """Return how many of so many random digests have all their bits set, or None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-") as folder:
        program, blocks = Path(folder) / "blocks", Path(folder) / "bits"
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, _SOURCE], check=True)
        blocks.write_bytes(bits)
        seed = int.from_bytes(os.urandom(8), "little")
        arguments = [str(each) for each in (len(bits) // BLOCK_BYTES, hashes, probes, seed)]
        done = subprocess.run([program, *arguments, blocks], check=True, capture_output=True, text=True)
    return int(done.stdout)
