"""A crawl of scrapy-redis with the filter in place of its SET; the rest of scrapy-bloom is not used.

Run `scrapy crawl plugin` several times, and push start URLs with
`redis-cli rpush plugin:start_urls '{"url": "https://example.com/"}'`.
"""

from collections.abc import Iterable
from typing import Any

from scrapy import Request
from scrapy.http import Response
from scrapy_redis.spiders import RedisSpider

from crawler.links import same_host


class PluginSpider(RedisSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """Follow every link of the hosts in the list `plugin:start_urls`, until stopped."""

    name = "plugin"
    custom_settings = {  # noqa: RUF012  # the name and the type are Scrapy's
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        # In place of scrapy_redis.dupefilter.RFPDupeFilter.
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
        "BLOOMFILTER_CAPACITY": 1_000_000,
        "BLOOMFILTER_ERROR_RATE": 1e-6,  # share of new requests that may be dropped as duplicates
        # Otherwise the first worker that stops deletes the queue and the filter of all.
        "SCHEDULER_PERSIST": True,
        # Only the other spiders use the add-on.
        "ADDONS": {},
    }

    def make_request_from_data(self, data: bytes) -> Any:
        """Send start URLs through the filter, so that a link back to one is a duplicate."""
        return super().make_request_from_data(data).replace(dont_filter=False)

    def parse(self, response: Response) -> Iterable[Request]:
        """Follow the links to the same host."""
        return response.follow_all(same_host(response))
