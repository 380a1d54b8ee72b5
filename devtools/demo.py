"""The demo: some workers crawl a site with a common queue and filter, and every page is accounted for.

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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import redis
from scrapy import Request
from scrapy.utils.request import fingerprint
from tqdm import tqdm

from devtools import round_trips
from devtools.crawl_process import ROOT, Crawl, CrawlProcess, Job
from devtools.servers import memory_usage, running
from devtools.site import MadeUpLinks, Site, serving
from scrapy_bloom.text import plural

PROJECT = ROOT / "example_project"
FILTER, SET = "demo:filter", "demo:set"
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
    """Crawl, print the table and the verdict, and return the exit code."""
    with ExitStack() as stack:
        server = stack.enter_context(running("valkey"))
        client = stack.enter_context(server.client())
        site = stack.enter_context(serving(links))
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="scrapy-bloom-demo-")))
        settings = {
            "BLOOMFILTER_CAPACITY": links.pages * 5 // 4,
            "SCHEDULER_DUPEFILTER_KEY": FILTER,
            "SCHEDULER_PERSIST": True,  # the filter is measured when all have ended
            "DOWNLOAD_DELAY": 0,
            "ROBOTSTXT_OBEY": False,
            **round_trips.SETTINGS,
        }
        job = Job(("crawl", "shared"), {"start_url": f"{site.url}/"}, settings, environment(server.url))
        print(f"{plural(workers, 'worker')} crawl {site.url}/", flush=True)
        crew = [CrawlProcess(f"worker-{number}", job, directory) for number in range(1, workers + 1)]
        for worker in crew:
            stack.callback(worker.kill)
        _follow(crew, site)
        for worker in crew:
            if worker.wait().stats.get("finish_reason") != "finished":
                print(f"Failed: {worker.name} ended early. The end of its log:\n{worker.last_lines}", file=sys.stderr)
                return 1
        print("\n".join(table([worker.wait() for worker in crew], site, client)))
    twice, missed = fetched_twice(site), sorted(set(links) - set(site.paths))
    print(f"\n{verdict(site, missed, twice)}")
    for fault, pages in (("missed", missed), ("fetched twice", twice)):
        for page in pages[:NAMED]:
            print(f"{fault}: {page}", file=sys.stderr)
    return 1 if missed or twice else 0


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


def table(crawls: Sequence[Crawl], site: Site, client: redis.Redis) -> Iterator[str]:
    """Yield the counts of a crawl, and the filter beside the SET that scrapy-redis would keep."""
    pages = set(site.paths)
    client.sadd(SET, *(fingerprint(Request(site.url + page)).hex() for page in pages))
    filtered, trips = (_total(crawls, stat) for stat in ("dupefilter/filtered", round_trips.STAT))
    offered = filtered + len(pages)
    of_filter, of_set = memory_usage(client, FILTER), memory_usage(client, SET)
    rows: list[Sequence[str]] = [
        ("pages fetched", f"{len(pages):,}"),
        ("pages fetched twice", f"{len(fetched_twice(site)):,}"),
        ("pages missed", f"{len(set(site.links) - pages):,}"),
        ("repeats filtered", f"{filtered:,}"),
        ("",),
        ("the same URLs in", "the filter", "a SET"),
        ("round trips, with the queue", f"{trips:,}", f"{offered + 2 * len(pages):,} *"),
        ("bytes", f"{of_filter:,}", f"{of_set:,}"),
        ("bytes a URL", f"{of_filter / len(pages):,.1f}", f"{of_set / len(pages):,.1f}"),
        ("",),
        ("* not measured: scrapy-redis makes one for each link, and two to queue and take each page",),
    ]
    for label, *values in rows:
        yield (f"{label:<28}" + "".join(f"{value:>20}" for value in values)).rstrip()


def fetched_twice(site: Site) -> list[str]:
    """Return the pages of a site that were fetched more than once."""
    return sorted(page for page, times in Counter(site.paths).items() if times > 1)


def verdict(site: Site, missed: Sequence[str], twice: Sequence[str]) -> str:
    """Return one line: whether every page was fetched exactly once."""
    if missed or twice:
        return f"Failed: {plural(len(missed), 'page')} missed, {plural(len(twice), 'page')} fetched twice."
    return f"Passed: every page was fetched exactly once ({plural(len(site.links), 'page')})."


def _total(crawls: Sequence[Crawl], stat: str) -> int:
    return sum(int(crawl.stats.get(stat, 0)) for crawl in crawls)


if __name__ == "__main__":
    sys.exit(main())
