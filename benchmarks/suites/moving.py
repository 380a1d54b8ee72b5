"""The pause of a node while MIGRATE moves a shard to another node, by the size of the shard.

A node serves no client while it moves a key: it packs the key, sends it, and waits until the other node has stored it.
So the time of the command is the pause. Half of the bits are ones, as in a full filter. Both servers and this process
share the cores of this machine, and the connection is the loopback interface.
"""

import os
import time
from collections.abc import Mapping, Sequence
from statistics import median

import redis

from benchmarks.harness import report
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from devtools.servers import Server, available, running

MEBIBYTES = (1, 4, 8, 32)
MOVES = 20
KEY = "bench:moving"
TIMEOUT_MILLISECONDS = 60_000


def run(_: Asked) -> list[Plot]:
    """Measure on each available server."""
    for kind in available():
        with running(kind) as one, running(kind) as other:
            seconds = {size: moves(one, other, size << 20) for size in MEBIBYTES}
            _print(one.name, seconds)
    return []


def moves(one: Server, other: Server, size: int) -> list[float]:
    """Move a string of random bits back and forth between two servers; return the seconds of each move."""
    found = []
    with one.client() as first, other.client() as second:
        first.set(KEY, os.urandom(size))
        for _ in range(MOVES // 2):
            found += [_move(first, other), _move(second, one)]
        if first.strlen(KEY) != size or second.exists(KEY):
            raise RuntimeError("the string was lost on its way")
        first.unlink(KEY)
    return found


def _move(source: redis.Redis, target: Server) -> float:
    began = time.perf_counter()
    source.migrate("127.0.0.1", target.port, KEY, 0, TIMEOUT_MILLISECONDS)
    return time.perf_counter() - began


def _print(server: str, seconds: Mapping[int, Sequence[float]]) -> None:
    smallest = median(seconds[MEBIBYTES[0]])
    report.table(
        f"Pause of a node that moves a shard; {server}, {MOVES} moves each.",
        ("MiB", "times the smallest", "median, ms", "longest, ms"),
        [
            (f"{size}", report.times(median(each) / smallest), f"{median(each) * 1e3:.1f}", f"{max(each) * 1e3:.1f}")
            for size, each in seconds.items()
        ],
    )
