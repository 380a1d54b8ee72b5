"""One measured crawl of a site over loopback, in separate processes, with and without Redis."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.subjects import timed
from devtools import round_trips
from devtools.crawl_process import ROOT, CrawlProcess, Job
from devtools.servers import Address
from tests.support.spiders import links

# scrapy-redis makes more than a hundred thousand round trips, which take minutes if Redis is far away.
LIMIT_SECONDS = 900

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
    "EXTENSIONS": f'{{"{timed.Costs.__module__}.{timed.Costs.__qualname__}": 0}}',
    # Keep queue and filter when the first worker of scrapy-redis ends.
    "SCHEDULER_PERSIST": True,
}

_numbers = itertools.count()


@dataclass(frozen=True)
class Crawl:
    """The costs of a crawl, in total over its workers."""

    seconds: float
    pages: int
    scheduler_seconds: float
    cpu_seconds: float
    round_trips: int


def name_of(path: Path) -> str:
    """Return the name of a directory, or of its parent if the name is `html`."""
    resolved = path.resolve() if path.name != "html" else path.absolute()
    return (path.absolute().parent if resolved.name == "html" else resolved).name


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """Serve a site from a separate process, and yield the URL of its first page."""
    command = [sys.executable, "-m", "devtools.site", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            url = process.stdout.readline().strip()
            yield url + "index.html" if "--directory" in options else url
        finally:
            process.terminate()


def crawl(kind: str, url: str, workers: int, server: Address, scratch: Path) -> Crawl:
    """Crawl with `workers` processes until all have ended."""
    scheduler, dupefilter = KINDS[kind]
    key = f"{{bench:crawl:{next(_numbers)}}}"
    settings = {
        **SETTINGS,
        "SCHEDULER": f"{timed.__name__}.{scheduler}",
        "DUPEFILTER_CLASS": dupefilter,
        "REDIS_URL": server.url,
        "SCHEDULER_DUPEFILTER_KEY": f"{key}:filter",
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
    }
    job = Job(("runspider", links.__file__), {"start": url}, settings, {"SCRAPY_PROJECT": "", "PYTHONPATH": str(ROOT)})
    processes = [CrawlProcess(f"worker-{number}", job, scratch) for number in range(workers)]
    try:
        ended = [process.wait(LIMIT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for one, process in zip(ended, processes, strict=True):
        if one.exit_code:
            raise RuntimeError(f"a crawl failed; the end of its log:\n{process.last_lines}")
    with server.client(protocol=3) as client:
        client.delete(*client.scan_iter(f"*{key.removesuffix('}')}*"), key)
    stats = [one.stats for one in ended]
    began, end = ([datetime.fromisoformat(each[f"{name}_time"]) for each in stats] for name in ("start", "finish"))
    costs = (timed.SCHEDULER, timed.CPU, round_trips.STAT)
    scheduler_seconds, cpu_seconds, trips = (sum(each[name] for each in stats) for name in costs)
    pages = sum(each.get("response_received_count", 0) for each in stats)
    return Crawl((max(end) - min(began)).total_seconds(), pages, scheduler_seconds, cpu_seconds, trips)
