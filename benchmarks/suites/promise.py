"""Whether filters keep their error rate, filled as workers of real crawls fill them.

*Staggered* workers open the filter one after another, each adds a hundredth of the capacity, then all continue in
turns. Of *uneven* workers a single one makes 99 % of the additions. *Equal* workers take turns from the beginning.
*Processes* add at the same time; *forked* ones continue with a filter object of their parent, which has added a
tenth. Otherwise a worker is a filter object with its own client, stepped in one process.
The rows *memory* are one worker. With a TTL of a day nothing expires.

After the filling the filter is asked for items that were never added. The promise is broken if even the low end of
the interval is above it, or if the filter's counts show a higher rate: at 1e-6 the answers alone would prove too
little. `fill` counts the bits of a full filter.
"""

import itertools
import logging
import multiprocessing
import os
import random
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import redis

from benchmarks.harness import report
from benchmarks.harness.filling import shares
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.harness.report import wilson
from devtools.servers import running
from scrapy_bloom import BloomFilter

STAGGERED, UNEVEN, EQUAL, PROCESSES, FORKED, MEMORY = "staggered", "uneven", "equal", "processes", "forked", "memory"
DAY = 86_400.0
# The part of the capacity that each staggered worker adds alone first, and the parent of forked ones.
ALONE, FORKED_AT = 0.01, 0.1
LARGEST_SHARE = 0.99
CHUNK = 5_000
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Filling:
    """A filter's parameters and its filling: `workers` add `times` its capacity in batches.

    Then `asked` items that were never added are looked up.
    """

    way: str
    workers: int
    capacity: int
    error_rate: float
    expansion: int = 2
    ttl: float | None = None
    times: float = 1.6
    batch: int = 1_000
    asked: int = 100_000

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a worker's filter, without a cache, which is never wrong."""
        names = ("capacity", "error_rate", "expansion", "ttl")
        return {**{name: getattr(self, name) for name in names}, "cache_size": 0}

    @property
    def additions(self) -> int:
        """The number of items added to each filter."""
        return round(self.capacity * self.times)

    def __str__(self) -> str:
        return f"{self.way}, {self.workers} workers, {self.capacity:,} at {self.error_rate:g}, {self.times:g} times"


# The longest first.
ON_A_SERVER = (
    Filling(STAGGERED, 16, 1_000_000, 1e-6, asked=300_000),
    Filling(EQUAL, 64, 400_000, 1e-3, batch=10_000, asked=200_000),
    Filling(STAGGERED, 12, 100_000, 1e-6, times=2.5, asked=1_000_000),
    Filling(STAGGERED, 32, 20_000, 1e-4, expansion=10, times=10, asked=300_000),
    Filling(UNEVEN, 8, 100_000, 1e-6, batch=100, asked=300_000),
    Filling(EQUAL, 2, 5_000, 1e-4, times=10, batch=1, asked=200_000),
    Filling(EQUAL, 8, 1_000, 1e-3, ttl=DAY, times=100, batch=100),
    Filling(EQUAL, 64, 20_000, 1e-2, ttl=DAY, times=10, batch=10_000),
    Filling(STAGGERED, 8, 100_000, 1e-3, batch=100, asked=300_000),
    Filling(EQUAL, 8, 100_000, 1e-3, expansion=0, times=1, batch=100, asked=300_000),
    Filling(STAGGERED, 8, 5_000, 1e-2, expansion=1, times=10, batch=100),
    Filling(UNEVEN, 2, 5_000, 1e-2, expansion=1, times=10),
    Filling(STAGGERED, 64, 20_000, 1e-1, times=10, batch=10, asked=50_000),
)
IN_PROCESSES = (
    Filling(PROCESSES, 12, 100_000, 1e-6, times=2.5),
    Filling(PROCESSES, 8, 100_000, 1e-3, batch=100),
    Filling(FORKED, 2, 100_000, 1e-6, times=2.5),
    Filling(FORKED, 8, 100_000, 1e-3, batch=100),
)
IN_MEMORY = (
    Filling(MEMORY, 1, 10, 1e-2, times=1_000, batch=10, asked=5_000),
    Filling(MEMORY, 1, 100, 1e-1, expansion=1, times=150, batch=10, asked=10_000),
    Filling(MEMORY, 1, 5_000, 1e-3, times=10, batch=100),
)


@dataclass(frozen=True)
class Outcome:
    """A filled filter's wrong answers on `asked` items that were never added, and its error rate by its counts."""

    error_rate: float
    wrong: int
    asked: int
    layers: int
    by_counts: float

    @property
    def ratio(self) -> float:
        """The ratio of the measured error rate to the promised one."""
        return self.wrong / self.asked / self.error_rate

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the ratio."""
        low, high = wilson(self.wrong, self.asked)
        return low / self.error_rate, high / self.error_rate

    @property
    def is_kept(self) -> bool:
        """Whether neither the answers nor the counts show an error rate above the promise."""
        return self.interval[0] <= 1 and self.by_counts <= self.error_rate


def run(_: Asked) -> list[Plot]:
    """Fill in every way, and print the measured error rates."""
    fillings = (*ON_A_SERVER, *IN_MEMORY, *IN_PROCESSES)
    context = multiprocessing.get_context("spawn")
    with running("valkey") as server, ProcessPoolExecutor(os.cpu_count(), context, _silence) as pool:
        outcomes = []
        for filling, outcome in zip(fillings, pool.map(measure, fillings, repeat(server.url)), strict=True):
            outcomes.append(outcome)
            report.say(f"  {filling}")
        name = server.name
    report.table(
        f"Items added as a multiple of the capacity; both error rates over the promised one. {name}.",
        (
            *("filling", "workers", "capacity", "promise", "expansion", "TTL", "added", "batch", "layers"),
            *("wrong answers", "rate to promise", "95 % interval", "by its counts", "promise is"),
        ),
        [_row(*each) for each in zip(fillings, outcomes, strict=True)],
    )
    report.target("fillings that broke the promise,", sum(not each.is_kept for each in outcomes), 0)
    return []


def _silence() -> None:
    """Log no warnings: some fillings overfill filters of fixed size on purpose."""
    logging.getLogger("scrapy_bloom").setLevel(logging.CRITICAL)


def turns(filling: Filling) -> Iterator[tuple[int, int]]:
    """Yield the workers' turns until all items are added: a worker's number, and how many items it adds."""
    left = filling.additions
    for worker, items in _endless_turns(filling):
        yield worker, min(items, left)
        left -= items
        if left <= 0:
            return


def _endless_turns(filling: Filling) -> Iterator[tuple[int, int]]:
    workers, batch = filling.workers, filling.batch
    if filling.way == UNEVEN:
        draw = random.Random(workers)
        while True:
            yield (draw.randrange(1, workers) if draw.random() >= LARGEST_SHARE else 0), batch
    if filling.way == STAGGERED:
        alone = max(1, round(filling.capacity * ALONE))
        for worker in range(workers):
            yield from ((worker, min(batch, alone - start)) for start in range(0, alone, batch))
    yield from ((worker, batch) for worker in itertools.cycle(range(workers)))


def _items(name: str, start: int, end: int) -> list[bytes]:
    """Return items determined by the arguments, distinct for distinct arguments."""
    return [b"%s %d" % (name.encode(), number) for number in range(start, end)]


def measure(filling: Filling, url: str) -> Outcome:
    """Fill a filter, and ask it for items that were never added."""
    key = f"promise:{uuid.uuid4().hex}"
    with ExitStack() as stack:

        def open_filter() -> BloomFilter:
            return BloomFilter(stack.enter_context(redis.Redis.from_url(url)), key, **filling.arguments)

        if filling.way in {PROCESSES, FORKED}:
            _fill_by_processes(filling, url, key)
            opened = [open_filter()]
        else:
            opened = [] if filling.way == STAGGERED else [open_filter() for _ in range(filling.workers)]
            begin = 0
            for worker, items in turns(filling):
                if worker == len(opened):
                    opened.append(open_filter())
                _add(opened[worker], _items("added", begin, begin + items))
                begin += items
        wrong = sum(
            sum(opened[0].contains_many(_items("never", start, min(start + CHUNK, filling.asked))))
            for start in range(0, filling.asked, CHUNK)
        )
        info = opened[0].info()
        opened[0].clear()
    return Outcome(filling.error_rate, wrong, filling.asked, info.layers, info.current_error_rate)


def _add(bloom: BloomFilter, batch: list[bytes]) -> None:
    """Add a batch, or a single item by `add` as crawls without batches do."""
    if len(batch) == 1:
        bloom.add(batch[0])
    else:
        bloom.add_many(batch)


def _fill_by_processes(filling: Filling, url: str, key: str) -> None:
    context = multiprocessing.get_context("spawn")
    if filling.way == FORKED:
        # This process may have threads, which a fork would lose: a new process forks.
        _join([context.Process(target=_fork, args=(filling, url, key))])
    else:
        parts = shares(0, filling.additions, filling.workers)
        _join([context.Process(target=_work, args=(filling, url, key, part)) for part in parts])


def _work(filling: Filling, url: str, key: str, share: range) -> None:
    with redis.Redis.from_url(url) as client:
        _add_share(BloomFilter(client, key, **filling.arguments), share, filling.batch)


def _fork(filling: Filling, url: str, key: str) -> None:
    with redis.Redis.from_url(url) as client:
        bloom = BloomFilter(client, key, **filling.arguments)
        first = round(filling.capacity * FORKED_AT)
        _add_share(bloom, range(first), filling.batch)
        context = multiprocessing.get_context("fork")
        parts = shares(first, filling.additions, filling.workers)
        _join([context.Process(target=_add_share, args=(bloom, part, filling.batch)) for part in parts])


def _add_share(bloom: BloomFilter, share: range, batch: int) -> None:
    for start in range(share.start, share.stop, batch):
        _add(bloom, _items("added", start, min(start + batch, share.stop)))


def _join(processes: Sequence[Any]) -> None:
    """Start processes and wait for their success; kill the rest on an error."""
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(_PATIENCE_SECONDS)
        if any(process.exitcode != 0 for process in processes):
            raise RuntimeError(f"workers ended with {[process.exitcode for process in processes]}")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()


def _row(filling: Filling, outcome: Outcome) -> tuple[str, ...]:
    low, high = outcome.interval
    return (
        filling.way,
        str(filling.workers),
        f"{filling.capacity:,}",
        f"{filling.error_rate:g}",
        str(filling.expansion),
        "-" if filling.ttl is None else f"{filling.ttl:,.0f} s",
        f"{filling.times:,g}",
        f"{filling.batch:,}",
        f"{outcome.layers:,}",
        f"{outcome.wrong:,} of {outcome.asked:,}",
        report.times(outcome.ratio),
        f"{report.times(low)} to {report.times(high)}",
        report.times(outcome.by_counts / filling.error_rate),
        "kept" if outcome.is_kept else "BROKEN",
    )
