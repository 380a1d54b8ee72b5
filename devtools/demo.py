"""The demo: a SET and the filter under the same scheduler, then workers that share a crawl; each page is accounted for.

    python -m devtools.demo
    python -m devtools.demo --pages 5000 --links 100 --workers 4

Exit codes: 0 if every page was fetched exactly once, 1 if one was missed or fetched twice or a worker failed, 2 for
invalid options, 130 if it was interrupted.
"""

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from devtools import round_trips
from devtools.crawl_process import ROOT, Crawl, CrawlProcess, Job
from devtools.servers import Server, memory_usage, running
from devtools.site import MadeUpLinks, Site, serving
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.text import plural

PROJECT = ROOT / "example_project"
STOCK = {"ADDONS": "{}", "SCHEDULER": "scrapy_redis.scheduler.Scheduler"}
SET, FILTER = "scrapy_redis.dupefilter.RFPDupeFilter", "scrapy_bloom.BloomRFPDupeFilter"
NAMED = 5
"""The maximum number of faulty pages that are named."""
_POLL_SECONDS = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m devtools.demo", description=__doc__.partition("\n")[0])
    for name, default, meaning in (
        ("pages", 1000, "pages of the site"),
        ("links", 40, "links on each of its pages"),
        ("workers", 2, "spider processes"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (%(default)s)")
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value < 1:
            parser.error(f"--{name} = {value}: must be at least 1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _demo(MadeUpLinks(options.pages, options.links), options.workers)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def _demo(links: MadeUpLinks, workers: int) -> int:
    """Crawl, print the tables and the verdict, and return the exit code."""
    with running("valkey") as server:
        print(f"1 worker under scrapy-redis's scheduler, {plural(links.pages, 'page')}", flush=True)
        of_set = _crawl(server, links, "set", 1, {**STOCK, "DUPEFILTER_CLASS": SET})
        of_filter = _crawl(server, links, "filter", 1, {**STOCK, "DUPEFILTER_CLASS": FILTER})
        print("\n".join(comparison(of_set, of_filter)))
        print(f"\n{plural(workers, 'worker')} with the add-on, the same pages", flush=True)
        shared = _crawl(server, links, "addon", workers, {})
        print("\n".join(counts(shared)))
    results = (of_set, of_filter, shared)
    missed = sorted(page for each in results for page in each.missed)
    twice = sorted(page for each in results for page in each.twice)
    print(f"\n{verdict(links.pages, missed, twice)}")
    for fault, pages in (("missed", missed), ("fetched twice", twice)):
        for page in pages[:NAMED]:
            print(f"{fault}: {page}", file=sys.stderr)
    return 1 if missed or twice else 0


@dataclass(frozen=True)
class Result:
    """The result of a crawl: its workers, its site, and the memory of its seen requests in bytes."""

    crawls: Sequence[Crawl]
    site: Site
    memory: int

    @property
    def missed(self) -> list[str]:
        """The pages that were not fetched."""
        return sorted(set(self.site.links) - set(self.site.paths))

    @property
    def twice(self) -> list[str]:
        """The pages that were fetched more than once."""
        return sorted(page for page, times in Counter(self.site.paths).items() if times > 1)

    def total(self, stat: str) -> int:
        """Sum a stat of the workers."""
        return sum(int(crawl.stats.get(stat, 0)) for crawl in self.crawls)


def _crawl(server: Server, links: MadeUpLinks, name: str, workers: int, classes: Mapping[str, object]) -> Result:
    """Crawl a site of its own with the spider `shared`; exit if a worker fails."""
    key = f"demo:{name}"
    settings = {
        "BLOOMFILTER_CAPACITY": links.pages * 5 // 4,
        "SCHEDULER_DUPEFILTER_KEY": key,
        "SCHEDULER_PERSIST": True,  # the record is measured when all have ended
        "DOWNLOAD_DELAY": 0,
        "ROBOTSTXT_OBEY": False,
        **round_trips.SETTINGS,
        **classes,
    }
    with ExitStack() as stack:
        site = stack.enter_context(serving(links))
        client = stack.enter_context(server.client())
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="scrapy-bloom-demo-")))
        job = Job(("crawl", "shared"), {"start_url": f"{site.url}/"}, settings, environment(server.url))
        crew = [CrawlProcess(f"{name}-{number}", job, directory) for number in range(1, workers + 1)]
        for worker in crew:
            stack.callback(worker.kill)
        _follow(crew, site)
        for worker in crew:
            if worker.wait().stats.get("finish_reason") != "finished":
                sys.exit(f"Failed: {worker.name} ended early. The end of its log:\n{worker.last_lines}")
        return Result([worker.wait() for worker in crew], site, memory_usage(client, key))


def environment(redis_url: str) -> dict[str, str]:
    """Return the environment of a worker of the example project."""
    path = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = os.environ.get("SCRAPY_SETTINGS_MODULE", "crawler.settings")
    return {"SCRAPY_SETTINGS_MODULE": settings, "REDIS_URL": redis_url, "PYTHONPATH": path}


def _follow(crew: Sequence[CrawlProcess], site: Site) -> None:
    """Show the progress of a crawl until all workers have ended."""
    # disable=None: no bar where the output is not a terminal
    with tqdm(unit=" pages", disable=None, total=len(site.links), leave=False) as bar:
        for worker in crew:
            while not worker.has_ended(_POLL_SECONDS):
                bar.update(len(set(site.paths)) - bar.n)


def comparison(of_set: Result, of_filter: Result) -> Iterator[str]:
    """Yield the table of the SET and the filter."""
    both = (of_set, of_filter)
    yield f"{'':<28}{'SET':>14}{'filter':>14}{'filter/SET':>14}"
    for label, (old, new), form in (
        ("memory, bytes", [each.memory for each in both], ",.0f"),
        ("round trips", [each.total(round_trips.STAT) for each in both], ",.0f"),
        ("time, seconds", [float(each.crawls[0].stats["elapsed_time_seconds"]) for each in both], ",.1f"),
    ):
        yield f"{label:<28}{old:>14{form}}{new:>14{form}}{new / old:>14.3f}"
    large = FilterParameters()
    a_url = large.sizes()[0].memory_bytes / large.capacity
    yield f"A filter for {large.capacity:,} URLs takes {a_url:.1f} bytes each. This one has room for a quarter more"
    yield "URLs than there are, and its parameters weigh more, because it is small."


def counts(result: Result) -> Iterator[str]:
    """Yield the table of the counts of a crawl."""
    for label, number in (
        ("pages fetched", len(set(result.site.paths))),
        ("pages fetched twice", len(result.twice)),
        ("pages missed", len(result.missed)),
        ("repeats filtered", result.total("dupefilter/filtered")),
        ("round trips, with the queue", result.total(round_trips.STAT)),
    ):
        yield f"{label:<28}{number:>14,}"


def verdict(pages: int, missed: Sequence[str], twice: Sequence[str]) -> str:
    """Return one line: whether every page was fetched exactly once."""
    if missed or twice:
        return f"Failed: {plural(len(missed), 'page')} missed, {plural(len(twice), 'page')} fetched twice."
    return f"Passed: every page was fetched exactly once ({plural(pages, 'page')})."


if __name__ == "__main__":
    sys.exit(main())
