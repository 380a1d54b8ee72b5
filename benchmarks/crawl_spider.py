"""The spider of a measured crawl, for `scrapy runspider`."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import scrapy
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response

from benchmarks.crawl_schedulers import SENT, Timed


class CrawlSpider(scrapy.Spider):
    """Follows every link below `start`; what the crawl took is written to the file `result` at the end."""

    name = "crawl"

    def __init__(self, start: str, result: str) -> None:
        super().__init__()
        self._start = start
        self._site = start[: start.rindex("/") + 1]
        self._result = Path(result)

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Write the result when every stat is in its place."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.write, signals.engine_stopped)
        return spider

    async def start(self) -> AsyncIterator[Request]:
        """Begin with one page, which is in the filter like any other."""
        yield Request(self._start)

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        """Follow the links to the same site."""
        if isinstance(response, scrapy.http.HtmlResponse):
            for href in response.css("a::attr(href)").getall():
                url = response.urljoin(href)
                if url.startswith(self._site):
                    yield Request(url)

    def write(self) -> None:
        """Write what it took."""
        stats = self.crawler.stats.get_stats() if self.crawler.stats else {}
        result = {
            "began": stats["start_time"].timestamp(),
            "ended": stats["finish_time"].timestamp(),
            "pages": stats.get("response_received_count", 0),
            "dropped": stats.get("dupefilter/filtered", 0),
            "scheduler_seconds": Timed.seconds,
            "round_trips": SENT.trips,
            "reason": stats["finish_reason"],
        }
        self._result.write_text(json.dumps(result))
