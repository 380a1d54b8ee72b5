"""scrapy-redis's spiders with leased start URLs: a worker that dies loses none."""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from itertools import takewhile
from types import FunctionType, SimpleNamespace
from typing import Any, ClassVar, TypeVar

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import DontCloseSpider
from scrapy_redis import defaults, spiders
from scrapy_redis.spiders import RedisMixin

from scrapy_bloom import engine
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.queue.keys import start_key_of
from scrapy_bloom.queue.start_urls import StartUrl, StartUrls
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.text import plural
from scrapy_bloom.transport.connect import RedisSettings, connect, disconnect
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import RedisUnreachableError, retry_until

logger = logging.getLogger(__name__)

# Seconds between two looks for start URLs that are done.
_TICK_SECONDS = 0.25
# Buried start URLs that are logged with a traceback.
_MAX_TRACEBACKS = 3

T = TypeVar("T")


class StartUrlFeed:
    """The start URLs of one spider: leased, delivered, then acknowledged, buried or released.

    It replaces `fetch_data` and `count_size` of the spider, and guards `make_request_from_data`.

    Attributes:
        is_unsure: True if Redis was unreachable, so that there may be further start URLs.
    """

    def __init__(self, spider: Any, scheduler: Any, runtime: Runtime = RUNTIME) -> None:
        self.is_unsure = False
        self._runtime = runtime
        self._spider = spider
        self._scheduler = scheduler
        self._urls: dict[str, StartUrls] = {}
        self._current: tuple[StartUrls, StartUrl] | None = None
        self._buried = 0
        self._ticker = engine.Ticker(_TICK_SECONDS, self._sync, runtime)
        spider.fetch_data, spider.count_size = self.fetch, self.count
        spider.make_request_from_data = self._guarded(spider.make_request_from_data)
        spider.crawler.signals.connect(self._release, signals.spider_closed)
        self._ticker.start()

    @property
    def others_hold(self) -> bool:
        """True if other live workers hold start URLs, which return if those workers die."""
        return any(urls.others_hold for urls in self._urls.values())

    def fetch(self, key: str, want: int) -> Iterable[Any]:
        """Return up to `want` start URLs; asking for the next one, or for the end, finishes the one before."""
        urls = self._urls_at(key)
        if not urls.ready:
            self._ask(lambda: self._lease(urls, want), None)
        return self._deliver(urls)

    def count(self, key: str) -> int:
        """Return the number of start URLs, 0 while Redis is unreachable."""
        return self._ask(self._urls_at(key).sync, 0)

    def _urls_at(self, key: str) -> StartUrls:
        if key not in self._urls:
            scheduler, settings, kind = self._scheduler, self._spider.settings, "list"
            # As scrapy-redis reads them.
            if settings.getbool("REDIS_START_URLS_AS_SET", defaults.START_URLS_AS_SET):
                kind = "set"
            elif settings.getbool("REDIS_START_URLS_AS_ZSET", defaults.START_URLS_AS_ZSET):
                kind = "zset"
            self._urls[key] = StartUrls(scheduler.server, key, kind, scheduler.worker_name, scheduler.queue_keys.queue)
        return self._urls[key]

    def _lease(self, urls: StartUrls, want: int) -> None:
        """Lease start URLs, after the leases of dead workers at all of the spider's keys are released."""
        for key in getattr(self._spider, "_redis_keys", None) or ():
            self._urls_at(key)
        for each in self._urls.values():
            if recovered := each.recover():
                logger.warning(
                    "The start key %r gets back %s of dead workers", each.key, plural(recovered, "start URL")
                )
        urls.lease(want)
        if urls.ready:
            self._spider.spider_idle_start_time = int(self._runtime.unix_time())

    def _deliver(self, urls: StartUrls) -> Iterator[Any]:
        """Yield ready start URLs. A request for the next one shows that the engine has all requests of the last one.

        If the caller stops early, the last one stays leased until the spider closes, and is released then.
        """
        while urls.ready:
            url = urls.ready.popleft()
            self._current = urls, url
            yield url.data
            if self._current is not None:
                self._scheduler.when_queued(partial(urls.acknowledge, url))
            self._current = None

    def _guarded(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return make_request_from_data with its errors caught: one bad start URL stops no other."""

        @wraps(make)
        def make_request_from_data(data: Any) -> Any:
            try:
                made = make(data)
            except Exception as error:  # any error of the spider
                self._bury(data, error)
                return []
            return rest_of(made, data) if isinstance(made, Iterator) else made

        def rest_of(made: Iterator[Request], data: Any) -> Iterator[Request]:
            try:
                yield from made
            except Exception as error:  # any error of the spider's generator
                self._bury(data, error)

        return make_request_from_data

    def _bury(self, data: Any, error: Exception) -> None:
        """Move the current start URL to the dead letters; raise the error if `data` is not leased."""
        if self._current is None or self._current[1].data is not data:
            raise error
        urls, url = self._current
        self._current = None
        urls.bury(url)
        self._buried += 1
        logger.error(
            "make_request_from_data failed for the start URL %.500r, which is kept in %r: %s: %s",
            data,
            urls.keys.dead_letters,
            type(error).__name__,
            error,
            exc_info=error if self._buried <= _MAX_TRACEBACKS else None,
        )

    def _ask(self, work: Callable[[], T], default: T) -> T:
        """Return the result of `work`, or `default` while Redis is unreachable."""
        try:
            return self._scheduler.ask_redis(work)  # type: ignore[no-any-return]
        except RedisUnreachableError:
            self.is_unsure = True
            return default

    def _sync(self) -> None:
        for urls in self._urls.values():
            if urls.needs_sync:
                self._ask(urls.sync, 0)

    def _release(self) -> None:
        """Release this worker's start URLs at once, so that no worker has to wait for its lease to expire."""
        self._ticker.stop()
        try:
            for urls in self._urls.values():
                if released := urls.release():
                    logger.info("The start key %r gets back %s of this worker", urls.key, plural(released, "start URL"))
        except (BloomError, *FAULTS) as error:
            logger.error(
                "The start URLs of this worker stay leased until another worker requeues them: %s", describe(error)
            )


class LeasedStartUrls:
    """Mixin: lease start URLs instead of popping them."""

    server: Any
    redis_key: Any
    _start_url_feed: StartUrlFeed | None = None
    _has_connected = False
    _runtime: ClassVar[Runtime] = RUNTIME

    @engine.reports_at_exit()
    def setup_redis(self, crawler: Crawler | None = None) -> None:
        """Connect as scrapy-redis does, and lease start URLs.

        Args:
            crawler: the spider's crawler; None if the spider has it already.

        Raises:
            ConfigError: the key of the start URLs is invalid.
            ValueError: the spider has no crawler yet.
            UnavailableError: the client connects eagerly, and Redis was unreachable for BLOOMFILTER_RETRY_TIMEOUT s.
        """
        if self.server is None:
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
            self._has_connected = True
            mine.signals.connect(self._warn_of_popping, signals.spider_opened)

    def lease_start_urls(self, scheduler: Any) -> None:
        """Lease start URLs from now on, unless the spider connects by itself; `BloomScheduler` calls this as it opens.

        Args:
            scheduler: the scheduler that queues their requests.

        Raises:
            ConfigError: the spider pops start URLs by methods of its own, which are not called.
        """
        if not self._has_connected:
            return
        if not self.leases_start_urls:
            server = type(self.server)
            self._require_stock("fetch_data", RedisMixin.pop_list_queue, RedisMixin.pop_priority_queue, server.spop)
            self._require_stock("count_size", server.llen, server.zcard, server.scard)
        self._start_url_feed = StartUrlFeed(self, scheduler, self._runtime)

    @property
    def leases_start_urls(self) -> bool:
        """True once `BloomScheduler` is open, unless the spider connects by itself."""
        return self._start_url_feed is not None

    def _require_stock(self, name: str, *stock: object) -> None:
        """Refuse a method that is not one of scrapy-redis's, and that leases would replace."""
        method = getattr(self, name)
        if getattr(method, "__func__", method) not in stock:
            raise ConfigError(
                f"{type(self).__module__}.{type(self).__qualname__}.{name} is "
                f"{getattr(method, '__qualname__', method)}, which BloomScheduler never calls, since it leases start "
                "URLs; override next_requests or make_request_from_data instead, or use scrapy-redis's SCHEDULER"
            )

    def _warn_of_popping(self) -> None:
        if not self.leases_start_urls:
            logger.warning(
                "SCHEDULER = %r: a killed worker loses the start URLs that it has just taken; set "
                "'scrapy_bloom.BloomScheduler', which keeps them in Redis until their requests are queued",
                self.settings["SCHEDULER"],  # type: ignore[attr-defined]  # Scrapy's
            )

    def spider_idle(self) -> None:
        """Take start URLs, or let the spider close after MAX_IDLE_TIME_BEFORE_CLOSE seconds without any.

        Raises:
            DontCloseSpider: the spider waits, also while Redis is unreachable or other workers hold start URLs.
        """
        feed = self._start_url_feed
        if feed is not None:
            feed.is_unsure = False
        super().spider_idle()  # type: ignore[misc]  # scrapy-redis's
        if feed is not None and (feed.is_unsure or feed.others_hold):
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


def warn_of_popped_start_urls(spider: Spider) -> None:
    """Warn of a spider that pops start URLs instead of leasing them: scrapy-redis's, or one with its own way."""
    kind, name = type(spider), spider.name
    if not issubclass(kind, RedisMixin):
        return
    if not issubclass(kind, LeasedStartUrls):
        logger.warning(
            "The spider %r is scrapy-redis's RedisSpider or RedisCrawlSpider: a killed worker loses the start URLs "
            "that it has just taken. Import the class of the same name from scrapy_bloom, which leases them",
            name,
        )
    elif not spider.leases_start_urls:  # type: ignore[attr-defined]  # ours
        logger.warning(
            "setup_redis of the spider %r does not call super().setup_redis(crawler): a killed worker loses the start "
            "URLs that it has just taken. Call it, so that they are leased",
            name,
        )
    elif bypasses_fetch_data(kind):
        logger.warning(
            "next_requests of the spider %r does not call fetch_data: a killed worker loses the start URLs that it has "
            "just taken. Iterate over self.fetch_data(self.redis_key, self.redis_batch_size), which leases them",
            name,
        )


def bypasses_fetch_data(kind: Any) -> bool:
    """Return whether a spider's class has its own `next_requests`, and no method that calls `fetch_data`."""
    if kind.next_requests is RedisMixin.next_requests:
        return False
    own = takewhile(lambda base: not base.__module__.startswith(("scrapy_bloom.", "scrapy_redis.")), kind.__mro__)
    methods = [each for base in own for each in vars(base).values() if isinstance(each, FunctionType)]
    calls_parent = "next_requests" in kind.next_requests.__code__.co_names
    return not calls_parent and not any("fetch_data" in method.__code__.co_names for method in methods)
