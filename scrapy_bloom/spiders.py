"""scrapy-redis's spiders with leased start URLs: a worker that dies loses none."""

from types import SimpleNamespace
from typing import Any, ClassVar

from scrapy.crawler import Crawler
from scrapy.exceptions import DontCloseSpider
from scrapy_redis import spiders

from scrapy_bloom._filter_key import start_key_of
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom._scrapy.connection import RedisSettings, connect
from scrapy_bloom._scrapy.exit_report import reports_at_exit
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.start_urls import StartUrlFeed
from scrapy_bloom.transport.client import disconnect
from scrapy_bloom.transport.retry import retry_until


class LeasedStartUrls:
    """Mixin: lease start URLs instead of popping them."""

    server: Any
    redis_key: Any
    _start_url_feed: StartUrlFeed
    _runtime: ClassVar[Runtime] = RUNTIME

    @reports_at_exit()
    def setup_redis(self, crawler: Crawler | None = None) -> None:
        """Connect as scrapy-redis does, and lease start URLs.

        Args:
            crawler: the spider's crawler; None if the spider has it already.

        Raises:
            ConfigError: the key of the start URLs is invalid.
            UnavailableError: the client connects eagerly, and Redis was unreachable for BLOOMFILTER_RETRY_TIMEOUT s.
        """
        if self.server is None:
            mine: Crawler = crawler or self.crawler  # type: ignore[attr-defined]  # Scrapy's
            if not isinstance(self.redis_key, list):  # newer versions of scrapy-redis read several keys
                key = start_key_of(mine.settings, self)
                self.redis_key = key.replace("%", "%%")  # scrapy-redis inserts the spider's name
            timeout = BloomSettings.from_settings(mine.settings).retry_timeout
            # The clients of a cluster and of a single connection connect when they are created.
            disconnect(retry_until(lambda: connect(mine.settings), timeout, runtime=self._runtime))
            # scrapy-redis reads only these two, and some URLs only with settings of ours.
            settings = RedisSettings(mine.settings).for_scrapy_redis()
            super().setup_redis(SimpleNamespace(settings=settings, signals=mine.signals))  # type: ignore[misc]  # scrapy-redis's
            self._start_url_feed = StartUrlFeed(self, mine, self._runtime)

    def spider_idle(self) -> None:
        """Take start URLs, or let the spider close after MAX_IDLE_TIME_BEFORE_CLOSE seconds without any.

        Raises:
            DontCloseSpider: the spider waits, also while Redis is unreachable or other workers hold start URLs.
        """
        self._start_url_feed.is_unsure = False
        super().spider_idle()  # type: ignore[misc]  # scrapy-redis's
        if self._start_url_feed.is_unsure or self._start_url_feed.others_hold:
            raise DontCloseSpider


class RedisSpider(LeasedStartUrls, spiders.RedisSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's RedisSpider: with `BloomScheduler`, a dead worker loses no start URL.

    A start URL stays in Redis until its requests are in the queue. The start URLs of a dead or stopped worker return to
    their key. If `make_request_from_data` raises, the start URL moves to the list `{<redis_key>}:dead-letter`, and the
    others continue. Your own `next_requests` must iterate over `fetch_data` to the end, one start URL at a time.

    Example:
        >>> class NewsSpider(RedisSpider):
        ...     name = "news"
        ...     redis_key = "news:start_urls"
    """


class RedisCrawlSpider(LeasedStartUrls, spiders.RedisCrawlSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's RedisCrawlSpider: with `BloomScheduler`, a dead worker loses no start URL; see `RedisSpider`.

    Example:
        >>> class ShopSpider(RedisCrawlSpider):
        ...     name = "shop"
        ...     redis_key = "shop:start_urls"
    """
