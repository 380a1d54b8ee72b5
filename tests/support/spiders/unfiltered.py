"""The spider of the tests with a start request that bypasses the filter."""

from collections.abc import AsyncIterator

from scrapy import Request

from tests.support.spiders.links import LinksSpider


class UnfilteredSpider(LinksSpider):
    """Begins with a page that each start fetches."""

    async def start(self) -> AsyncIterator[Request]:
        """Begin with one page that bypasses the filter."""
        async for request in super().start():
            yield request.replace(dont_filter=True)
