"""A crawl that is fed: its workers wait for start URLs, pushed to Redis by anyone at any time.

Start `scrapy crawl fed`, and feed it with `redis-cli rpush fed:start_urls URL`.
"""

from collections.abc import Iterable

from scrapy import Request
from scrapy.http import Response
from scrapy_redis.spiders import RedisSpider

from crawler.links import same_host


class FedSpider(RedisSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """Follows every link of each host that a URL in the list `fed:start_urls` names; runs until stopped."""

    name = "fed"

    def make_request_from_data(self, data: bytes) -> Request:
        """Let the filter see what is fed, so that a URL pushed twice is fetched once.

        scrapy-redis's own would send it with `dont_filter=True`.
        """
        return Request(data.decode())

    def parse(self, response: Response) -> Iterable[Request]:
        """Follow the links to the same host."""
        return response.follow_all(same_host(response))
