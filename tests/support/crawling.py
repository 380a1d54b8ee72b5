"""Crawls of the tests: `scrapy runspider` processes of a spider that follows every link."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devtools.crawl_process import Crawl, CrawlProcess, Job
from tests.support import forked
from tests.support.spiders import links

# Under every version of Scrapy.
REFUSED_EXIT_CODE = 1

BLOOM = "scrapy_bloom.BloomRFPDupeFilter"
REDIS_SCHEDULER = "scrapy_redis.scheduler.Scheduler"
OWN_SCHEDULER = "scrapy.core.scheduler.Scheduler"


def begin(
    name: str,
    start: str,
    directory: Path,
    settings: dict[str, object],
    spider: str = links.__file__,
    *,
    key: str = "key",
) -> CrawlProcess:
    """Start a worker with its name as its user agent; `spider` is the spider's file, and `key` an attribute of it."""
    defaults = {
        "USER_AGENT": name,
        "TELNETCONSOLE_ENABLED": False,
        "DUPEFILTER_CLASS": BLOOM,
        "LOG_LEVEL": "DEBUG",
        # Scrapy starts so many tasks for each page, by default 100: a quarter of a crawl's CPU.
        "CONCURRENT_ITEMS": 10,
    }
    # The settings of a project around the checkout are not ours.
    job = Job(("runspider", spider), {"start": start, "key": key}, {**defaults, **settings}, {"SCRAPY_PROJECT": ""})
    return CrawlProcess(name, job, directory, launch=forked.start)


@contextmanager
def crawling(name: str, start: str, directory: Path, **settings: object) -> Iterator[CrawlProcess]:
    """A worker that crawls at once, and is killed if it still runs at the end of the block."""
    worker = begin(name, start, directory, settings)
    try:
        yield worker
    finally:
        worker.kill()


def crawl(name: str, start: str, directory: Path, **settings: object) -> Crawl:
    """Crawl to the end."""
    with crawling(name, start, directory, **settings) as worker:
        return worker.wait()
