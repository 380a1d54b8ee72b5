"""Whole crawls with Redis near and far: over loopback and through a slow proxy.

All other parts are measured over loopback, and few crawls have Redis there. The proxy has a ping of 0.5 ms or 2 ms:
0.5 ms is another machine in the same data center, 2 ms another data center of the same city. The proxy adds latency
and otherwise keeps the speed of loopback. One worker crawls a made-up site and each `--html` directory, as often as
time allows. Crawls take turns; their times are relative to Scrapy without Redis in the same turns.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness import report
from benchmarks.harness.interleaved import ratio, rotated
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Groups
from benchmarks.subjects.whole_crawl import KINDS, SCRAPY, Crawl, crawl, name_of, serving
from devtools.proxy.delay import delaying, ping
from devtools.servers import Address, Server, available, running

DELAYS = (0.25e-3, 1e-3)
"""Seconds in each direction."""
MADE_UP = ("--pages", "500")
ROUNDS = 3
# No round starts after this many seconds.
ENOUGH_SECONDS = 240.0
MOST_OFF = 0.1
"""The allowed relative error of a ping."""
LOOPBACK = "Redis on this machine"


class Run(NamedTuple):
    """A kind of crawl, and the distance of Redis in its round."""

    kind: str
    distance: str


def run(asked: Asked) -> list[Groups]:
    """Crawl the made-up site and every directory; plot the last."""
    with (
        running(available()[0]) as near,
        tempfile.TemporaryDirectory(prefix="scrapy-bloom-bench-") as scratch,
        ExitStack() as stack,
    ):
        servers = {LOOPBACK: near.address}
        pings = {LOOPBACK: (0.0, ping(near.port))}
        for seconds in DELAYS:
            proxy = stack.enter_context(delaying(near.port, seconds))
            name = f"ping of {2 * seconds * 1e3:g} ms"
            pings[name] = (2 * seconds + pings[LOOPBACK][1], proxy.calibrate(near.port, seconds))
            servers[name] = Address(proxy.port)
        _print_pings(pings)
        options = {"made-up site": MADE_UP, **{name_of(path): ("--directory", str(path)) for path in asked.html}}
        return [_measure(name, each, near, servers, Path(scratch)) for name, each in options.items()][-1:]


def _print_pings(pings: Mapping[str, tuple[float, float]]) -> None:
    rows = [(name, f"{wanted * 1e3:.3f}", f"{found * 1e3:.3f}") for name, (wanted, found) in pings.items() if wanted]
    report.table(
        f"Pings through the proxy: a direct ping, {pings[LOOPBACK][1] * 1e3:.3f} ms, plus the delay.",
        ("distance", "wanted, ms", "measured, ms"),
        rows,
    )
    for name, (wanted, found) in pings.items():
        if wanted:
            report.target(f"{name}: off by", abs(found / wanted - 1), MOST_OFF)


def _measure(name: str, options: Sequence[str], near: Server, servers: Mapping[str, Address], scratch: Path) -> Groups:
    distances = list(servers)
    runs = [Run(kind, distance) for distance in distances for kind in KINDS]
    with serving(*options) as url:

        def measured(each: Run) -> Callable[[], Crawl]:
            return lambda: crawl(each.kind, url, 1, servers[each.distance], scratch)

        found = _rounds(name, {each: measured(each) for each in runs})
    costs = {each: [one.seconds for one in crawls] for each, crawls in found.items()}
    to_scrapy = multiples(costs, distances)
    rows = [
        (
            kind,
            *(report.times(each) for each in to_scrapy[kind]),
            *(f"{median(costs[Run(kind, distance)]):.1f}" for distance in distances),
            f"{median(one.round_trips for one in found[Run(kind, distances[-1])]):,.0f}",
        )
        for kind in KINDS
    ]
    pages = [one.pages for crawls in found.values() for one in crawls]
    report.table(
        f"{name}, {min(pages):,} to {max(pages):,} pages, one worker. {near.name}, medians of "
        f"{len(costs[runs[0]])} rounds. Relative to {SCRAPY}, then seconds.",
        ("crawl", *distances, *(f"s, {distance}" for distance in distances), "round trips"),
        rows,
    )
    title = f"Time of a whole crawl ({name}, {max(pages):,} pages), by the distance of Redis"
    return Groups("distance", title, "times the same crawl by Scrapy without Redis", distances, to_scrapy)


def multiples(costs: Mapping[Run, Sequence[float]], distances: Sequence[str]) -> dict[str, list[float]]:
    """Return the time of each kind of crawl at each distance, relative to Scrapy's own in the same turns."""
    return {
        kind: [ratio(costs[Run(kind, distance)], costs[Run(SCRAPY, distance)]) for distance in distances]
        for kind in KINDS
    }


def _rounds(name: str, contenders: Mapping[Run, Callable[[], Crawl]]) -> dict[Run, list[Crawl]]:
    """Crawl in turns, for as many rounds as time allows."""
    found: dict[Run, list[Crawl]] = {each: [] for each in contenders}
    started = time.monotonic()
    for turn in range(ROUNDS):
        for each in rotated(list(contenders), turn):
            found[each].append(contenders[each]())
        report.say(f"  {name}: round {turn + 1}, {time.monotonic() - started:.0f} s")
        if time.monotonic() - started > ENOUGH_SECONDS:
            break
    return found
