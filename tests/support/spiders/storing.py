"""A spider whose pages are stored by an item pipeline, which kills its process over one of them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from tests.support.spiders.links import LinksSpider

ITEMS_MEANWHILE = 20
"""Items that are stored while the deadly one waits: their requests are done."""


class StoringPipeline:
    """Append each page to the file STORED; at the page DEADLY, wait for others, then die once.

    It is done with an item when the coroutine ends, as the pipeline of a database is.
    """

    def __init__(self, file: Path, deadly: str) -> None:
        self._file, self._deadly = file, deadly
        self._stored = 0
        self._waiting: Deferred[None] | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "StoringPipeline":
        """Read the settings."""
        return cls(Path(crawler.settings["STORED"]), crawler.settings["DEADLY"])

    async def process_item(self, item: dict[str, str], spider: object = None) -> dict[str, str]:  # noqa: ARG002
        """Store an item; Scrapy before 2.14 requires the parameter `spider`."""
        died = self._file.with_suffix(".died")
        if item["url"].endswith(self._deadly) and not died.exists():
            self._waiting, self._stored = Deferred(), 0
            await maybe_deferred_to_future(self._waiting)
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with self._file.open("a") as file:
            file.write(f"{urlsplit(item['url']).path or '/'}\n")
        self._stored += 1
        if self._waiting is not None and self._stored >= ITEMS_MEANWHILE and not self._waiting.called:
            self._waiting.callback(None)
        return item


class StoringSpider(LinksSpider):
    """Yields each page as an item, or as many as the setting ITEMS says, and follows its links."""

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        for _number in range(self.settings.getint("ITEMS", 1)):
            yield {"url": response.url}
        links: Iterator[Request] = super().parse(response)
        yield from links
