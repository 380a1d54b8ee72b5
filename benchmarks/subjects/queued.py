"""A BloomScheduler without an engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomScheduler


@contextmanager
def scheduling(server: str, **settings: object) -> Iterator[BloomScheduler]:
    """Open a scheduler for as long as the block lasts; then its queue is deleted."""
    chosen = {
        "REDIS_URL": server,
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
        "BLOOMFILTER_LEASE": 3600,  # no heartbeat comes meanwhile
        **settings,
    }
    crawler: Any = get_crawler(Spider, chosen)
    crawler.spider = Spider.from_crawler(crawler, name="queued")
    scheduler = BloomScheduler.from_crawler(crawler)
    scheduler.open(crawler.spider)
    try:
        yield scheduler
    finally:
        scheduler.close("finished")
