"""Caches of the last repeats: the candidates over the links of two real sites.

A bounded cache of URLs is asked about each link, and stores the link on a miss. Hits are a share of all links; the
unbounded dict has the highest possible. Times are of lookups and insertions; bytes are those of the container,
without the URLs. The last table is the memory of a full cache in a process: URLs, fingerprints and both containers.
"""

import sys
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any, Protocol

import cachetools
from scrapy import Request
from scrapy.utils.request import fingerprint

from benchmarks.harness import report
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import urls
from benchmarks.suites.repeats import POSTGRESQL, PYTHON, streams
from scrapy_bloom._cache import TwoGenerationCache
from scrapy_bloom._scrapy.fingerprints import CachedFingerprints
from scrapy_bloom.options import CACHE_SIZE

SIZES = (256, 1_024, 65_536)
ROUNDS = 5
OURS = "Recent: two generations"


class Memory(Protocol):
    """A candidate."""

    def get(self, key: str) -> Any:
        """Return the value, or None."""

    def put(self, key: str, value: bool) -> None:
        """Store the value."""


class Lru:
    """An OrderedDict that evicts the least recently used key."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.known: OrderedDict[str, bool] = OrderedDict()

    def get(self, key: str) -> bool | None:
        """Return the value, and make the key the most recent."""
        value = self.known.get(key)
        if value:
            self.known.move_to_end(key)
        return value

    def put(self, key: str, value: bool) -> None:
        """Store the value; evict another if full."""
        if len(self.known) >= self._size:
            self.known.popitem(last=False)
        self.known[key] = value


# Where the types are checked, cachetools may be missing, or may have types.
class Library(cachetools.LRUCache):  # type: ignore[misc, type-arg, unused-ignore]
    """cachetools' LRUCache."""

    def put(self, key: str, value: bool) -> None:
        """Store the value."""
        self[key] = value


class Everything(dict[str, bool]):
    """An unbounded dict."""

    def put(self, key: str, value: bool) -> None:
        """Store the value."""
        self[key] = value


CANDIDATES: dict[str, Callable[[int], Any]] = {
    OURS: TwoGenerationCache,
    "LRU: OrderedDict": Lru,
    "LRU: cachetools": Library,
    "a dict, unbounded": lambda _: Everything(),
}


def run(_: Asked) -> list[Plot]:
    """Look up every link in each candidate."""
    for site, pages in streams().items():
        if site in (PYTHON, POSTGRESQL):
            _measure(site, list(chain.from_iterable(pages)))
    _print_process()
    return []


def _print_process() -> None:
    """Print the memory of a full cache."""
    rows = []
    for size in (1_024, CACHE_SIZE.default):
        tracemalloc.start()
        remembered = CachedFingerprints(lambda request: fingerprint(request).hex(), size)
        seen: TwoGenerationCache[bytes, bool] = TwoGenerationCache(size)
        for link in urls(0, 2 * size):
            seen.put(remembered(Request(link)), True)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows.append((f"{size:,}", f"{taken / 1e6:.1f}", f"{taken / size:.0f}"))
    length = sum(map(len, urls(0, 1000))) / 1000
    report.table(
        f"A process with a full cache (BLOOMFILTER_CACHE_SIZE), with URLs of {length:.0f} characters:",
        ("repeats", "MB", "bytes each"),
        rows,
    )


def _measure(site: str, links: list[str]) -> None:
    rows = []
    for size in SIZES:
        runs = {name: Run(make, size, links) for name, make in CANDIDATES.items()}
        costs = interleave(ROUNDS, {name: each.take for name, each in runs.items()})
        rows += [
            (
                f"{name}, {size:,}",
                f"{runs[name].hits / len(links):.2%}",
                report.times(ratio(cost, costs[OURS])),
                f"{median(cost) / len(links) * 1e9:.0f}",
                f"{runs[name].bytes:,}",
            )
            for name, cost in costs.items()
        ]
    columns = ("candidate, size", "hits", "time to ours", "ns a link", "bytes of the container")
    report.table(f"{site}: {len(links):,} links, medians of {ROUNDS} rounds.", columns, rows)


@dataclass
class Run:
    """A candidate over a stream: its hits, and its bytes at the end."""

    make: Callable[[int], Any]
    size: int
    links: list[str]
    hits: int = 0
    bytes: int = 0

    def take(self) -> float:
        """Replay the stream with an empty candidate, and return the seconds."""
        memory = self.make(self.size)
        # As in a crawl, each link is a new string without a cached hash.
        self.hits, seconds = _ask(memory, [(link + " ")[:-1] for link in self.links])
        self.bytes = _bytes(memory)
        return seconds


def _ask(memory: Memory, links: list[str]) -> tuple[int, float]:
    hits = 0
    get, put = memory.get, memory.put
    started = time.perf_counter()
    for link in links:
        if get(link):
            hits += 1
        else:
            put(link, True)
    return hits, time.perf_counter() - started


def _bytes(memory: Any) -> int:
    parts = [memory, *getattr(memory, "__dict__", {}).values()]
    return sum(sys.getsizeof(part) for part in parts if isinstance(part, dict))
