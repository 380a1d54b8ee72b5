"""scrapy-redis's spiders, with start URLs that a worker leases: one that dies before they are requests loses none."""

from typing import Any, ClassVar

from scrapy.crawler import Crawler
from scrapy.exceptions import DontCloseSpider
from scrapy.settings import BaseSettings
from scrapy_redis import spiders

from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom._scrapy.connection import connect
from scrapy_bloom._scrapy.exit_report import reports_at_exit
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.start_urls.feed import StartUrlFeed
from scrapy_bloom.transport.connections import disconnect
from scrapy_bloom.transport.retry import retry_until


class LeasedStartUrls:
    """The part that both spiders have beside scrapy-redis's."""

    server: Any
    _start_url_feed: StartUrlFeed
    _runtime: ClassVar[Runtime] = RUNTIME

    def setup_redis(self, crawler: Crawler | None = None) -> None:
        """Set up what scrapy-redis does, and lease start URLs from then on.

        Args:
            crawler: the one of this spider, or None: the spider has it already.

        Raises:
            UnavailableError: Redis was away for BLOOMFILTER_RETRY_TIMEOUT seconds, and the client connects when it is
                made.
        """
        if self.server is None:
            _wait_for_redis((crawler or self.crawler).settings, self._runtime)  # type: ignore[attr-defined]  # Scrapy's
            super().setup_redis(crawler)  # type: ignore[misc]  # scrapy-redis's
            self._start_url_feed = StartUrlFeed(self, crawler or self.crawler, self._runtime)  # type: ignore[attr-defined]  # Scrapy's

    def spider_idle(self) -> None:
        """Take start URLs, or wait for some, or let the spider end after MAX_IDLE_TIME_BEFORE_CLOSE seconds.

        Raises:
            DontCloseSpider: it waits, also while Redis is away, and while other workers hold start URLs.
        """
        self._start_url_feed.is_unsure = False
        super().spider_idle()  # type: ignore[misc]  # scrapy-redis's
        if self._start_url_feed.is_unsure or self._start_url_feed.others_hold:
            raise DontCloseSpider


@reports_at_exit()
def _wait_for_redis(settings: BaseSettings, runtime: Runtime) -> None:
    """Wait until a client can be made: a cluster's connects then, and one with a single connection."""
    timeout = BloomSettings.from_settings(settings).retry_timeout
    disconnect(retry_until(lambda: connect(settings), timeout, runtime=runtime))


class RedisSpider(LeasedStartUrls, spiders.RedisSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's RedisSpider, which loses no start URL with a worker, where `BloomScheduler` is the scheduler.

    A start URL that is taken stays in Redis until its requests are in the queue. What a worker held that died or was
    stopped goes back. One for which `make_request_from_data` raises goes to the list `{<redis_key>}:dead-letter`, and
    the others go on. A `next_requests` of your own takes one at a time from what `fetch_data` gives, to the end.

    Example:
        >>> class NewsSpider(RedisSpider):
        ...     name = "news"
        ...     redis_key = "news:start_urls"
    """


class RedisCrawlSpider(LeasedStartUrls, spiders.RedisCrawlSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's RedisCrawlSpider, which loses no start URL with a worker; see `RedisSpider`.

    Example:
        >>> class ShopSpider(RedisCrawlSpider):
        ...     name = "shop"
        ...     redis_key = "shop:start_urls"
    """
