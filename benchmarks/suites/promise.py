"""Whether filters keep their error rate, filled as workers of real crawls fill them.

*Staggered* workers open the filter one after another, each adds a hundredth of the capacity, then all continue in
turns. *Idle* workers do the same, but wait while one of them fills the filter to 95 %. *Forked* workers continue with
a filter object of their parent, which has added a tenth. Of *uneven* workers a single one makes 99 % of the
additions. *Equal* workers take turns from the beginning. A worker is a filter with its own client, stepped in one
process over one server; in rows marked so the workers are processes, or share a store in memory. With a TTL of a day
nothing expires. With a TTL of 100 seconds the clock advances with the additions; the number behind the TTL is the
additions within each TTL, as a multiple of the capacity.

After the filling the filter is asked for items that were never added. The promise is broken if even the low end of
the interval is above it, or if the filter's bits show a higher rate: at 1e-6 the answers alone would prove too
little.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.harness import fill_by_processes, fill_by_turns, report
from benchmarks.harness.counters import connected
from benchmarks.harness.options import Asked
from benchmarks.harness.outcome import Outcome
from benchmarks.harness.parallel import spread
from benchmarks.harness.plots import Plot
from benchmarks.subjects.fillings import EQUAL, FORKED, IDLE, STAGGERED, UNEVEN, Filling
from devtools.servers import running
from scrapy_bloom.filter.layer import NO_IDENTITY
from scrapy_bloom.filter.parameters import FilterParameters

DAY = 86_400.0

# The longest first.
ON_A_SERVER = (
    Filling(STAGGERED, 16, 1_000_000, 1e-6, asked=300_000),
    Filling(EQUAL, 64, 400_000, 1e-3, batch=10_000, asked=200_000),
    Filling(STAGGERED, 12, 100_000, 1e-6, times=2.5, asked=1_000_000),
    Filling(STAGGERED, 32, 20_000, 1e-4, expansion=10, times=10, asked=300_000),
    Filling(UNEVEN, 8, 100_000, 1e-6, batch=100, asked=300_000),
    Filling(EQUAL, 2, 5_000, 1e-4, times=10, batch=1, asked=200_000),
    Filling(EQUAL, 8, 1_000, 1e-3, ttl=DAY, times=100, batch=100),
    Filling(IDLE, 64, 100_000, 1e-3, times=2.5, batch=100),
    Filling(EQUAL, 64, 20_000, 1e-2, ttl=DAY, times=10, batch=10_000),
    Filling(STAGGERED, 8, 100_000, 1e-3, batch=100, asked=300_000),
    Filling(EQUAL, 8, 100_000, 1e-6, expansion=0, times=1, asked=300_000),
    Filling(EQUAL, 8, 100_000, 1e-3, expansion=0, times=1, batch=100, asked=300_000),
    Filling(STAGGERED, 8, 5_000, 1e-2, expansion=1, times=10, batch=100),
    Filling(UNEVEN, 2, 5_000, 1e-2, expansion=1, times=10),
    Filling(STAGGERED, 64, 20_000, 1e-1, times=10, batch=10, asked=50_000),
    Filling(UNEVEN, 64, 20_000, 1e-3, batch=1),
    Filling(IDLE, 16, 20_000, 1e-2, ttl=DAY, batch=1, asked=50_000),
    Filling(STAGGERED, 2, 20_000, 1e-2, batch=1, asked=50_000),
)
IN_PROCESSES = (
    Filling(STAGGERED, 12, 100_000, 1e-6, times=2.5),
    Filling(EQUAL, 8, 100_000, 1e-3, batch=100),
    Filling(FORKED, 2, 100_000, 1e-6, times=2.5),
    Filling(FORKED, 8, 100_000, 1e-3, batch=100),
    Filling(FORKED, 64, 20_000, 1e-2, batch=1, asked=50_000),
)
IN_MEMORY = (
    Filling(EQUAL, 1, 1, 1e-3, times=1_000, batch=1, asked=20_000, filters=20),
    Filling(EQUAL, 8, 1, 1e-2, ttl=DAY, times=1_000, batch=1, asked=4_000, filters=20),
    Filling(STAGGERED, 8, 10, 1e-2, times=1_000, batch=10, asked=5_000, filters=5),
    Filling(EQUAL, 8, 100, 1e-2, ttl=DAY, times=1_000, batch=1, asked=10_000, filters=2),
    Filling(EQUAL, 1, 100, 1e-1, expansion=1, times=60, batch=10, asked=10_000),
    Filling(EQUAL, 1, 100, 1e-1, expansion=1, times=150, batch=10, asked=10_000),
    Filling(EQUAL, 4, 5_000, 1e-3, ttl=100.0, times=10, batch=100, pace=1),
    Filling(STAGGERED, 8, 5_000, 1e-2, ttl=100.0, times=20, batch=10, asked=50_000, pace=4),
    Filling(EQUAL, 8, 1_000, 1e-2, expansion=1, ttl=100.0, times=20, batch=10, asked=50_000, pace=4),
    Filling(UNEVEN, 8, 1_000, 1e-2, expansion=10, ttl=100.0, times=20, batch=1, asked=50_000, pace=4),
    Filling(EQUAL, 4, 5_000, 1e-2, expansion=0, ttl=100.0, times=10, batch=100, pace=1),
)
SMALL = (
    *(
        FilterParameters(1, 1e-6),
        FilterParameters(10, 1e-6),
        FilterParameters(10, 1e-8),
        FilterParameters(10, 1e-10),
        FilterParameters(100, 1e-9),
        FilterParameters(1_000, 1e-9),
    ),
    *(FilterParameters(1_000, 1e-12), FilterParameters(100_000, 1e-12), FilterParameters(1_000_000, 1e-15)),
)


class Task(NamedTuple):
    """A filling, and the address of its workers' server or cluster; None: a store in memory."""

    filling: Filling
    url: str | None

    def __str__(self) -> str:
        return str(self.filling)


class Found(NamedTuple):
    """The place of a filling, the filling, and its outcome."""

    place: str
    filling: Filling
    outcome: Outcome


def run(_: Asked) -> list[Plot]:
    """Fill in every way; print the measured error rates, and the lowest ones possible with three hash words."""
    with running("valkey") as server:
        found = fill_over(server.name, server.url)
    outcomes = spread(measure, [Task(each, None) for each in IN_MEMORY])
    found += [Found("memory", filling, each) for filling, each in zip(IN_MEMORY, outcomes, strict=True)]
    print_found(found)
    report.table(
        "Positions come from three words below m, the bits of a shard. A new item shares the positions of one of the "
        "n items in its shard with a probability of n / m^3 (first layers, computed).",
        ("filter", "n in a shard", "m", "n / m^3", "to its share of the promise"),
        [_floor(parameters) for parameters in SMALL],
    )
    return []


def fill_over(name: str, url: str) -> list[Found]:
    """Fill filters on a server or a cluster: by workers in turns, then by processes."""
    outcomes = spread(measure, [Task(each, url) for each in ON_A_SERVER])
    found = [Found(name, filling, each) for filling, each in zip(ON_A_SERVER, outcomes, strict=True)]
    for number, filling in enumerate(IN_PROCESSES):
        found.append(Found("processes", filling, fill_by_processes.measure(filling, url, f"promise:{number}")))
        report.say(f"  in processes: {filling}")
    return found


def print_found(found: Sequence[Found]) -> None:
    """Print a table of the outcomes, and the verdict."""
    report.table(
        "Items added as a multiple of the capacity; the first layer's items over its capacity; both error rates over "
        "the promised one. Several small filters are averaged.",
        (
            *("filling", "workers", "over", "capacity", "promise", "expansion", "TTL", "added", "batch", "layers"),
            *("first layer", "wrong answers", "rate to promise", "95 % interval", "by its bits", "promise is"),
        ),
        [_row(*each) for each in sorted(found, key=lambda each: _ORDER.index(each.filling.way))],
    )
    report.target("fillings that broke the promise,", sum(not each.outcome.is_kept for each in found), 0)


_ORDER = (STAGGERED, FORKED, IDLE, UNEVEN, EQUAL)


def measure(task: Task) -> Outcome:
    """Fill a filter, and ask it for items that were never added."""
    # These fillings overfill filters of fixed size on purpose, which warn.
    logging.getLogger("scrapy_bloom").setLevel(logging.ERROR)
    if task.url is None:
        return fill_by_turns.in_memory(task.filling)
    return fill_by_turns.on_server(task.filling, partial(connected, task.url))


def _row(place: str, filling: Filling, outcome: Outcome) -> tuple[str, ...]:
    low, high = outcome.interval
    several = f", {filling.filters} filters" if filling.filters > 1 else ""
    return (
        filling.way,
        str(filling.workers),
        f"{place}{several}",
        f"{filling.capacity:,}",
        f"{filling.error_rate:g}",
        str(filling.expansion),
        "-" if filling.ttl is None else f"{filling.ttl:,.0f} s" + (f", {filling.pace:g}" if filling.pace else ""),
        f"{filling.times:,g}",
        f"{filling.batch:,}",
        f"{outcome.layers:,.0f}",
        f"{outcome.first_layer:.2f}",
        f"{outcome.wrong:,} of {outcome.asked:,}",
        report.times(outcome.ratio),
        f"{report.times(low)} to {report.times(high)}",
        report.times(outcome.by_bits / filling.error_rate),
        "kept" if outcome.is_kept else "BROKEN",
    )


def _floor(parameters: FilterParameters) -> tuple[str, ...]:
    layer = parameters.first_layer("", NO_IDENTITY, 0, 0.0)
    held, bits = layer.capacity / layer.size.shards, layer.size.shard_bits
    floor = held / bits**3
    return (
        f"{parameters.capacity:,} at {parameters.error_rate:g}",
        f"{held:,.0f}",
        f"{bits:,}",
        f"{floor:.1e}",
        f"{floor / layer.error_rate:.2g}",
    )
