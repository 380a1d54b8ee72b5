"""A scheduler that builds its dupefilter directly, as copies of old versions of scrapy-redis do, and scripts of crawls.

`python -m tests.support.direct URL KEY WAY` crawls in one process: two spiders that are started at once, with different
settings (`together`) or the same (`alike`), or one `within` the other.
"""

import sys
from collections.abc import AsyncIterator
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter
from tests.support.crawling import BLOOM

DIRECT = "tests.support.direct.DirectScheduler"
CAPACITIES = {"first": 1111, "second": 2222}


class DirectScheduler(Scheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """Builds the dupefilter of the spider itself."""

    def open(self, spider: Spider) -> None:
        """Open the scheduler."""
        key = f"{spider.settings['STEM']}:{spider.name}"
        self.df = BloomRFPDupeFilter(self.server, key, spider.settings.getbool("DUPEFILTER_DEBUG"))
        super().open(spider)


class FirstSpider(Spider):
    """Makes one request, and may crawl another spider before it."""

    name = "first"
    within: Any = None

    async def start(self) -> AsyncIterator[Request]:
        """Crawl the other spider to its end, if there is one, and make the request."""
        if self.within:
            await maybe_deferred_to_future(self.within())
        yield Request("data:,")

    def parse(self, response: Any) -> None:
        """Take the page."""


class SecondSpider(FirstSpider):
    """Another spider."""

    name = "second"


def main(url: str, stem: str, way: str) -> None:
    """Crawl."""
    settings = {
        "SCHEDULER": DIRECT,
        "DUPEFILTER_CLASS": BLOOM,
        "SCHEDULER_PERSIST": True,
        "TELNETCONSOLE_ENABLED": False,
    }
    process = CrawlerProcess({**settings, "REDIS_URL": url, "STEM": stem})
    for kind in (FirstSpider, SecondSpider):
        capacity = CAPACITIES["first" if way == "alike" else kind.name]
        kind.custom_settings = {"BLOOMFILTER_CAPACITY": capacity, "SCHEDULER_QUEUE_KEY": f"{stem}:{kind.name}:queue"}
    if way == "within":
        process.crawl(FirstSpider, within=lambda: process.crawl(SecondSpider))
    else:
        process.crawl(FirstSpider)
        process.crawl(SecondSpider)
    process.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
