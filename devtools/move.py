"""Export and restore a filter while processes add to it: missing items, seconds, bytes, memory.

`python -m devtools.move --number 10_000_000 --processes 8` starts a server of its own.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from typing import Any

from devtools.servers import Address, available, running
from scrapy_bloom.filter.bloom_filter import BloomFilter

_ROOT = Path(__file__).parents[1]
_BATCH = 1000


def command(*arguments: str) -> dict[str, float]:
    """Run an action of the command; return its seconds and its peak memory in megabytes."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "scrapy", "bloom", *arguments],
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"scrapy bloom {arguments[0]} ended with {status}")
    return {"seconds": round(time.monotonic() - began, 2), "peak MB": round(used.ru_maxrss / 1000, 1)}


def run(
    address: Address,
    directory: Path,
    *,
    key: str = "moved",
    number: int,
    processes: int,
    capacity: int,
    act: Callable[..., object] = command,
) -> dict[str, Any]:
    """Fill a filter, and move it by `act` while processes add more; return the measurements.

    `missing` counts those of the `number` original items that are not in the copy.
    """
    context = multiprocessing.get_context("spawn")
    signals = _Signals(context.Semaphore(0), context.Event(), context.SimpleQueue())
    common = (address, key, capacity)
    adders = [
        context.Process(target=_add, args=(*common, range(place, number, processes), signals))
        for place in range(processes)
    ]
    path = directory / "moved.bloom"
    measured: dict[str, Any] = {"number": number, "processes": processes}
    try:
        for adder in adders:
            adder.start()
        for _ in adders:
            signals.filled.acquire()
        before = _granted(*common)
        measured["export"] = act("export", "--key", key, "--redis-url", address.url, str(path))
        measured["restore"] = act("restore", "--key", f"{key}:copy", "--redis-url", address.url, str(path))
        measured["added meanwhile"] = _granted(*common) - before
    finally:
        signals.stop.set()
        for adder in adders:
            adder.join()
    measured["file bytes"] = path.stat().st_size
    with address.client() as client:
        measured["filter bytes"] = BloomFilter(client, f"{key}:copy", capacity=capacity).info().memory_bytes
    measured["missing"] = sum(signals.missing.get() for _ in adders)
    return measured


@dataclass(frozen=True)
class _Signals:
    """Between the processes: an adder is ready, all stop, its missing items."""

    filled: Semaphore
    stop: Event
    missing: "SimpleQueue[int]"


def _add(address: Address, key: str, capacity: int, numbers: range, signals: _Signals) -> None:
    """Add these items, signal it, add others until the stop, and look the first ones up in the copy."""
    with address.client() as client:
        bloom = BloomFilter(client, key, capacity=capacity)
        for batch in _batches(numbers):
            bloom.add_many(batch)
        signals.filled.release()
        further = 0
        while not signals.stop.is_set():
            bloom.add_many([f"{os.getpid()} {further + each}" for each in range(_BATCH)])
            further += _BATCH
        copy = BloomFilter(client, f"{key}:copy", capacity=capacity, cache_size=0)
        signals.missing.put(sum(copy.contains_many(batch).count(False) for batch in _batches(numbers)))


def _granted(address: Address, key: str, capacity: int) -> int:
    """Return the number of items in a filter."""
    with address.client() as client:
        return BloomFilter(client, key, capacity=capacity).info().count


def _batches(numbers: range) -> Iterator[Sequence[str]]:
    for start in range(0, len(numbers), _BATCH):
        yield [f"item {number}" for number in numbers[start : start + _BATCH]]


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1_000_000, help="items added before the move")
    parser.add_argument("--processes", type=int, default=8, help="processes that add meanwhile")
    options = parser.parse_args()
    with running(available()[0]) as server, tempfile.TemporaryDirectory() as directory:
        found = run(
            server.address,
            Path(directory),
            number=options.number,
            processes=options.processes,
            capacity=options.number,
        )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
