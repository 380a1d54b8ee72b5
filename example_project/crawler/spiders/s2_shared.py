"""The same by the add-on, which sets the scheduler, too: a killed worker loses no request.

Run `scrapy crawl shared -a start_url=URL` several times. After Ctrl-C the same command resumes the crawl. With
`-s SCHEDULER_FLUSH_ON_START=True` it starts over; give this to the first worker only.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response

from crawler.links import same_host


class SharedSpider(Spider):
    """Follow every link of one host; the workers share queue and filter in Redis."""

    name = "shared"

    def __init__(self, *args: Any, start_url: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start_url = start_url

    async def start(self) -> AsyncIterator[Request]:
        """Send the start page through the filter, so that only one worker fetches it.

        Scrapy's own `start` sends its requests with `dont_filter=True`, so each worker would fetch them.
        """
        yield Request(self.start_url)

    def parse(self, response: Response) -> Iterable[Request]:
        """Follow the links to the same host."""
        return response.follow_all(same_host(response))
