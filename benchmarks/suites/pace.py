"""The gaps between the requests that a site gets from workers with one delay, and how workers share a small crawl.

The shared delay (BLOOMFILTER_SHARED_DELAY) is 0.2 s without jitter. The site notes the time of each request. "Alone" is
one worker without the setting. Time runs from the first request to the last one. A short gap is below half of the
delay. In the small crawls, which are trees, each worker has the delay by itself.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import report
from benchmarks.harness.plots import Plot
from benchmarks.subjects import paced
from devtools.crawl_process import ROOT, CrawlProcess, Job
from devtools.servers import Server, available, running
from devtools.site import Links, Site, serving

DELAY = 0.2
# Hosts, and the pages of each.
CASES = ((1, 200), (10, 40))
WORKERS = (1, 2, 4)
# Pages, and workers, of the small crawls.
SMALL = ((41, 2), (41, 4), (41, 8), (200, 2), (200, 4), (200, 8))
MOST_SHORT, MOST_TIMES = 1, 1.05
SETTINGS = {
    "SCHEDULER": "scrapy_bloom.BloomScheduler",
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
    "BLOOMFILTER_CAPACITY": 1000,
    "DOWNLOAD_DELAY": DELAY,
    "DOWNLOAD_DELAY_JITTER": 0,
    "LOG_LEVEL": "ERROR",
    "ROBOTSTXT_OBEY": False,
    "TELNETCONSOLE_ENABLED": False,
}


class Seen(NamedTuple):
    """The requests that the sites saw: the gaps of each site, the seconds of all, and the number of each worker."""

    gaps: list[float]
    seconds: float
    shares: list[int]

    @property
    def short(self) -> int:
        """The number of short gaps."""
        return sum(gap < DELAY / 2 for gap in self.gaps)


def run(_: Sequence[Path]) -> list[Plot]:
    """Crawl by one worker alone, and by one and more with one delay."""
    with running(available()[0]) as server:
        for hosts, pages in CASES:
            links = {"/": [f"/{page}" for page in range(1, pages)], **{f"/{page}": [] for page in range(1, pages)}}
            found = {"alone": crawl(server, links, hosts, 1, is_shared=False)}
            found |= {f"workers: {n}": crawl(server, links, hosts, n, is_shared=True) for n in WORKERS}
            _print(f"Hosts: {hosts}, pages of each: {pages}. {server.name}.", found)
        rows = []
        for pages, workers in SMALL:
            paths = ["/", *(f"/{page}" for page in range(1, pages))]
            links = {path: paths[2 * page + 1 : 2 * page + 3] for page, path in enumerate(paths)}
            seen = crawl(server, links, 1, workers, is_shared=False)
            rows.append((f"{pages}", f"{workers}", ", ".join(map(str, seen.shares)), f"{seen.seconds:.1f}"))
        report.table("Small crawls.", ("pages", "workers", "pages of each worker", "seconds"), rows)
    return []


def _print(title: str, found: dict[str, Seen]) -> None:
    rows = []
    for name, seen in found.items():
        gaps = sorted(seen.gaps)
        places = (gaps[0], gaps[len(gaps) // 100], gaps[len(gaps) // 2])
        rows.append(
            (name, *(f"{gap * 1e3:.0f}" for gap in places), f"{seen.short} of {len(gaps)}", f"{seen.seconds:.1f}")
        )
    report.table(title, ("crawl", "smallest gap, ms", "1 %", "median", "short gaps", "seconds"), rows)
    alone, *_, most = found.values()
    report.target(f"{[*found][-1]}, short gaps", most.short, MOST_SHORT)
    report.target(f"{[*found][-1]}, times one worker alone,", most.seconds / alone.seconds, MOST_TIMES)


def crawl(server: Server, links: Links, hosts: int, workers: int, *, is_shared: bool) -> Seen:
    """Crawl the sites, and return what they saw."""
    shares = Counter[str]()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scrapy-bloom-bench-")))
        sites = [stack.enter_context(serving(links, host=f"127.0.0.{number}")) for number in range(1, hosts + 1)]
        times = [_noting(site, shares) for site in sites]
        settings = {**SETTINGS, "REDIS_URL": server.url, "BLOOMFILTER_SHARED_DELAY": is_shared}
        starts = {"starts": " ".join(f"{site.url}/" for site in sites)}
        place = {"SCRAPY_PROJECT": "", "PYTHONPATH": str(ROOT)}
        processes = []
        for name in [f"worker-{number}" for number in range(workers)]:
            job = Job(("runspider", paced.__file__), starts, {**settings, "USER_AGENT": name}, place)
            processes.append(CrawlProcess(name, job, scratch))
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            if process.wait().exit_code:
                raise RuntimeError(f"a crawl failed; the end of its log:\n{process.last_lines}")
    report.say(f"  hosts: {hosts}, workers: {workers}, shared: {is_shared}")
    gaps = [after - before for each in times for before, after in pairwise(each)]
    return Seen(gaps, max(map(max, times)) - min(map(min, times)), sorted(shares.values()))


def _noting(site: Site, shares: Counter[str]) -> list[float]:
    """Return the list to which a site appends the time of each request, which it counts for its worker."""
    times: list[float] = []

    def note(worker: str) -> None:
        times.append(time.monotonic())
        shares[worker] += 1

    site.before = note
    return times
