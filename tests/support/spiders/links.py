"""The spider of tests and measurements: follows every link of a site."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urljoin

import scrapy
from scrapy import Request
from scrapy.http import HtmlResponse, Response


class LinksSpider(scrapy.Spider):
    """Begins at `start`, and follows every link to its directory and below."""

    name = "links"

    def __init__(self, start: str, **attributes: str) -> None:
        super().__init__(**attributes)
        self._start = start
        self._site = urljoin(start, ".")

    async def start(self) -> AsyncIterator[Request]:
        """Begin with one page, which is in the filter like any other."""
        yield Request(self._start)

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        """Follow the links to the same site."""
        if isinstance(response, HtmlResponse):
            for href in response.css("a::attr(href)").getall():
                url = response.urljoin(href)
                if url.startswith(self._site):
                    yield Request(url)
