"""A spider that follows no link: its start() yields the site's first page, and when that has arrived, the others."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urljoin

import scrapy
from scrapy import Request
from scrapy.http import Response


class StartsSpider(scrapy.Spider):
    """Begins at `start`; the setting START_PATHS has the paths of the other pages."""

    name = "starts"

    def __init__(self, start: str, **attributes: str) -> None:
        super().__init__(**attributes)
        self._start = start
        self._has_begun = asyncio.Event()

    async def start(self) -> AsyncIterator[Request]:
        """Begin with one page, and go on when it has arrived."""
        yield Request(self._start)
        await self._has_begun.wait()
        for path in self.settings.getlist("START_PATHS"):
            yield Request(urljoin(self._start, path))

    def parse(self, _: Response) -> None:
        """Note the first page."""
        self._has_begun.set()
