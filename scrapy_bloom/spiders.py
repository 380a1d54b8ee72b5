"""scrapy-redis's spiders, connected as this package connects: any URL of it, and a Redis that comes a little later."""

from types import SimpleNamespace
from typing import Any, ClassVar

from scrapy.crawler import Crawler
from scrapy_redis import spiders

from scrapy_bloom.command import reports_at_exit
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.start_data import start_key_of
from scrapy_bloom.transport.connect import RedisSettings, connect, disconnect
from scrapy_bloom.transport.retry import retry_until


class _Connected:
    """Mixin: connect as this package does."""

    server: Any
    redis_key: Any
    _runtime: ClassVar[Runtime] = RUNTIME

    @reports_at_exit()
    def setup_redis(self, crawler: Crawler | None = None) -> None:
        """Connect as scrapy-redis does.

        Args:
            crawler: the spider's crawler; None if the spider has it already.

        Raises:
            ConfigError: the key of the start URLs is invalid.
            ValueError: the spider has no crawler yet.
            UnavailableError: the client connects eagerly, and Redis was unreachable for BLOOMFILTER_RETRY_TIMEOUT s.
        """
        if self.server is not None:
            return
        mine = crawler or getattr(self, "crawler", None)
        if mine is None:
            raise ValueError("crawler is required")
        if not isinstance(self.redis_key, list):  # newer versions of scrapy-redis read several keys
            key = start_key_of(mine.settings, self)
            self.redis_key = key.replace("%", "%%")  # scrapy-redis inserts the spider's name
        timeout = BloomSettings.from_settings(mine.settings).retry_timeout
        # The clients of a cluster and of a single connection connect when they are created.
        disconnect(retry_until(lambda: connect(mine.settings), timeout, runtime=self._runtime))
        # scrapy-redis reads only these two, and some URLs only with settings of ours.
        settings = RedisSettings(mine.settings).for_scrapy_redis()
        super().setup_redis(SimpleNamespace(settings=settings, signals=mine.signals))  # type: ignore[misc]  # scrapy-redis's


class RedisSpider(_Connected, spiders.RedisSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's RedisSpider, connected as this package connects.

    With `BloomScheduler` a dead worker loses no start URL, as with scrapy-redis's own class: each is an entry of the
    queue until its requests are queued. Those of a stopped crawl return to their key. One of which the spider makes no
    request is a dead letter, and the others continue. Your own `next_requests` must iterate over `fetch_data`.

    Example:
        >>> class NewsSpider(RedisSpider):
        ...     name = "news"
        ...     redis_key = "news:start_urls"
    """


class RedisCrawlSpider(_Connected, spiders.RedisCrawlSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's RedisCrawlSpider, see `RedisSpider`.

    Example:
        >>> class ShopSpider(RedisCrawlSpider):
        ...     name = "shop"
        ...     redis_key = "shop:start_urls"
    """
