"""Fill a filter by processes: started together, one after another, or forked."""

import itertools
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier

from benchmarks.harness.counters import connected
from benchmarks.harness.fill_by_turns import add, ask, items, parameters
from benchmarks.harness.outcome import Outcome
from benchmarks.subjects.fillings import FORKED, ONE_BY_ONE, Filling
from scrapy_bloom import BloomFilter

_PATIENCE_SECONDS = 300.0


def measure(filling: Filling, url: str, key: str) -> Outcome:
    """Fill a filter on the server or the cluster at this address, and measure its answers."""
    (_fork if filling.way == FORKED else _spawn)(filling, url, key)
    with connected(url) as client:
        bloom = BloomFilter(client, key, **parameters(filling))
        outcome = ask(filling, bloom)
        bloom.clear()
    return outcome


def shares(begin: int, end: int, workers: int) -> list[range]:
    """Split the items from `begin` to `end` evenly between workers."""
    bounds = [begin + (end - begin) * number // workers for number in range(workers + 1)]
    return [range(*pair) for pair in itertools.pairwise(bounds)]


def _add(bloom: BloomFilter, share: range, batch: int) -> None:
    for start in range(share.start, share.stop, batch):
        add(bloom, items("added", 0, start, min(start + batch, share.stop)))


def _spawn(filling: Filling, url: str, key: str) -> None:
    context = multiprocessing.get_context("spawn")
    is_in_turn = filling.way in ONE_BY_ONE
    little = filling.workers * filling.little if is_in_turn else 0
    first, rest = shares(0, little, filling.workers), shares(little, filling.additions, filling.workers)
    pipes = [context.Pipe() for _ in range(filling.workers)]
    processes = [
        context.Process(target=_work, args=(filling, url, key, share, theirs), daemon=True)
        for share, (_, theirs) in zip(zip(first, rest, strict=True), pipes, strict=True)
    ]

    def go() -> None:
        for _, theirs in pipes:
            # Without our copy of its end, the death of a worker shows.
            theirs.close()
        for ours, _ in pipes:
            ours.send("open")
            if is_in_turn:
                _hear(ours)
        for ours, _ in pipes:
            if not is_in_turn:
                _hear(ours)
        for ours, _ in pipes:
            ours.send("go on")

    _run(processes, go)


def _hear(pipe: Connection) -> None:
    if not pipe.poll(_PATIENCE_SECONDS):
        raise TimeoutError("a worker does not answer")
    pipe.recv()


def _work(filling: Filling, url: str, key: str, share: tuple[range, range], pipe: Connection) -> None:
    """Work: open the filter and add the first share on the first message, and the rest on the second."""
    first, rest = share
    with connected(url) as client:
        pipe.recv()
        bloom = BloomFilter(client, key, **parameters(filling))
        _add(bloom, first, filling.batch)
        pipe.send("ready")
        pipe.recv()
        _add(bloom, rest, filling.batch)


def _fork(filling: Filling, url: str, key: str) -> None:
    # This process may have threads, which a fork would lose: a new process forks.
    context = multiprocessing.get_context("spawn")
    _run([context.Process(target=_begin_and_fork, args=(filling, url, key))], lambda: None)


def _begin_and_fork(filling: Filling, url: str, key: str) -> None:
    context = multiprocessing.get_context("fork")
    with connected(url) as client:
        bloom = BloomFilter(client, key, **parameters(filling))
        _add(bloom, range(filling.little), filling.batch)
        together = context.Barrier(filling.workers, timeout=_PATIENCE_SECONDS)
        rest = shares(filling.little, filling.additions, filling.workers)
        children = [
            context.Process(target=_go_on, args=(bloom, share, filling.batch, together), daemon=True) for share in rest
        ]
        _run(children, lambda: None)


def _go_on(bloom: BloomFilter, share: range, batch: int, together: Barrier) -> None:
    """Work after a fork: continue with the parent's filter object once all workers are there."""
    together.wait()
    _add(bloom, share, batch)


def _run(processes: Sequence[BaseProcess], go: Callable[[], None]) -> None:
    """Start processes and wait for their success; kill the rest on an error."""
    try:
        for process in processes:
            process.start()
        go()
        for process in processes:
            process.join(_PATIENCE_SECONDS)
        if any(process.exitcode != 0 for process in processes):
            raise RuntimeError(f"workers ended with {[process.exitcode for process in processes]}")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
