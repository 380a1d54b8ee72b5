"""One measured crawl of a site over loopback, in separate processes, with and without Redis."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.subjects import crawl_result, crawl_schedulers
from benchmarks.subjects.before import has_package
from devtools.crawl_process import ROOT, CrawlProcess, Job
from devtools.servers import Address
from devtools.spiders import links

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
    "EXTENSIONS": f'{{"{crawl_result.CrawlResult.__module__}.{crawl_result.CrawlResult.__qualname__}": 0}}',
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


def crawl(kind: str, url: str, workers: int, server: Address, scratch: Path, *, path: str = str(ROOT)) -> Crawl:
    """Crawl with `workers` processes, which have this PYTHONPATH, until all have ended."""
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
    environment = {"SCRAPY_PROJECT": "", "PYTHONPATH": path}
    processes = [_start(number, url, result, settings, environment) for number, result in enumerate(results)]
    try:
        for process in processes:
            if process.wait(LIMIT_SECONDS).exit_code:
                raise RuntimeError(f"a crawl failed; the end of its log:\n{process.last_lines}")
    finally:
        for process in processes:
            process.kill()
    ended = [json.loads(result.read_text()) for result in results]
    if not all(has_package(path, each["package"]) for each in ended):
        raise RuntimeError(f"the crawl ran {ended[0]['package']}, not the package of {path}")
    with server.client(protocol=3) as client:
        client.delete(*client.scan_iter(f"*{key}:*"), key)
    return Crawl(
        max(each["ended"] for each in ended) - min(each["began"] for each in ended),
        sum(each["pages"] for each in ended),
        sum(each["scheduler_seconds"] for each in ended),
        sum(each["cpu_seconds"] for each in ended),
        sum(each["round_trips"] for each in ended),
    )


def _start(
    number: int, url: str, result: Path, settings: dict[str, object], environment: dict[str, str]
) -> CrawlProcess:
    """Start a worker without a ledger, which would take time."""
    settings = {**settings, crawl_result.PATH_SETTING: result}
    job = Job(("runspider", links.__file__), {"start": url}, settings, environment)
    return CrawlProcess(f"worker-{number}", job, result.parent, keeps_ledger=False)
