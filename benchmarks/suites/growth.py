"""Filters made for 10,000 URLs that get a million: their error rates and their bits."""

from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.harness import redisbloom, report
from benchmarks.harness.options import Asked
from benchmarks.harness.parallel import spread
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import urls
from benchmarks.subjects import scalable_filters
from devtools.servers import Address, available, running

CAPACITY = 10_000
GIVEN = 1_000_000
BATCH = 1_000
# The number of lookups of URLs that were never added; at 1e-6 a million lookups would prove nothing.
STRANGERS = {1e-3: 1_000_000, 1e-6: 0}


class Task(NamedTuple):
    """A filter to fill, by name and server."""

    name: str
    error_rate: float
    server: Address

    def __str__(self) -> str:
        return f"{self.name} at {self.error_rate:g}"


@dataclass(frozen=True)
class Outcome:
    """The number of new URLs that a filter took for seen: during the filling, and afterwards."""

    size: scalable_filters.Size
    missed: int
    false_positives: int


def run(_: Asked) -> list[Plot]:
    """Fill every filter at every rate, and print a table per rate."""
    module = redisbloom.server_options()
    names = [name for name in scalable_filters.MAKERS if module or name != scalable_filters.REDISBLOOM]
    with running(available()[0], *module) as server:
        tasks = [Task(name, rate, server.address) for name in names for rate in STRANGERS]
        outcomes = dict(zip(tasks, spread(_fill, tasks), strict=True))
        with server.client(protocol=3) as client:
            versions = f"{server.name}{redisbloom.module_version(client)}"
    for rate in STRANGERS:
        _print(versions, rate, {task.name: outcome for task, outcome in outcomes.items() if task.error_rate == rate})
    return []


def _fill(task: Task) -> Outcome:
    with task.server.client(protocol=3) as client:
        filter_ = scalable_filters.MAKERS[task.name](client, CAPACITY, GIVEN, task.error_rate)
        missed = sum(filter_.add(urls(start, BATCH)).count(False) for start in range(0, GIVEN, BATCH))
        report.say(f"  {task}: filled")
        strangers = range(GIVEN, GIVEN + STRANGERS[task.error_rate], BATCH)
        false_positives = sum(filter_.contains(urls(start, BATCH)).count(True) for start in strangers)
        return Outcome(filter_.size(), missed, false_positives)


def _print(versions: str, error_rate: float, outcomes: dict[str, Outcome]) -> None:
    strangers = STRANGERS[error_rate]
    rows = []
    for name, outcome in outcomes.items():
        size = outcome.size
        measured = outcome.false_positives / strangers / error_rate if strangers else None
        by_fill = size.error_rate / error_rate if size.error_rate is not None else None
        rows.append(
            (
                name,
                "-" if measured is None else report.times(measured),
                "-" if by_fill is None else report.times(by_fill),
                f"{size.bits / GIVEN:.1f}",
                report.rate(outcome.false_positives, strangers) if strangers else "-",
                f"{outcome.missed:,}",
                str(size.layers),
                f"{size.memory_bytes:,}",
            )
        )
    looked_up = f"then {strangers:,} others looked up" if strangers else "none looked up"
    report.table(
        f"{GIVEN:,} URLs added at an error rate of {error_rate:g}, {looked_up}. {versions}.",
        (
            "filter, asked for",
            "rate to promise",
            "by its fill",
            "bits a URL",
            "error rate (95 % interval)",
            "new URLs called seen",
            "layers",
            "bytes",
        ),
        rows,
    )
