"""Item pipelines of users, for `scrapy runspider`."""

from typing import Any, Self
from urllib.parse import urlsplit

from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy_redis import pipelines

from tests.support import vendored


class _Awaiting:
    """A pipeline that is called in the way of which no version of Scrapy warns."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        self: Any = super().from_crawler(crawler)  # type: ignore[misc]  # the pipeline's
        self._crawler = crawler
        return self  # type: ignore[no-any-return]  # as above

    async def process_item(self: Any, item: Any, spider: object = None) -> Any:
        """Store an item in a thread; Scrapy before 2.14 requires the parameter `spider`."""
        return await maybe_deferred_to_future(super().process_item(item, spider or self._crawler.spider))  # type: ignore[misc]  # as above


class StockPipeline(_Awaiting, pipelines.RedisPipeline):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's pipeline."""


class CopiedPipeline(_Awaiting, vendored.CopiedPipeline):  # type: ignore[misc]  # as above
    """That of a project with a copy of scrapy-redis."""


class FailingPipeline(pipelines.RedisPipeline):  # type: ignore[misc]  # scrapy-redis has no types
    """Raises for the items of the pages in the setting FAILS, and drops those of the others."""

    def __init__(self, fails: list[str]) -> None:
        self._fails = fails

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Read the setting."""
        return cls(crawler.settings.getlist("FAILS"))

    def process_item(self, item: dict[str, str], spider: object = None) -> None:  # noqa: ARG002
        """Refuse an item."""
        if urlsplit(item["url"]).path in self._fails:
            raise ValueError("an item of another kind")
        raise DropItem("of no interest")
