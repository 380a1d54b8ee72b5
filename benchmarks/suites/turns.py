"""This package and the one before queue and filter changed in one step, in turns: round trips, CPU, bytes.

The commit before that step is unpacked from the history. A process and a server of its own for either package make the
same calls, one after the other. *Links* go through BloomScheduler's `enqueue_request` and `next_request` in pages of
50, all new or 90 % repeats. *Batches* are `add_many` of 100 items, and *singles* `add` of an item, as under other
schedulers; both without a cache. CPU of the server is that of INFO. Bytes are MEMORY USAGE of a filter for a million
URLs at 1e-6 that has its first URL.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.interleaved import ratio, rotated
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.subjects import measured
from benchmarks.subjects.before import BEFORE, COMMIT, NOW, has_package, packages
from devtools.servers import available, running

ROUNDS = 9
STREAMS = {
    "new": "links, all new",
    "repeats": "links, 90 % repeats",
    "batches": "batches, new",
    "repeated batches": "batches, repeats",
    "singles": "singles, new",
}
# The costs, and the factor of their unit.
COSTS = {
    "trips": ("round trips", 1.0, ""),
    "sent": ("bytes sent", 1.0, ""),
    "client": ("CPU of the client", 1e6, " us"),
    "server": ("CPU of the server", 1e6, " us"),
}
GOALS = {
    ("new", "trips"): 0.75,
    ("repeats", "trips"): 0.55,
    ("new", "client"): 0.85,
    ("new", "server"): 1.35,
    ("batches", "client"): 0.4,
    ("batches", "server"): 2.1,
    ("repeated batches", "server"): 1.0,
    ("singles", "client"): 1.0,
    ("singles", "server"): 1.8,
}
MOST_BYTES = 4.3

Costs = dict[str, float]


class Process:
    """A measuring process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, stream: str = "") -> Any:
        """Return the costs of a turn; without a stream, the first line of the process."""
        assert self._process.stdin is not None  # noqa: S101  # both are pipes
        assert self._process.stdout is not None  # noqa: S101
        if stream:
            self._process.stdin.write(f"{stream}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a measuring process died; its error stands above")
        return json.loads(line)


@contextmanager
def measuring(path: str, url: str) -> Iterator[Process]:
    """Run a process with a package, elsewhere than in this checkout."""
    with tempfile.TemporaryDirectory() as elsewhere:
        process = subprocess.Popen(
            [sys.executable, "-m", measured.__name__, url],
            env={"PYTHONPATH": path, "PATH": ""},
            cwd=elsewhere,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            asked = Process(process)
            file = asked.ask()
            if not has_package(path, file):
                raise RuntimeError(f"{file} would be measured, which is not of {path}")
            yield asked


def run(_: Asked) -> list[Plot]:
    """Measure on each available server."""
    with packages() as paths:
        for kind in available():
            with ExitStack() as stack:
                servers = {name: stack.enter_context(running(kind)) for name in paths}
                processes = {
                    name: stack.enter_context(measuring(path, servers[name].url)) for name, path in paths.items()
                }
                _print(servers[NOW].name, *_measure(processes))
    return []


def _measure(processes: Mapping[str, Process]) -> tuple[dict[str, dict[str, list[Costs]]], dict[str, float]]:
    found: dict[str, dict[str, list[Costs]]] = {stream: {name: [] for name in processes} for stream in STREAMS}
    for turn in range(-1, ROUNDS):
        for stream, by_name in found.items():
            for name in rotated(list(processes), turn):
                cost = processes[name].ask(stream)
                if turn >= 0:  # the first turns load scripts and modules
                    by_name[name].append(cost)
    return found, {name: process.ask("memory")["of"] / measured.FULL for name, process in processes.items()}


def _print(server: str, found: Mapping[str, Mapping[str, list[Costs]]], memory: Mapping[str, float]) -> None:
    rows, ratios = [], {}
    for stream, by_name in found.items():
        for cost, (title, scale, unit) in COSTS.items():
            before, now = ([each[cost] for each in by_name[name]] for name in (BEFORE, NOW))
            ratios[stream, cost] = ratio(now, before)
            values = [f"{median(each) * scale:.3g}{unit}" for each in (before, now)]
            rows.append((STREAMS[stream], title, report.times(ratios[stream, cost]), *values))
    report.table(
        f"Costs of an item; {server}, medians of {ROUNDS} rounds. Before: commit {COMMIT[:7]}.",
        ("calls", "cost", "now to before", "before", "now"),
        rows,
    )
    for (stream, cost), most in GOALS.items():
        report.target(f"{server}: {STREAMS[stream]}, {COSTS[cost][0]}, times before,", ratios[stream, cost], most)
    report.line(f"\nBytes a URL at 1e-6, before: {memory[BEFORE]:.2f}.")
    report.target(f"{server}: bytes a URL at 1e-6", memory[NOW], MOST_BYTES)
