"""Feed a spider's start URLs from Redis to its requests, leased instead of popped.

Users may bring their own scheduler: any with `when_queued`, `ask_redis` and the attributes of `BloomScheduler` works.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from itertools import takewhile
from types import FunctionType
from typing import Any, TypeVar

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy_redis import defaults
from scrapy_redis.spiders import RedisMixin

from scrapy_bloom._format import plural
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom._scrapy import engine
from scrapy_bloom.errors import BloomError
from scrapy_bloom.start_urls.leases import StartUrl, StartUrls
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import RedisUnreachableError

logger = logging.getLogger(__name__)

# Seconds between two looks for start URLs that are done.
_TICK_SECONDS = 0.25
# Buried start URLs that are logged with a traceback.
_MAX_TRACEBACKS = 3

T = TypeVar("T")


def warn_of_popped_start_urls(spider: Spider) -> None:
    """Warn of a spider that pops start URLs instead of leasing them: scrapy-redis's, or one with its own way."""
    if not isinstance(spider, RedisMixin):
        return
    if not isinstance(getattr(spider, "_start_url_feed", None), StartUrlFeed):
        logger.warning(
            "The spider %r is scrapy-redis's RedisSpider or RedisCrawlSpider: a killed worker loses the start URLs "
            "that it has just taken. Import the class of the same name from scrapy_bloom, which leases them",
            spider.name,
        )
    elif bypasses_fetch_data(type(spider)):
        logger.warning(
            "next_requests of the spider %r does not call fetch_data: a killed worker loses the start URLs that it has "
            "just taken. Iterate over self.fetch_data(self.redis_key, self.redis_batch_size), which leases them",
            spider.name,
        )


def bypasses_fetch_data(kind: Any) -> bool:
    """Return whether a spider's class has its own `next_requests`, and no method that calls `fetch_data`."""
    if kind.next_requests is RedisMixin.next_requests:
        return False
    own = takewhile(lambda base: not base.__module__.startswith(("scrapy_bloom.", "scrapy_redis.")), kind.__mro__)
    methods = [each for base in own for each in vars(base).values() if isinstance(each, FunctionType)]
    calls_parent = "next_requests" in kind.next_requests.__code__.co_names
    return not calls_parent and not any("fetch_data" in method.__code__.co_names for method in methods)


class StartUrlFeed:
    """The start URLs of one spider: leased, delivered, then acknowledged, buried or released.

    It replaces `fetch_data` and `count_size` of the spider, and guards `make_request_from_data`.

    Attributes:
        is_unsure: True if Redis was unreachable, so that there may be further start URLs.
    """

    def __init__(self, spider: Any, crawler: Crawler, runtime: Runtime = RUNTIME) -> None:
        self.is_unsure = False
        self._runtime = runtime
        self._spider = spider
        self._crawler = crawler
        self._scheduler: Any = None
        self._has_warned = False
        self._urls: dict[str, StartUrls] = {}
        self._current: tuple[StartUrls, StartUrl] | None = None
        self._buried = 0
        self._ticker = engine.Ticker(_TICK_SECONDS, self._sync, runtime)
        self._pop, self._count_stock = spider.fetch_data, spider.count_size
        spider.fetch_data, spider.count_size = self.fetch, self.count
        spider.make_request_from_data = self._guarded(spider.make_request_from_data)
        crawler.signals.connect(self._release, signals.spider_closed)

    @property
    def others_hold(self) -> bool:
        """True if other live workers hold start URLs, which return if those workers die."""
        return any(urls.others_hold for urls in self._urls.values())

    def fetch(self, key: str, want: int) -> Iterable[Any]:
        """Return up to `want` start URLs; asking for the next one, or for the end, finishes the one before."""
        if not self._can_lease():
            return self._pop(key, want)  # type: ignore[no-any-return]
        urls = self._urls_at(key)
        if not urls.ready:
            self._ask(lambda: self._lease(urls, want), None)
        return self._deliver(urls)

    def count(self, key: str) -> int:
        """Return the number of start URLs, 0 while Redis is unreachable."""
        if not self._can_lease():
            return self._count_stock(key)  # type: ignore[no-any-return]
        return self._ask(self._urls_at(key).sync, 0)

    def _can_lease(self) -> bool:
        """Return whether the scheduler reports queued requests."""
        if self._scheduler is None:
            scheduler = engine.scheduler_of(self._crawler)
            if hasattr(scheduler, "when_queued"):
                self._scheduler = scheduler
                self._ticker.start()
            elif not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "SCHEDULER = %r: a killed worker loses the start URLs that it has just taken; set "
                    "'scrapy_bloom.BloomScheduler', which keeps them in Redis until their requests are queued",
                    self._crawler.settings["SCHEDULER"],
                )
        return self._scheduler is not None

    def _urls_at(self, key: str) -> StartUrls:
        if key not in self._urls:
            scheduler, settings, kind = self._scheduler, self._crawler.settings, "list"
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
