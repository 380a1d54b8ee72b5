"""Processes that add the same items to a filter while a fault happens."""

import contextlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from scrapy_bloom import BloomFilter
from scrapy_bloom.transport.connect import disconnect
from tests.support.waiting import until

# Processes that inherit nothing of a test, without the time for imports.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])
PROCESSES = 4
BATCH = 100
# Seconds; a run ends long before, unless the filter gives up too early.
_RETRY_TIMEOUT = 120.0

Connect = Callable[[], Any]


@dataclass(frozen=True)
class Report:
    """The work of one process.

    Attributes:
        new: the numbers of the items that were new to it.
        longest: the seconds of its longest batch.
        cpu: the seconds of CPU in that batch.
    """

    new: Sequence[int]
    longest: float
    cpu: float


@dataclass(frozen=True)
class Outcome:
    """The reports of all processes."""

    items: int
    reports: Sequence[Report]

    @property
    def lost(self) -> int:
        """The number of items that were new to no process."""
        return self.items - len(self._times_new)

    @property
    def twice(self) -> int:
        """How often an item was new after the first time."""
        return self._times_new.total() - len(self._times_new)

    @property
    def slowest(self) -> Report:
        """The report with the longest batch."""
        return max(self.reports, key=lambda report: report.longest)

    def __str__(self) -> str:
        slowest = self.slowest
        return (
            f"{self.items:,} items, {self.lost} lost, {self.twice} new twice, "
            f"longest wait {slowest.longest:.1f} s with {slowest.cpu:.2f} s of CPU"
        )

    @property
    def _times_new(self) -> Counter[int]:
        return Counter(number for report in self.reports for number in report.new)


@dataclass(frozen=True)
class _Task:
    """The items of a process: all of them, from the first one on and around."""

    connect: Connect
    key: str
    items: int
    first: int


class Additions:
    """Processes that add `items` items each, the same ones, to the filter at a key.

    They start together. None goes beyond three quarters of the items before the fault is over.
    """

    def __init__(self, connect: Connect, key: str, items: int) -> None:
        self._items = items
        self._progress = [CONTEXT.Value("i", 0) for _ in range(PROCESSES)]
        self._over = CONTEXT.Event()
        self._pipes = [CONTEXT.Pipe(duplex=False) for _ in range(PROCESSES)]
        # Two processes race for each item, and the others repeat items of before the fault.
        firsts = [0, 0, items // 4, items // 4]
        # Kept: a semaphore ends with its last reference here.
        self._start = CONTEXT.Barrier(PROCESSES)
        self._processes: list[BaseProcess] = [
            CONTEXT.Process(
                target=_add, args=(_Task(connect, key, items, first), self._start, progress, self._over, pipe)
            )
            for first, progress, (_, pipe) in zip(firsts, self._progress, self._pipes, strict=True)
        ]

    def wait_for(self, number: int) -> None:
        """Wait until a process has added so many items."""
        until(lambda: self._has_failed or any(each.value >= number for each in self._progress))
        if self._has_failed:
            raise RuntimeError("a process has failed; its error is on stderr")

    def finish(self) -> Outcome:
        """Let the processes add the rest, and return their reports."""
        self._over.set()
        for _, pipe in self._pipes:
            pipe.close()
        # EOFError: the process has failed.
        reports = [receiver.recv() for receiver, _ in self._pipes]
        for process in self._processes:
            process.join()
        return Outcome(self._items, reports)

    @property
    def _has_failed(self) -> bool:
        return any(process.exitcode for process in self._processes)


@contextlib.contextmanager
def adding(connect: Connect, key: str, items: int) -> Iterator[Additions]:
    """Run the processes in the block; remaining ones are killed at its end."""
    additions = Additions(connect, key, items)
    try:
        for process in additions._processes:
            process.start()
        yield additions
    finally:
        for process in additions._processes:
            process.kill()
            process.join()


def _add(task: _Task, start: Any, progress: Any, over: Any, pipe: Any) -> None:
    client, items = task.connect(), task.items
    # Several layers; no item is taken for seen by chance.
    options: dict[str, Any] = {"capacity": items // 8, "error_rate": 1e-12}
    bloom = BloomFilter(client, task.key, retry_timeout=_RETRY_TIMEOUT, **options)
    new: list[int] = []
    longest, cpu = 0.0, 0.0
    start.wait()
    order = [*range(task.first, items), *range(task.first)]
    for done in range(0, items, BATCH):
        if done >= items * 3 // 4:
            over.wait()
        numbers = order[done : done + BATCH]
        begin, begin_cpu = time.monotonic(), time.process_time()
        are_new = bloom.add_many([f"item {number}" for number in numbers])
        longest, cpu = max((longest, cpu), (time.monotonic() - begin, time.process_time() - begin_cpu))
        new += [number for number, is_new in zip(numbers, are_new, strict=True) if is_new]
        progress.value = done + len(numbers)
    pipe.send(Report(new, longest, cpu))
    disconnect(client)
