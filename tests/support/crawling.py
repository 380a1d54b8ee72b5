"""Real crawls for the tests: a spider that follows every link, and `scrapy runspider` processes that run it.

The processes load this file alone, so that it imports nothing of the project's.
"""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import scrapy
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response

ROOT = Path(__file__).parents[2]
# A crawl takes two seconds; only one that hangs, or a machine that does, comes near this.
LIMIT = 120.0

# Scrapy 2.13 and 2.14 tell nobody but the log that a crawl could not start.
REFUSED_EXIT_CODE = 1 if scrapy.version_info >= (2, 15) else 0

BLOOM = "scrapy_bloom.BloomRFPDupeFilter"
REDIS_SCHEDULER = "scrapy_redis.scheduler.Scheduler"
OWN_SCHEDULER = "scrapy.core.scheduler.Scheduler"


class LinksSpider(scrapy.Spider):
    """Follows every link from `start`; what it fetched and its stats are written to the file `ledger` at the end."""

    name = "links"

    def __init__(self, start: str, ledger: str) -> None:
        super().__init__()
        self._start = start
        self._ledger = Path(ledger)
        self._fetched: list[str] = []

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        # The last signal there is, when every stat is in its place.
        crawler.signals.connect(spider.write, signals.engine_stopped)
        return spider

    async def start(self) -> AsyncIterator[Request]:
        yield Request(self._start)

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        self._fetched.append(response.url)
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)

    def write(self) -> None:
        stats = self.crawler.stats.get_stats() if self.crawler.stats else {}
        self._ledger.write_text(json.dumps({"fetched": self._fetched, "stats": stats}, default=str))


@dataclass(frozen=True)
class Crawl:
    """What a crawl left: its exit code and log, the URLs that it fetched and its stats."""

    exit_code: int
    log: str
    fetched: list[str]
    stats: dict[str, Any]


class Worker:
    """A `scrapy runspider` process; `spider` is the file that the spider is in."""

    def __init__(
        self, name: str, start: str, directory: Path, settings: dict[str, object], spider: str = __file__
    ) -> None:
        self._ledger, self._log = directory / f"{name}.json", directory / f"{name}.log"
        options = {"USER_AGENT": name, "TELNETCONSOLE_ENABLED": False, "DUPEFILTER_CLASS": BLOOM, **settings}
        command = [sys.executable, "-m", "scrapy", "runspider", spider, "-a", f"start={start}"]
        command += ["-a", f"ledger={self._ledger}", "-s", "LOG_LEVEL=DEBUG"]
        command += chain.from_iterable(("-s", f"{setting}={value}") for setting, value in options.items())
        # The settings of a project around the checkout are not ours.
        environment = {**os.environ, "PYTHONPATH": _python_path(), "SCRAPY_PROJECT": ""}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        """What it has logged until now."""
        return self._log.read_text()

    def wait(self) -> Crawl:
        """What the crawl left, when it has ended."""
        try:
            exit_code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired as error:
            error.add_note(self.log[-5000:])
            raise
        said = json.loads(self._ledger.read_text()) if self._ledger.exists() else {"fetched": [], "stats": {}}
        return Crawl(exit_code, self.log, said["fetched"], said["stats"])


@contextmanager
def crawling(name: str, start: str, directory: Path, **settings: object) -> Iterator[Worker]:
    """A worker that begins to crawl at once, and is killed if it still runs at the end of the block."""
    worker = Worker(name, start, directory, settings)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait()


def crawl(name: str, start: str, directory: Path, **settings: object) -> Crawl:
    """Crawl to the end."""
    with crawling(name, start, directory, **settings) as worker:
        return worker.wait()


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
