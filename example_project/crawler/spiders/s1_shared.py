"""One crawl, many workers, who divide the work: start `scrapy crawl shared -a start_url=URL` several times."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response

from crawler.links import same_host


class SharedSpider(Spider):
    """Follows every link of one host; the queue and the filter in Redis make it one crawl."""

    name = "shared"

    def __init__(self, *args: Any, start_url: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start_url = start_url

    async def start(self) -> AsyncIterator[Request]:
        """Offer the start page to the filter like any other: every worker does, one of them fetches it.

        Scrapy's own `start` sends its requests with `dont_filter=True`, so each worker would fetch them.
        """
        yield Request(self.start_url)

    def parse(self, response: Response) -> Iterable[Request]:
        """Follow the links to the same host."""
        return response.follow_all(same_host(response))
