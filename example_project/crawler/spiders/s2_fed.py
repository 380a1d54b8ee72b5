"""A crawl that is fed: its workers wait for start URLs, pushed to Redis by anyone at any time.

Start `scrapy crawl fed`, and feed it with `redis-cli rpush fed:start_urls URL`.
"""

from collections.abc import Iterable

from scrapy import Request
from scrapy.http import Response

from crawler.links import same_host
from scrapy_bloom import RedisSpider


class FedSpider(RedisSpider):
    """Follows every link of each host that a URL in the list `fed:start_urls` names; runs until stopped.

    A worker leases start URLs, so that none is lost with a worker. The setting keeps the filter when the last worker
    stops: the next start fetches no page again.
    """

    name = "fed"
    custom_settings = {"SCHEDULER_PERSIST": True}  # noqa: RUF012  # the name and the type are Scrapy's

    def make_request_from_data(self, data: bytes) -> Request:
        """Let the filter see what is fed, so that a URL pushed twice is fetched once.

        scrapy-redis's own would send it with `dont_filter=True`.
        """
        return Request(data.decode())

    def parse(self, response: Response) -> Iterable[Request]:
        """Follow the links to the same host."""
        return response.follow_all(same_host(response))
