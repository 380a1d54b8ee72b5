"""Whole crawls over loopback: a made-up site, and each `--html` directory.

Each site is crawled with one worker and with two. Time runs from the opening of the first spider to the closing of
the last, without the start of processes. The time of a scheduler is all of `enqueue_request` and `next_request`: the
duplicate check and the queue. Crawls take turns.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.harness import report
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Bars
from benchmarks.subjects.whole_crawl import KINDS, OUR_SCHEDULER, SCRAPY, Crawl, crawl, name_of, serving
from devtools.servers import Server, available, running

ROUNDS = 3
MOST_TIMES_SCRAPY = {"python3-doc": 0.9, "postgresql-doc": 1.0}
"""The targets of a single worker, by the beginning of a site's name."""


def run(asked: Asked) -> list[Bars]:
    """Crawl the made-up site and every directory."""
    bars = []
    with running(available()[0]) as server, tempfile.TemporaryDirectory(prefix="scrapy-bloom-bench-") as scratch:
        for name, options in {
            "made-up site": (),
            **{name_of(path): ("--directory", str(path)) for path in asked.html},
        }.items():
            with serving(*options) as url:
                bars += [_measure(name, url, workers, server, Path(scratch)) for workers in (1, 2)]
    return bars


def _measure(name: str, url: str, workers: int, server: Server, scratch: Path) -> Bars:
    found: dict[str, list[Crawl]] = {kind: [] for kind in KINDS if workers == 1 or kind != SCRAPY}

    def crawling(kind: str) -> Callable[[], float]:
        def measured() -> float:
            found[kind].append(crawl(kind, url, workers, server.address, scratch))
            return found[kind][-1].seconds

        return measured

    costs = interleave(ROUNDS, {kind: crawling(kind) for kind in found})
    report.say(f"  {name}, workers: {workers}")
    first = next(iter(found))
    ratios = {kind: ratio(cost, costs[first]) for kind, cost in costs.items()}
    rows = [
        (
            kind,
            report.times(ratios[kind]),
            f"{median(costs[kind]):.1f}",
            f"{crawls[0].pages / median(costs[kind]):.0f}",
            f"{median(each.scheduler_seconds / each.seconds / workers for each in crawls):.0%}",
            f"{median(each.round_trips for each in crawls):,.0f}",
            f"{min(each.pages for each in crawls):,} to {max(each.pages for each in crawls):,}",
        )
        for kind, crawls in found.items()
    ]
    report.table(
        f"{name}, workers: {workers}. {server.name}, medians of {ROUNDS} rounds.",
        ("crawl", f"to {first}", "seconds", "pages a second", "of that in the scheduler", "round trips", "pages"),
        rows,
    )
    for site, most in MOST_TIMES_SCRAPY.items():
        if workers == 1 and name.startswith(site):
            report.target(f"{name}: {OUR_SCHEDULER}, times {SCRAPY},", ratios[OUR_SCHEDULER], most)
    slug = name.replace(" ", "-")
    return Bars(f"crawl-{slug}-{workers}", f"Crawl of {name}, workers: {workers}; {first} = 1", ratios)
