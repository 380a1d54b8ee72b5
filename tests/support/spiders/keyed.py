"""The spider of the tests with keys by an attribute of its own."""

from typing import Any, Self

from scrapy.crawler import Crawler

from tests.support.spiders.links import LinksSpider


class KeyedSpider(LinksSpider):
    """Has a job, and sets its keys itself if the setting KEYS says so."""

    job: str

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Create the spider, and set the keys."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.job = crawler.settings["JOB"]
        if stem := crawler.settings["KEYS"]:
            crawler.settings.set("SCHEDULER_QUEUE_KEY", f"{stem}:{spider.job}:queue", "spider")
            crawler.settings.set("SCHEDULER_DUPEFILTER_KEY", f"{stem}:{spider.job}:dupefilter", "spider")
        return spider
