"""Where supported versions of Scrapy differ."""

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro

CLOSE_SPIDER_IS_ASYNC = "close_spider_async"  # Scrapy 2.14 and newer


def close_spider(crawler: Crawler, spider: Spider, reason: str) -> None:
    """Ask the engine to end the crawl, from code that cannot wait for it."""
    engine = crawler.engine
    if hasattr(engine, CLOSE_SPIDER_IS_ASYNC):
        deferred_from_coro(engine.close_spider_async(reason=reason))
    elif engine is not None:
        engine.close_spider(spider, reason)
