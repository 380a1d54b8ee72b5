"""A spider fed by Redis that overrides all that BloomScheduler calls, and has attributes of its own."""

from collections.abc import Iterator
from typing import Any

from scrapy.http import HtmlResponse, Response

from tests.support.overrides import OurSpider


class Attributes:
    """Follows all links and yields an item for each page.

    The start URLs are at a key by an attribute, in another encoding. The spider ends at its first idle moment.
    """

    name = "overriding"
    redis_key = "%(key)s:start"
    max_idle_time = 1

    def __init__(self, start: str, **attributes: str) -> None:  # noqa: ARG002  # of other spiders
        super().__init__(**attributes)
        # scrapy-redis logs those of the instance.
        self.redis_batch_size, self.redis_encoding = 1, "utf-16"

    @property
    def spider_idle_start_time(self) -> int:
        """The time that scrapy-redis compares with MAX_IDLE_TIME_BEFORE_CLOSE."""
        return 0

    @spider_idle_start_time.setter
    def spider_idle_start_time(self, since: int) -> None:
        pass

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        """Yield an item, and the links."""
        yield {"url": response.url}
        if isinstance(response, HtmlResponse):
            yield from response.follow_all(css="a")


class OverridingSpider(Attributes, OurSpider):  # type: ignore[misc]  # made by a function
    """Under BloomScheduler."""
