"""Where supported versions of Scrapy differ, and where it has no public way."""

import asyncio
from typing import Any

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


def wake(crawler: Crawler, seconds: float) -> None:
    """Have the engine ask for the next request soon, and not only at its heartbeat every 5 seconds.

    Without an asyncio loop, which is not Scrapy's default, the heartbeat remains.
    """
    slot = getattr(crawler.engine, "_slot", None)
    if slot is None:
        return
    try:
        asyncio.get_running_loop().call_later(seconds, _schedule, slot)
    except RuntimeError:
        return


def _schedule(slot: Any) -> None:
    if slot.closing is None:
        slot.nextcall.schedule()
