"""Whether filters keep their error rate, filled as workers of real crawls fill them.

*Staggered* workers open the filter one after another, each adds a hundredth of the capacity, then all continue in
turns. Of *uneven* workers a single one makes 99 % of the additions. *Equal* workers take turns from the beginning.
*Processes* add at the same time; *forked* ones continue with a filter object of their parent, which has added a
tenth. Otherwise a worker is a filter object with its own client, stepped in one process. In rows with *memory* a
`MemoryBloomFilter` is filled. With a TTL of a day nothing expires. With a TTL of 100 seconds the clock advances with
the additions; the number behind the TTL is the additions within each TTL, as a multiple of the capacity.

After the filling the filter is asked for items that were never added. The promise is broken if even the low end of
the interval is above it, or if the filter's counts show a higher rate: at 1e-6 the answers alone would prove too
little. `fill` counts the bits of a full filter.
"""

import itertools
import logging
import multiprocessing
import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from benchmarks.harness import report
from benchmarks.harness.filling import shares
from benchmarks.harness.options import Asked
from benchmarks.harness.parallel import spread
from benchmarks.harness.plots import Plot
from benchmarks.harness.report import wilson
from devtools.servers import running
from scrapy_bloom import BloomFilter
from scrapy_bloom._runtime import Runtime
from scrapy_bloom.filter.base import BaseBloomFilter
from scrapy_bloom.filter.memory import MemoryBloomFilter

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

    Then `asked` items that were never added are looked up. In memory, the clock advances with the additions so that
    each TTL has `pace` times the capacity; with 0 the clock stands still. Small filters vary in their fill, so the
    answers of several `filters` are summed.
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
    pace: float = 0.0
    filters: int = 1

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
    Filling(EQUAL, 8, 100_000, 1e-6, expansion=0, times=1, asked=300_000),
    Filling(EQUAL, 8, 100_000, 1e-3, expansion=0, times=1, batch=100, asked=300_000),
    Filling(STAGGERED, 8, 5_000, 1e-2, expansion=1, times=10, batch=100),
    Filling(UNEVEN, 2, 5_000, 1e-2, expansion=1, times=10),
    Filling(STAGGERED, 64, 20_000, 1e-1, times=10, batch=10, asked=50_000),
    Filling(UNEVEN, 64, 20_000, 1e-3, batch=1),
    Filling(STAGGERED, 2, 20_000, 1e-2, batch=1, asked=50_000),
)
IN_PROCESSES = (
    Filling(PROCESSES, 12, 100_000, 1e-6, times=2.5),
    Filling(PROCESSES, 8, 100_000, 1e-3, batch=100),
    Filling(FORKED, 2, 100_000, 1e-6, times=2.5),
    Filling(FORKED, 8, 100_000, 1e-3, batch=100),
    Filling(FORKED, 64, 20_000, 1e-2, batch=1, asked=50_000),
)
IN_MEMORY = (
    Filling(MEMORY, 1, 1, 1e-3, times=1_000, batch=1, asked=20_000, filters=20),
    Filling(MEMORY, 1, 1, 1e-2, ttl=DAY, times=1_000, batch=1, asked=4_000, filters=20),
    Filling(MEMORY, 1, 10, 1e-2, times=1_000, batch=10, asked=5_000, filters=5),
    Filling(MEMORY, 1, 100, 1e-2, ttl=DAY, times=1_000, batch=1, asked=10_000, filters=2),
    Filling(MEMORY, 1, 100, 1e-1, expansion=1, times=60, batch=10, asked=10_000),
    Filling(MEMORY, 1, 100, 1e-1, expansion=1, times=150, batch=10, asked=10_000),
    Filling(MEMORY, 1, 5_000, 1e-3, ttl=100.0, times=10, batch=100, pace=1),
    Filling(MEMORY, 1, 5_000, 1e-2, ttl=100.0, times=20, batch=10, asked=50_000, pace=4),
    Filling(MEMORY, 1, 1_000, 1e-2, expansion=1, ttl=100.0, times=20, batch=10, asked=50_000, pace=4),
    Filling(MEMORY, 1, 1_000, 1e-2, expansion=10, ttl=100.0, times=20, batch=1, asked=50_000, pace=4),
    Filling(MEMORY, 1, 5_000, 1e-2, expansion=0, ttl=100.0, times=10, batch=100, pace=1),
)


@dataclass(frozen=True)
class Outcome:
    """A filled filter's wrong answers on `asked` items that were never added, and its error rate by its counts.

    For several filters these are sums, and means.
    """

    error_rate: float
    wrong: int
    asked: int
    layers: float
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


class Task(NamedTuple):
    """A filling, and the server of its filters."""

    filling: Filling
    url: str

    def __str__(self) -> str:
        return str(self.filling)


class Turn(NamedTuple):
    """A worker's number, and the number of items it adds in the turn."""

    worker: int
    items: int


def run(_: Asked) -> list[Plot]:
    """Fill in every way, and print the measured error rates."""
    with running("valkey") as server:
        fillings = [*ON_A_SERVER, *IN_MEMORY]
        outcomes = spread(measure, [Task(each, server.url) for each in fillings])
        for filling in IN_PROCESSES:
            fillings.append(filling)
            outcomes.append(fill_by_processes(filling, server.url))
            report.say(f"  {filling}")
        name = server.name
    report.table(
        f"Items added as a multiple of the capacity; both error rates over the promised one. Several small filters are "
        f"averaged. {name}.",
        (
            *("filling", "workers", "capacity", "promise", "expansion", "TTL", "added", "batch", "layers"),
            *("wrong answers", "rate to promise", "95 % interval", "by its counts", "promise is"),
        ),
        [_row(*each) for each in zip(fillings, outcomes, strict=True)],
    )
    report.target("fillings that broke the promise,", sum(not each.is_kept for each in outcomes), 0)
    return []


def measure(task: Task) -> Outcome:
    """Fill filters in one process, and ask them for items that were never added."""
    # These fillings overfill filters of fixed size on purpose, which warn.
    logger, filling = logging.getLogger("scrapy_bloom"), task.filling
    logger.disabled, was_disabled = True, logger.disabled
    try:
        found = [_fill(filling, task.url, series) for series in range(filling.filters)]
    finally:
        logger.disabled = was_disabled
    wrong, layers, by_counts = (sum(getattr(one, name) for one in found) for name in ("wrong", "layers", "by_counts"))
    number = filling.filters
    return Outcome(filling.error_rate, wrong, number * filling.asked, layers / number, by_counts / number)


def turns(filling: Filling) -> Iterator[Turn]:
    """Yield the workers' turns until all items are added."""
    left = filling.additions
    for worker, items in _endless_turns(filling):
        yield Turn(worker, min(items, left))
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


def _items(name: str, series: int, start: int, end: int) -> list[bytes]:
    """Return items determined by the arguments, distinct for distinct arguments."""
    return [b"%s %d %d" % (name.encode(), series, number) for number in range(start, end)]


def _fill(filling: Filling, url: str, series: int) -> Outcome:
    clock = Clock()
    with ExitStack() as stack:
        key = f"promise:{uuid.uuid4().hex}"

        def open_filter() -> BaseBloomFilter:
            if filling.way == MEMORY:
                return in_memory(clock, filling.arguments)
            return BloomFilter(stack.enter_context(redis.Redis.from_url(url)), key, **filling.arguments)

        opened = [] if filling.way == STAGGERED else [open_filter() for _ in range(filling.workers)]
        begin = 0
        for turn in turns(filling):
            if turn.worker == len(opened):
                opened.append(open_filter())
            _add(opened[turn.worker], _items("added", series, begin, begin + turn.items))
            begin += turn.items
            if filling.ttl and filling.pace:
                clock.now += filling.ttl * turn.items / (filling.pace * filling.capacity)
        outcome = _ask(filling, opened[0], series)
        opened[0].clear()
    return outcome


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the seconds since an arbitrary moment."""
        return self.now


def in_memory(clock: Clock, arguments: dict[str, Any]) -> MemoryBloomFilter:
    """Return a filter in memory with this clock."""
    runtime = Runtime()
    runtime.monotonic = clock
    kind = type("Clocked", (MemoryBloomFilter,), {"_runtime": runtime})
    made: MemoryBloomFilter = kind(**arguments)
    return made


def _add(bloom: BaseBloomFilter, batch: list[bytes]) -> None:
    """Add a batch, or a single item by `add` as crawls without batches do."""
    if len(batch) == 1:
        bloom.add(batch[0])
    else:
        bloom.add_many(batch)


def _ask(filling: Filling, bloom: BaseBloomFilter, series: int = 0) -> Outcome:
    """Look up items that were never added, and read the filter's counts."""
    wrong = sum(
        sum(bloom.contains_many(_items("never", series, start, min(start + CHUNK, filling.asked))))
        for start in range(0, filling.asked, CHUNK)
    )
    info = bloom.info()
    return Outcome(filling.error_rate, wrong, filling.asked, info.layers, info.current_error_rate)


def fill_by_processes(filling: Filling, url: str) -> Outcome:
    """Fill a filter by processes at the same time, and measure its answers."""
    key = f"promise:{uuid.uuid4().hex}"
    if filling.way == FORKED:
        # This process may have threads, which a fork would lose: a new process forks.
        _join([multiprocessing.get_context("spawn").Process(target=_fork, args=(filling, url, key))])
    else:
        context = multiprocessing.get_context("spawn")
        parts = shares(0, filling.additions, filling.workers)
        _join([context.Process(target=_work, args=(filling, url, key, part)) for part in parts])
    with redis.Redis.from_url(url) as client:
        bloom = BloomFilter(client, key, **filling.arguments)
        outcome = _ask(filling, bloom)
        bloom.clear()
    return outcome


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
        _add(bloom, _items("added", 0, start, min(start + batch, share.stop)))


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
    several = f", {filling.filters} filters" if filling.filters > 1 else ""
    return (
        f"{filling.way}{several}",
        str(filling.workers),
        f"{filling.capacity:,}",
        f"{filling.error_rate:g}",
        str(filling.expansion),
        "-" if filling.ttl is None else f"{filling.ttl:,.0f} s" + (f", {filling.pace:g}" if filling.pace else ""),
        f"{filling.times:,g}",
        f"{filling.batch:,}",
        f"{outcome.layers:,.0f}",
        f"{outcome.wrong:,} of {outcome.asked:,}",
        report.times(outcome.ratio),
        f"{report.times(low)} to {report.times(high)}",
        report.times(outcome.by_counts / filling.error_rate),
        "kept" if outcome.is_kept else "BROKEN",
    )
