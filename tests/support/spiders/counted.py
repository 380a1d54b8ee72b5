"""The spider of the tests that says what its requests count as."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.http import Response

from tests.support.spiders.links import LinksSpider


class CountedSpider(LinksSpider):
    """Counts `/a/1` and `/b/1` as product 1, `/faulty` as a number, and the front page and `/list` as always new."""

    async def start(self) -> AsyncIterator[Request]:
        """Begin with a page that is always new."""
        async for request in super().start():
            yield request.replace(meta={"bloom_always": True})

    def parse(self, response: Response, **attributes: Any) -> Iterator[Request]:
        """Follow the links."""
        for request in super().parse(response, **attributes):
            path = urlsplit(request.url).path
            if path in ("/", "/list"):
                request.meta["bloom_always"] = True
            else:
                request.meta["bloom_key"] = 42 if path == "/faulty" else f"product {path.rpartition('/')[2]}"
            yield request
