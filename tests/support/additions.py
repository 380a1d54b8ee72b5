"""Processes that add the same items to a filter while a fault happens."""

import contextlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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


class Outcome(NamedTuple):
    """The number of items that were new to no process, how often one was new again, and the longest batch.

    That batch has its seconds, and those of its CPU.
    """

    lost: int
    twice: int
    longest: float
    cpu: float


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
        self.processes = [
            CONTEXT.Process(target=_add, args=((connect, key, items, first), self._start, progress, self._over, pipe))
            for first, progress, (_, pipe) in zip(firsts, self._progress, self._pipes, strict=True)
        ]

    def wait_for(self, number: int) -> None:
        """Wait until a process has added so many items."""
        until(lambda: self._has_failed or any(each.value >= number for each in self._progress))
        if self._has_failed:
            raise RuntimeError("a process has failed; its error is on stderr")

    def finish(self) -> Outcome:
        """Let the processes add the rest, and return the outcome."""
        self._over.set()
        for _, pipe in self._pipes:
            pipe.close()
        # EOFError: the process has failed.
        reports = [receiver.recv() for receiver, _ in self._pipes]
        for process in self.processes:
            process.join()
        times = Counter(number for new, _, _ in reports for number in new)
        longest = max((seconds, cpu) for _, seconds, cpu in reports)
        return Outcome(self._items - len(times), times.total() - len(times), *longest)

    @property
    def _has_failed(self) -> bool:
        return any(process.exitcode for process in self.processes)


@contextlib.contextmanager
def adding(connect: Connect, key: str, items: int) -> Iterator[Additions]:
    """Run the processes in the block; remaining ones are killed at its end."""
    additions = Additions(connect, key, items)
    try:
        for process in additions.processes:
            process.start()
        yield additions
    finally:
        for process in additions.processes:
            process.kill()
            process.join()


def _add(task: tuple[Connect, str, int, int], start: Any, progress: Any, over: Any, pipe: Any) -> None:
    """Add all items, from the first one on and around; send the new ones, and the seconds of the longest batch."""
    connect, key, items, first = task
    client = connect()
    # Several layers; no item is taken for seen by chance.
    options: dict[str, Any] = {"capacity": items // 8, "error_rate": 1e-12}
    bloom = BloomFilter(client, key, retry_timeout=_RETRY_TIMEOUT, **options)
    new: list[int] = []
    longest = 0.0, 0.0
    start.wait()
    order = [*range(first, items), *range(first)]
    for done in range(0, items, BATCH):
        if done >= items * 3 // 4:
            over.wait()
        numbers = order[done : done + BATCH]
        begin, begin_cpu = time.monotonic(), time.process_time()
        are_new = bloom.add_many([f"item {number}" for number in numbers])
        longest = max(longest, (time.monotonic() - begin, time.process_time() - begin_cpu))
        new += [number for number, is_new in zip(numbers, are_new, strict=True) if is_new]
        progress.value = done + len(numbers)
    pipe.send((new, *longest))
    disconnect(client)
