"""Whole crawls of a made-up site and of each `--html` directory, with Redis on this machine and farther away.

Time runs from the opening of the first spider to the closing of the last, without the start of processes. The time of a
scheduler is all of `enqueue_request` and `next_request`: the duplicate check and the queue. CPU is that of the workers
from their start on, and of the server by INFO. Crawls take turns, for as many rounds as time allows.

The last site is also crawled through a proxy that adds 1 and 5 ms to a ping: 1 ms is another machine in the data
center, 5 ms another city. There scrapy-redis crawls once at 1 ms, and not at 5 ms, where it waits for minutes.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness import report
from benchmarks.harness.distance import ping, set_delay
from benchmarks.harness.interleaved import ratio, rotated
from benchmarks.harness.plots import Bars, Lines, Plot
from benchmarks.subjects.whole_crawl import (
    KINDS,
    OUR_SCHEDULER,
    SCRAPY,
    STOCK,
    Crawl,
    crawl,
    name_of,
    serving,
)
from devtools.servers import Address, available, cpu_seconds, running
from tests.support.proxy.link import forwarding

MADE_UP = ("--pages", "1000")
ROUNDS = 3
# No round starts after this many seconds.
ENOUGH_SECONDS = 150.0
NEAR, ONCE, TOO_FAR = 0, 1, 5
"""Milliseconds added to a ping; scrapy-redis crawls once at the second, and not at the third."""
MOST_TIMES_SCRAPY = {"python3-doc": 0.9, "postgresql-doc": 1.0}
"""The targets of a single worker, by the beginning of a site's name."""


class Run(NamedTuple):
    """A kind of crawl, and the milliseconds added to a ping."""

    kind: str
    far: int = NEAR

    def __str__(self) -> str:
        return self.kind if self.far == NEAR else f"{self.kind}, {self.far} ms"


class Place(NamedTuple):
    """The servers by distance, and a folder."""

    name: str
    servers: Mapping[int, Address]
    scratch: Path


def run(html: Sequence[Path]) -> list[Plot]:
    """Crawl the made-up site and every directory by one worker and by two, and the last of them from afar."""
    sites = {"made-up site": MADE_UP, **{name_of(path): ("--directory", str(path)) for path in html}}
    crawls: dict[str, dict[Run, list[float]]] = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scrapy-bloom-bench-")))
        server = stack.enter_context(running(available()[0]))
        servers = {NEAR: server.address}
        report.line(f"\nA ping takes {ping(server.port) * 1e3:.3f} ms.")
        for far in (ONCE, TOO_FAR):
            link = stack.enter_context(forwarding(server.port))
            servers[far] = link.address
            report.line(f"\nA ping of {far} ms more takes {set_delay(link, server.port, far / 2e3) * 1e3:.3f} ms.")
        place = Place(server.name, servers, scratch)
        for site, options in sites.items():
            distances = servers if site == [*sites][-1] else [NEAR]
            url = stack.enter_context(serving(*options))
            one = [Run(kind, far) for far in distances for kind in KINDS if far == NEAR or kind != SCRAPY]
            two = [Run(kind) for kind in KINDS if kind != SCRAPY]
            crawls[site] = _measure(site, url, 1, one, place)
            _measure(site, url, 2, two, place)
    ratios = {
        site: {kind: ratio(seconds[Run(kind)], seconds[Run(SCRAPY)]) for kind in KINDS if Run(kind) in seconds}
        for site, seconds in crawls.items()
    }
    last = [*crawls.values()][-1]
    by_distance = {kind: [(run.far, median(last[run])) for run in last if run.kind == kind] for kind in KINDS}
    # No distance delays a crawl without Redis.
    by_distance[SCRAPY].append((TOO_FAR, by_distance[SCRAPY][0][1]))
    return [
        Bars("crawls", "Time of a crawl by one worker, Scrapy without Redis = 1", ratios),
        Lines("distance", "Seconds of a crawl by one worker", "milliseconds added to a ping", by_distance),
    ]


def _measure(site: str, url: str, workers: int, runs: Sequence[Run], place: Place) -> dict[Run, list[float]]:
    """Crawl in turns, print the table, and return the seconds of each crawl."""
    found = {each: list[tuple[Crawl, float]]() for each in runs if each != Run(STOCK, TOO_FAR)}
    started = time.monotonic()
    with place.servers[NEAR].client() as client:
        for turn in range(ROUNDS):
            for each in rotated(list(found), turn):
                if turn == 0 or each != Run(STOCK, ONCE):
                    used = cpu_seconds(client)
                    one = crawl(each.kind, url, workers, place.servers[each.far], place.scratch)
                    found[each].append((one, cpu_seconds(client) - used))
            report.say(f"  {site}, workers: {workers}: round {turn + 1}, {time.monotonic() - started:.0f} s")
            if time.monotonic() - started > ENOUGH_SECONDS:
                break
    first = next(iter(found))
    seconds = {each: [one.seconds for one, _ in crawls] for each, crawls in found.items()}
    ratios = {each: ratio(seconds[each], seconds[first]) for each in found}
    rows = [
        (
            str(each),
            report.times(ratios[each]),
            f"{median(seconds[each]):.1f}",
            f"{median(one.scheduler_seconds / one.seconds / workers for one, _ in crawls):.0%}",
            f"{median(one.cpu_seconds for one, _ in crawls):.1f}",
            f"{median(used for _, used in crawls):.2f}",
            f"{median(one.round_trips for one, _ in crawls):,.0f}",
            f"{min(one.pages for one, _ in crawls):,} to {max(one.pages for one, _ in crawls):,}",
        )
        for each, crawls in found.items()
    ]
    report.table(
        f"{site}, workers: {workers}. {place.name}, medians of {len(seconds[first])} rounds.",
        (
            *("crawl", f"to {first}", "seconds", "in the scheduler"),
            *("s of the workers", "s of the server", "round trips", "pages"),
        ),
        rows,
    )
    for name, most in MOST_TIMES_SCRAPY.items():
        if workers == 1 and site.startswith(name):
            report.target(f"{site}: {OUR_SCHEDULER}, times {SCRAPY},", ratios[Run(OUR_SCHEDULER)], most)
    return seconds
