"""Spiders for `scrapy bloom doctor`: each with one mistake, or none."""

import scrapy
import scrapy_redis.spiders
from scrapy.settings import BaseSettings

from scrapy_bloom import RedisSpider


class ShopSpider(scrapy.Spider):
    """A spider without any mistake."""

    name = "shop"


class ForeignFilterSpider(scrapy.Spider):
    """A spider that chooses another dupefilter by its settings."""

    name = "foreign"
    custom_settings = {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"}  # noqa: RUF012  # as Scrapy has it


class LateFilterSpider(scrapy.Spider):
    """A spider that chooses another dupefilter by code."""

    name = "late"

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        """Set the dupefilter of Scrapy's first projects."""
        super().update_settings(settings)
        settings.set("DUPEFILTER_CLASS", "scrapy.dupefilters.BaseDupeFilter", "spider")


class LocalSpider(scrapy.Spider):
    """A spider that shares no queue."""

    name = "local"
    custom_settings = {"SCHEDULER": "scrapy.core.scheduler.Scheduler"}  # noqa: RUF012  # as Scrapy has it


class BorrowingSpider(scrapy.Spider):
    """A spider that uses another spider's queue, by a key without the name."""

    name = "borrowing"
    custom_settings = {"SCHEDULER_QUEUE_KEY": "lending:requests"}  # noqa: RUF012  # as Scrapy has it


class LendingSpider(scrapy.Spider):
    """A spider with a queue of its own name, which another spider uses as well."""

    name = "lending"


class PoppingSpider(scrapy_redis.spiders.RedisSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """A spider that pops its start URLs."""

    name = "popping"


class FedSpider(RedisSpider):
    """A spider that leases its start URLs."""

    name = "fed"
