"""Whole crawls over loopback, with one worker and with two: a made-up site, and each `--html` directory.

Time is that from the opening of the first spider to the closing of the last, without the start of processes; that of a
scheduler is all of `enqueue_request` and `next_request`, so knowing repeats and queueing. Crawls take turns.
"""

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.harness import report, targets
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Bars
from benchmarks.subjects import crawl_result, crawl_schedulers
from devtools.crawl_process import ROOT, CrawlProcess, Job
from devtools.servers import Server, available, running
from devtools.spiders import links

ROUNDS = 3
LIMIT_SECONDS = 300

SCRAPY = "Scrapy, no Redis"
STOCK = "scrapy-redis"
OURS = "scrapy-bloom, scrapy-redis's Scheduler"
OUR_SCHEDULER = "scrapy-bloom, BloomScheduler"
_BLOOM, _SET = "scrapy_bloom.BloomRFPDupeFilter", "scrapy_redis.dupefilter.RFPDupeFilter"
KINDS = {
    SCRAPY: ("InMemory", "scrapy.dupefilters.RFPDupeFilter"),
    STOCK: ("ScrapyRedis", _SET),
    OURS: ("ScrapyRedis", _BLOOM),
    OUR_SCHEDULER: ("ScrapyBloom", _BLOOM),
}
SETTINGS = {
    "CONCURRENT_REQUESTS": 16,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "COOKIES_ENABLED": False,
    "LOG_LEVEL": "ERROR",
    "MEMUSAGE_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
    "TELNETCONSOLE_ENABLED": False,
    "EXTENSIONS": f'{{"{crawl_result.CrawlResult.__module__}.{crawl_result.CrawlResult.__qualname__}": 0}}',
    # As many as are on the way: a queue and a filter that outlive a worker of scrapy-redis.
    "SCHEDULER_PERSIST": True,
}

_numbers = itertools.count()


@dataclass(frozen=True)
class Crawl:
    """What a crawl took, over all its workers."""

    seconds: float
    pages: int
    scheduler_seconds: float
    round_trips: int


def run(asked: Asked) -> list[Bars]:
    """Crawl the made-up site, and every directory."""
    bars = []
    with running(available()[0]) as server, tempfile.TemporaryDirectory(prefix="scrapy-bloom-bench-") as scratch:
        for name, options in {
            "made-up site": (),
            **{_name(path): ("--directory", str(path)) for path in asked.html},
        }.items():
            with _serving(*options) as url:
                for workers in (1, 2):
                    bars.append(_measure(name, url, workers, server, Path(scratch)))
    return bars


def _name(path: Path) -> str:
    """What a directory is called: its own name, or its parent's where it is only `html`."""
    resolved = path.resolve() if path.name != "html" else path.absolute()
    return (path.absolute().parent if resolved.name == "html" else resolved).name


@contextmanager
def _serving(*options: str) -> Iterator[str]:
    """A site in a process of its own; gives its first page's URL."""
    command = [sys.executable, "-m", "devtools.site", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            url = process.stdout.readline().strip()
            yield url + "index.html" if options else url
        finally:
            process.terminate()


def _measure(name: str, url: str, workers: int, server: Server, scratch: Path) -> Bars:
    found: dict[str, list[Crawl]] = {kind: [] for kind in KINDS if workers == 1 or kind != SCRAPY}

    def crawling(kind: str) -> Callable[[], float]:
        def crawl() -> float:
            found[kind].append(_crawl(kind, url, workers, server, scratch))
            return found[kind][-1].seconds

        return crawl

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
    for most in targets.of_crawl(name, workers):
        report.target(f"{name}: {OUR_SCHEDULER}, times {SCRAPY},", ratios[OUR_SCHEDULER], most)
    slug = name.replace(" ", "-")
    return Bars(f"crawl-{slug}-{workers}", f"Crawl of {name}, workers: {workers}; {first} = 1", ratios)


def _crawl(kind: str, url: str, workers: int, server: Server, scratch: Path) -> Crawl:
    scheduler, dupefilter = KINDS[kind]
    key = f"bench:crawl:{next(_numbers)}"
    settings = {
        **SETTINGS,
        "SCHEDULER": f"{crawl_schedulers.__name__}.{scheduler}",
        "DUPEFILTER_CLASS": dupefilter,
        "REDIS_URL": server.url,
        "SCHEDULER_DUPEFILTER_KEY": f"{key}:filter",
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
    }
    results = [scratch / f"{number}.json" for number in range(workers)]
    processes = [_start(number, url, result, settings) for number, result in enumerate(results)]
    try:
        for process in processes:
            if process.wait(LIMIT_SECONDS).exit_code:
                raise RuntimeError(f"a crawl failed; the end of its log:\n{process.last_lines}")
    finally:
        for process in processes:
            process.kill()
    ended = [json.loads(result.read_text()) for result in results]
    with server.client(protocol=3) as client:
        client.delete(*client.scan_iter(f"{key}*"), key)
    return Crawl(
        max(each["ended"] for each in ended) - min(each["began"] for each in ended),
        sum(each["pages"] for each in ended),
        sum(each["scheduler_seconds"] for each in ended),
        sum(each["round_trips"] for each in ended),
    )


def _start(number: int, url: str, result: Path, settings: dict[str, object]) -> CrawlProcess:
    """Start a worker, which keeps no ledger: that would take a part of the time."""
    settings = {**settings, crawl_result.PATH_SETTING: result}
    job = Job(("runspider", links.__file__), {"start": url}, settings, {"SCRAPY_PROJECT": ""})
    return CrawlProcess(f"worker-{number}", job, result.parent, keeps_ledger=False)
