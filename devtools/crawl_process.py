"""Processes of `scrapy crawl` and `scrapy runspider`, with logs and ledgers."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol

from devtools import ledger

ROOT = Path(__file__).parents[1]
LIMIT = 240.0
"""Seconds granted for the end of a crawl, which takes two in the tests."""
_LAST_LINES = 25


@dataclass(frozen=True)
class Crawl:
    """The results of a crawl: its exit code and log, the URLs that its spider got, and its stats."""

    exit_code: int
    log: str
    fetched: list[str]
    stats: dict[str, Any]


@dataclass(frozen=True)
class Job:
    """The common parameters of a crawl's processes.

    `command` is ("crawl", the name of a project's spider) or ("runspider", a spider's file); `environment` is added to
    this process's own.
    """

    command: tuple[str, str]
    arguments: Mapping[str, object]
    settings: Mapping[str, object]
    environment: Mapping[str, str]


class Process(Protocol):
    """A process with the interface of `subprocess.Popen`."""

    pid: int
    returncode: int | Any

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless the process has ended."""

    def terminate(self) -> None:
        """Ask the process to end."""

    def kill(self) -> None:
        """End the process as a crash would."""


Launch = Callable[[Sequence[str], Path, Mapping[str, str], IO[bytes], IO[bytes]], Process]
"""Starts `scrapy` with arguments, a directory, an environment, and output files."""


def start_python(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> Process:
    """Start Python."""
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)


def start_scrapy(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> Process:
    """Start `scrapy`."""
    return start_python(["-m", "scrapy", *arguments], directory, environment, out, err)


class CrawlProcess:
    """A process that crawls at once, in the directory of its log and its ledger."""

    def __init__(
        self, name: str, job: Job, directory: Path, *, keeps_ledger: bool = True, launch: Launch = start_scrapy
    ) -> None:
        self.name = name
        self.ledger = directory / f"{name}.ledger"
        self._log = directory / f"{name}.log"
        self.ledger.unlink(missing_ok=True)
        settings = {**job.settings, **(ledger.settings_for(self.ledger) if keeps_ledger else {})}
        arguments = [*job.command]
        arguments += chain.from_iterable(("-a", f"{name}={value}") for name, value in job.arguments.items())
        arguments += chain.from_iterable(("-s", f"{name}={value}") for name, value in settings.items())
        with self._log.open("wb") as log:
            self.process = launch(arguments, directory, _environment(job), log, log)

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text(errors="replace")

    @property
    def last_lines(self) -> str:
        """The end of the log."""
        return "\n".join(self.log.splitlines()[-_LAST_LINES:])

    @property
    def received(self) -> list[str]:
        """The URLs that the spider has got so far, with repetitions."""
        return [*ledger.read(self.ledger, "received")]

    def wait(self, limit: float = LIMIT) -> Crawl:
        """Wait for the end, and return the results."""
        try:
            exit_code = self.process.wait(limit)
        except subprocess.TimeoutExpired as error:
            error.add_note(self.last_lines)
            raise
        stats = [*ledger.read(self.ledger, "stats")]
        return Crawl(exit_code, self.log, self.received, stats[-1] if stats else {})

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def has_ended(self, seconds: float) -> bool:
        """Return whether it has ended, or ends within so many seconds."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _environment(job: Job) -> dict[str, str]:
    """Return an environment with the job's variables and, behind its PYTHONPATH, this checkout."""
    environment = {**os.environ, **job.environment}
    path = os.pathsep.join([*filter(None, [environment.get("PYTHONPATH")]), str(ROOT)])
    return {**environment, "PYTHONPATH": path}
