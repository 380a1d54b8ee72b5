"""A spider whose pages are items with repeated numbers, and pipelines behind that of unique items."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem
from scrapy.http import Response

from scrapy_bloom import UniqueItemsPipeline
from scrapy_bloom.runtime import RUNTIME
from tests.support.spiders.links import LinksSpider


class NumberedSpider(LinksSpider):
    """Yields an item for each page, whose number is the page's modulo NUMBERS; its name is the attribute `key`."""

    def __init__(self, start: str, key: str) -> None:
        super().__init__(start, key=key)
        self.name = key

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        path = urlsplit(response.url).path or "/"
        page = int(path.rpartition("/")[2] or 0)
        yield {"number": page % self.settings.getint("NUMBERS"), "path": path}
        links: Iterator[Request] = super().parse(response)
        yield from links


class Earlier:
    """Replaces each item, before the unique ones."""

    def process_item(self, item: dict[str, Any], spider: object = None) -> dict[str, Any]:  # noqa: ARG002
        """Replace an item."""
        return {**item, "key": item["number"]}


class Later:
    """Appends each item to the file STORED, and returns another object without a key.

    Items whose paths are in SLOW make a file `held`, and wait for a file `freed`. Then those in DROPPED are dropped,
    and those in FAILED fail. The first in DEADLY kills its process.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self._file = Path(settings["STORED"])
        self._slow, self._deadly = settings.getlist("SLOW"), settings.getlist("DEADLY")
        self._dropped, self._failed = settings.getlist("DROPPED"), settings.getlist("FAILED")

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "Later":
        """Read the settings."""
        return cls(crawler)

    async def process_item(self, item: dict[str, Any], spider: object = None) -> list[str]:  # noqa: ARG002
        """Store an item."""
        path = item["path"]
        if path in self._slow:
            self._file.with_suffix(".held").touch()
            while not self._file.with_suffix(".freed").exists():
                await RUNTIME.pause(0.01)
        if path in self._dropped:
            raise DropItem("of no interest")
        if path in self._failed:
            raise ValueError("an item of another kind")
        if path in self._deadly and not (died := self._file.with_suffix(".died")).exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with self._file.open("a") as file:
            file.write(json.dumps(item) + "\n")
        return ["stored"]


class Another(UniqueItemsPipeline):
    """A subclass, which claims the same keys."""


class OwnProcessor:
    """An ITEM_PROCESSOR that calls pipelines in its own way: none."""

    def __init__(self, crawler: Crawler) -> None:
        self._pipeline = UniqueItemsPipeline.from_crawler(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "OwnProcessor":
        """Build the pipeline alone."""
        return cls(crawler)

    async def open_spider_async(self) -> None:
        """Open the pipeline."""
        self._pipeline.open_spider()

    def open_spider(self, spider: object) -> None:  # noqa: ARG002
        """Open the pipeline; Scrapy before 2.14 calls this."""
        self._pipeline.open_spider()

    async def process_item_async(self, item: Any) -> Any:
        """Pass an item."""
        return item

    async def close_spider_async(self) -> None:
        """Do nothing."""
