"""The spider of crawls of many hosts: it begins with the first page of each, and follows all of its links."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy import Request
from scrapy.http import Response


class PacedSpider(scrapy.Spider):
    """Begins at the URLs in `starts`, separated by spaces."""

    name = "paced"
    starts = ""

    async def start(self) -> AsyncIterator[Request]:
        """Begin with one page of each host, which is in the filter like any other."""
        for url in self.starts.split():
            yield Request(url)

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        """Follow all links."""
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)
