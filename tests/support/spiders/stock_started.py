"""The spider of `started` over scrapy-redis's own `RedisSpider`."""

from scrapy_redis.spiders import RedisSpider

from tests.support.spiders.started import FedSpider


class StockStartedSpider(FedSpider, RedisSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """The same spider, by a change of settings alone."""
