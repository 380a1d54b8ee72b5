"""The worker processes of a crawl: starts them, watches them, ends them. Knows nothing of what they fetch."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

PROJECT = Path(__file__).parent
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
LAST_LINES = 25


class CrawlFailedError(Exception):
    """Raised when the crawl cannot be finished: a worker failed, or the time is over."""


@dataclass(frozen=True)
class Job:
    """What every worker is started with: a spider of the project, its arguments, settings and server."""

    spider: str
    arguments: Mapping[str, str]
    settings: Mapping[str, str]
    redis_url: str

    def command(self, **settings: str) -> list[str]:
        """The command line, with further settings; without the server, whose URL may hold a password."""
        arguments = (("-a", f"{name}={value}") for name, value in self.arguments.items())
        options = (("-s", f"{name}={value}") for name, value in {**self.settings, **settings}.items())
        return [sys.executable, "-P", "-m", "scrapy", "crawl", self.spider, *chain(*arguments, *options)]

    def environment(self) -> dict[str, str]:
        """The environment of the process, where the project's settings find the server."""
        return {**os.environ, "REDIS_URL": self.redis_url}


@dataclass(frozen=True)
class Worker:
    """One `scrapy crawl` process, its log and its ledger."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ledger: Path

    @classmethod
    def start(cls, name: str, job: Job, directory: Path) -> Self:
        """Start a process that writes its log and its ledger to a directory."""
        log, ledger = directory / f"{name}.log", directory / f"{name}.ledger"
        with log.open("wb") as output:
            process = subprocess.Popen(
                job.command(LEDGER=str(ledger)),
                cwd=PROJECT,
                env=job.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return cls(name, process, log, ledger)

    def wait_or_kill(self) -> None:
        """Give the process GRACE_SECONDS to end, then kill it."""
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_lines(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])


@contextmanager
def running(job: Job, count: int, directory: Path) -> Iterator[list[Worker]]:
    """Start `count` workers on a job; those that run at the end of the context are ended by it."""
    workers: list[Worker] = []
    try:
        for number in range(1, count + 1):
            workers.append(Worker.start(f"worker-{number}", job, directory))
        yield workers
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.wait_or_kill()


def watch(
    workers: Sequence[Worker],
    timeout: float,
    progress: Callable[[], None],
    finished: Callable[[Worker], bool],
) -> None:
    """Wait until all workers have ended, calling `progress` a few times a second.

    Raises CrawlFailedError as soon as one has ended without being `finished`, or after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    left = list(workers)
    while left:
        with suppress(subprocess.TimeoutExpired):
            left[0].process.wait(POLL_SECONDS)
        ended = [worker for worker in left if worker.process.poll() is not None]
        progress()
        for worker in ended:
            if worker.process.returncode or not finished(worker):
                raise CrawlFailedError(_failure(worker))
            left.remove(worker)
        if left and time.monotonic() > deadline:
            raise CrawlFailedError(f"the crawl is not over after {timeout:g} s; allow it more with --timeout")


def _failure(worker: Worker) -> str:
    return (
        f"{worker.name} ended before the crawl did, with exit code {worker.process.returncode}. "
        f"The end of its log:\n{worker.last_lines()}"
    )
