"""A spider fed by a list in Redis, for `scrapy runspider`."""

from typing import Any

from scrapy import Request
from scrapy_redis.spiders import RedisSpider

from devtools.spiders.links import LinksSpider


class FedSpider(LinksSpider, RedisSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """Follows every link from the paths in the list `start_urls` below its queue."""

    async def start(self) -> Any:
        return
        yield

    def make_request_from_data(self, data: bytes) -> Request:
        return Request(self._start + data.decode())
