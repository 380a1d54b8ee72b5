"""A crawl whose workers wait for start URLs in Redis.

Run `scrapy crawl fed`, and push start URLs with
`redis-cli rpush fed:start_urls '{"url": "https://example.com/"}'`. They are JSON with every SCHEDULER_SERIALIZER.
"""

from collections.abc import Iterable
from typing import Any

from scrapy import Request
from scrapy.http import Response

from crawler.links import same_host
from scrapy_bloom import RedisSpider


class FedSpider(RedisSpider):
    """Follow every link of the hosts in the list `fed:start_urls`, until stopped.

    Workers lease start URLs, so that none is lost with a worker.
    """

    name = "fed"

    def make_request_from_data(self, data: bytes) -> Any:
        """Send start URLs through the filter, so that a URL pushed twice is fetched once.

        scrapy-redis's method sends them with `dont_filter=True`.
        """
        return super().make_request_from_data(data).replace(dont_filter=False)

    def parse(self, response: Response) -> Iterable[Request]:
        """Follow the links to the same host."""
        return response.follow_all(same_host(response))
