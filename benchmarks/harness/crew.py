"""Processes that stay for several measurements, and work at the same time."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

_PATIENCE_SECONDS = 1800.0

Make = Callable[[Any], AbstractContextManager[Callable[[Any], Any]]]


@dataclass(frozen=True)
class Work:
    """A measurement: seconds from the first start to the last end, CPU seconds of the processes, and their results."""

    seconds: float
    cpu: float
    results: list[Any]


class Crew:
    """Worker processes, each with a function for its tasks."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def work(self, tasks: Sequence[Any]) -> Work:
        """Give one task to each of the first processes, and wait for all of them."""
        busy = self._pipes[: len(tasks)]
        for pipe, task in zip(busy, tasks, strict=True):
            pipe.send(task)
        done = [_receive(pipe) for pipe in busy]
        began, ended, cpu, results = zip(*done, strict=True)
        return Work(max(ended) - min(began), sum(cpu), list(results))


@contextmanager
def crew(make: Make, arguments: Sequence[Any]) -> Iterator[Crew]:
    """Start a process for each argument, with the function that `make` returns there; end all of them at last."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in arguments]
    processes = [
        context.Process(target=_serve, args=(make, argument, theirs), daemon=True)
        for argument, (_, theirs) in zip(arguments, pipes, strict=True)
    ]
    try:
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            # Without our copy of its end, the death of a process shows.
            theirs.close()
        for ours, _ in pipes:
            _receive(ours)
        yield Crew([ours for ours, _ in pipes])
    finally:
        for process, (ours, _) in zip(processes, pipes, strict=True):
            ours.close()
            if process.pid is not None:
                process.join(_PATIENCE_SECONDS)


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(_PATIENCE_SECONDS):
        raise TimeoutError("a worker process does not answer")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a worker process died; its error stands above") from None


def _serve(make: Make, argument: Any, pipe: Connection) -> None:
    """Report readiness, then do each task, until the other end is closed."""
    with make(argument) as call:
        pipe.send("ready")
        while True:
            try:
                task = pipe.recv()
            except EOFError:
                return
            # The clock is the same for all processes of a machine.
            began, used = time.monotonic(), time.process_time()
            result = call(task)
            used = time.process_time() - used
            pipe.send((began, time.monotonic(), used, result))
