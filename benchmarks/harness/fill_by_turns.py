"""Fill a filter by several workers in turns, and look up items that were never added.

Each worker is a filter object over the same store. One process steps them one after another, so that each filling is
reproducible; `fill_by_processes` uses processes.
"""

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from benchmarks.harness.outcome import Outcome, total
from benchmarks.subjects.fillings import ONE_BY_ONE, Filling, turns
from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.storage.stores import MemoryStore

CHUNK = 5_000


class Clock:
    """A clock that advances with the additions, for the server and the workers."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the seconds since an arbitrary moment."""
        return self.now


def on_server(filling: Filling, connect: Callable[[], Any]) -> Outcome:
    """Fill a filter on a server or a cluster, by workers with a client each, and measure its answers."""
    key = f"promise:{uuid.uuid4().hex}"
    with ExitStack() as stack:

        def open_filter() -> BaseBloomFilter:
            return BloomFilter(stack.enter_context(connect()), key, **parameters(filling))

        bloom = fill(filling, open_filter, lambda _: None)
        outcome = ask(filling, bloom)
        bloom.clear()
    return outcome


def in_memory(filling: Filling) -> Outcome:
    """Fill filters in memory, each by workers that share its store, and measure their answers."""
    return total([_in_memory(filling, series) for series in range(filling.filters)])


def items(name: str, series: int, start: int, end: int) -> list[bytes]:
    """Return items determined by the arguments, distinct for distinct arguments."""
    return [b"%s %d %d" % (name.encode(), series, number) for number in range(start, end)]


def parameters(filling: Filling) -> dict[str, Any]:
    """Return the arguments of a worker's BloomFilter, without a cache, which is never wrong."""
    parameters = asdict(filling.parameters)
    return {**{name: parameters[name] for name in ("capacity", "error_rate", "expansion", "ttl")}, "cache_size": 0}


def fill(
    filling: Filling, open_filter: Callable[[], BaseBloomFilter], after: Callable[[int], None], series: int = 0
) -> BaseBloomFilter:
    """Run the workers' turns, calling `after` with the items of each; return a worker's filter."""
    opened = [] if filling.way in ONE_BY_ONE else [open_filter() for _ in range(filling.workers)]
    begin = 0
    for turn in turns(filling):
        if turn.worker == len(opened):
            opened.append(open_filter())
        add(opened[turn.worker], items("added", series, begin, begin + turn.items))
        begin += turn.items
        after(turn.items)
    return opened[0]


def add(bloom: BaseBloomFilter, batch: list[bytes]) -> None:
    """Add a batch, or a single item by `add` as crawls without batches do."""
    if len(batch) == 1:
        bloom.add(batch[0])
    else:
        bloom.add_many(batch)


def ask(filling: Filling, bloom: BaseBloomFilter, series: int = 0) -> Outcome:
    """Look up items that were never added, and read the filter's bits."""
    wrong = sum(
        sum(bloom.contains_many(items("never", series, start, min(start + CHUNK, filling.asked))))
        for start in range(0, filling.asked, CHUNK)
    )
    info = bloom.info()
    first = info.by_layer[0]
    return Outcome(
        filling.error_rate,
        wrong,
        filling.asked,
        info.layers,
        first.estimated_count / first.capacity,
        max(layer.estimated_error_rate / layer.error_rate for layer in info.by_layer),
        info.estimated_error_rate,
    )


def _in_memory(filling: Filling, series: int) -> Outcome:
    clock = Clock()
    store = MemoryStore(clock)

    def go_on(added: int) -> None:
        if filling.ttl and filling.pace:
            clock.now += filling.ttl * added / (filling.pace * filling.capacity)

    def open_filter() -> BaseBloomFilter:
        return BaseBloomFilter(store, "k", filling.parameters, cache_size=0, monotonic=clock)

    return ask(filling, fill(filling, open_filter, go_on, series), series)
