"""Spiders for `scrapy bloom doctor`: each with one mistake, or none."""

from collections.abc import Iterator

import scrapy
import scrapy_redis.spiders
from scrapy.settings import BaseSettings
from scrapy_redis.queue import PriorityQueue

from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler, RedisSpider
from tests.support.vendored import CopiedSpider


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


class HastySpider(RedisSpider):
    """A spider that pops its start URLs itself."""

    name = "hasty"

    def next_requests(self) -> Iterator[scrapy.Request]:
        """Pop one."""
        yield scrapy.Request(self.server.lpop(self.redis_key).decode())


class CopyingSpider(CopiedSpider):  # type: ignore[misc]  # as above
    """A spider of a copy of scrapy-redis."""

    name = "copying"


class Hosts(PriorityQueue):  # type: ignore[misc]  # scrapy-redis has no types
    """A queue with its own order."""

    def push(self, request: scrapy.Request) -> None:
        """Push a request, whose priority is its host's."""
        super().push(request.replace(priority=len(request.url)))


class Keeping(BloomScheduler):
    """A scheduler that keeps its filter when the crawl ends."""

    def flush(self) -> None:
        """Delete the queue alone."""
        self.queue.clear()


class InSet(BloomRFPDupeFilter):
    """A dupefilter for scrapy-redis's SET."""

    def request_seen(self, request: scrapy.Request) -> bool:
        """Return whether the SET has the URL."""
        return bool(self.server.sadd(self.key, request.url) == 0)


class FedSpider(RedisSpider):
    """A spider that leases its start URLs."""

    name = "fed"
