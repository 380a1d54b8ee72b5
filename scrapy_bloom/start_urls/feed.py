"""The way of a spider's start URLs from Redis to its requests, in the place of scrapy-redis's functions for it.

The scheduler is met as what it can do, and not as a class: a user may have one of their own.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any, Protocol, TypeVar

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy_redis import defaults
from scrapy_redis.spiders import RedisMixin

from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom._scrapy import engine
from scrapy_bloom.errors import BloomError
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.start_urls.leases import StartUrl, StartUrls
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import RedisAwayError

logger = logging.getLogger(__name__)

# Seconds after which start URLs whose requests are queued are acknowledged at the latest.
_TICK_SECONDS = 0.25
# Start URLs of which no request could be made whose errors are logged in full.
_TRACEBACKS = 3

T = TypeVar("T")


def warn_of_popped_start_urls(spider: Spider) -> None:
    """Warn of a spider of scrapy-redis, which pops start URLs where this package's leases them."""
    if isinstance(spider, RedisMixin) and not isinstance(getattr(spider, "_start_url_feed", None), StartUrlFeed):
        logger.warning(
            "The spider %r is scrapy-redis's RedisSpider or RedisCrawlSpider: a worker that is killed loses the start "
            "URLs that it has just taken. Import the class of the same name from scrapy_bloom, which leases them",
            spider.name,
        )


class _LeasingScheduler(Protocol):
    """The part of `BloomScheduler` that start URLs need."""

    server: Any

    @property
    def worker_name(self) -> str: ...

    @property
    def queue_keys(self) -> QueueKeys: ...

    def when_queued(self, call: Callable[[], object]) -> None: ...

    def ask_redis(self, work: Callable[[], T]) -> T: ...


class StartUrlFeed:
    """The start URLs of one spider, on their way to its requests.

    `is_unsure` is True if Redis was away, so that nobody knows whether there are more.
    """

    def __init__(self, spider: Any, crawler: Crawler, runtime: Runtime = RUNTIME) -> None:
        self._runtime = runtime
        self.is_unsure = False
        self._spider = spider
        self._crawler = crawler
        self._scheduler: _LeasingScheduler | None = None
        self._has_warned = False
        self._urls: dict[str, StartUrls] = {}
        self._current: tuple[StartUrls, StartUrl] | None = None
        self._unusable = 0
        self._ticker = engine.Ticker(_TICK_SECONDS, self._tick, runtime)
        self._pop, self._count_stock = spider.fetch_data, spider.count_size
        spider.fetch_data, spider.count_size = self.fetch, self.count
        spider.make_request_from_data = self._guarded(spider.make_request_from_data)
        crawler.signals.connect(self._close, signals.spider_closed)

    @property
    def others_hold(self) -> bool:
        """True if other workers have start URLs, which come back if those die."""
        return any(urls.others_hold for urls in self._urls.values())

    def fetch(self, key: str, want: int) -> Iterable[Any]:
        """Return up to `want` start URLs; each that is followed by another one, or by the end, is done with."""
        if not self._can_lease():
            return self._pop(key, want)  # type: ignore[no-any-return]
        urls = self._urls_at(key)
        if not urls.ready:
            self._ask(lambda: self._take(urls, want), None)
        return self._deliver(urls)

    def count(self, key: str) -> int:
        """Return how many start URLs wait; none while Redis is away."""
        if not self._can_lease():
            return self._count_stock(key)  # type: ignore[no-any-return]
        return self._ask(self._urls_at(key).count, 0)

    def _can_lease(self) -> bool:
        """Return whether there is a scheduler that says when requests are queued."""
        if self._scheduler is None:
            scheduler = engine.scheduler_of(self._crawler)
            if hasattr(scheduler, "when_queued"):
                self._scheduler = scheduler
                self._ticker.start()
            elif not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "SCHEDULER = %r: a worker that is killed loses the start URLs that it has just taken; set "
                    "'scrapy_bloom.BloomScheduler', which keeps them in Redis until their requests are queued",
                    self._crawler.settings["SCHEDULER"],
                )
        return self._scheduler is not None

    def _urls_at(self, key: str) -> StartUrls:
        scheduler = self._scheduler
        if key not in self._urls and scheduler is not None:
            kind = _kind_of_start_keys(self._crawler)
            self._urls[key] = StartUrls(scheduler.server, key, kind, scheduler.worker_name, scheduler.queue_keys.queue)
        return self._urls[key]

    def _take(self, urls: StartUrls, want: int) -> None:
        """Lease some start URLs, after those of dead workers are back; of all keys, where there are several."""
        self._settle()
        for key in getattr(self._spider, "_redis_keys", None) or ():
            self._urls_at(key)
        for each in self._urls.values():
            recovered = each.recover()
            if recovered:
                logger.warning("%d start URLs that dead workers held are back in %r", recovered, each.key)
        urls.lease(want)
        if urls.ready:
            self._spider.spider_idle_start_time = int(self._runtime.unix_time())

    def _deliver(self, urls: StartUrls) -> Iterator[Any]:
        """Yield what is ready. When the next one is asked for, the engine has all requests of the one before it.

        Where nobody asks for a next one, the last one stays leased until the spider is closed, and goes back then.
        """
        while urls.ready:
            url = urls.ready.popleft()
            self._current = urls, url
            yield url.data
            if self._current is not None and self._scheduler is not None:
                self._scheduler.when_queued(partial(urls.acknowledge, url))
            self._current = None

    def _guarded(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return make_request_from_data such that a start URL for which it raises does not take others with it."""

        @wraps(make)
        def make_request_from_data(data: Any) -> Any:
            try:
                made = make(data)
            except Exception as error:  # whatever the spider makes of it
                self._bury(data, error)
                return []
            return rest_of(made, data) if isinstance(made, Iterator) else made

        def rest_of(made: Iterator[Request], data: Any) -> Iterator[Request]:
            try:
                yield from made
            except Exception as error:  # the same, of a generator
                self._bury(data, error)

        return make_request_from_data

    def _bury(self, data: Any, error: Exception) -> None:
        """Keep a start URL as a dead letter, or raise the error if it is not leased."""
        if self._current is None or self._current[1].data is not data:
            raise error
        urls, url = self._current
        self._current = None
        urls.bury(url)
        self._unusable += 1
        logger.error(
            "No request can be made of the start URL %.500r, which is kept in %r: %s: %s",
            data,
            urls.keys.dead_letters,
            type(error).__name__,
            error,
            exc_info=error if self._unusable <= _TRACEBACKS else None,
        )

    def _ask(self, work: Callable[[], T], otherwise: T) -> T:
        """Return the result of `work`, or another one while Redis is away."""
        try:
            return work() if self._scheduler is None else self._scheduler.ask_redis(work)
        except RedisAwayError:
            self.is_unsure = True
            return otherwise

    def _settle(self) -> None:
        for urls in self._urls.values():
            if urls.has_notes:
                urls.settle()

    def _tick(self) -> None:
        # What asks Redis nothing would pass for an answer.
        if any(urls.has_notes for urls in self._urls.values()):
            self._ask(self._settle, None)

    def _close(self) -> None:
        """Tell Redis what is done with, and give back the rest: no worker has to wait until this one is found dead."""
        self._ticker.stop()
        try:
            for urls in self._urls.values():
                while urls.has_notes:
                    urls.settle()
                given_back = urls.release()
                if given_back:
                    logger.info("%d start URLs that this worker held are back in %r", given_back, urls.key)
        except (BloomError, *FAULTS) as error:
            logger.error(
                "The start URLs that this worker held stay leased, and the next worker takes them: %s", describe(error)
            )


def _kind_of_start_keys(crawler: Crawler) -> str:
    """Return the type of the keys that scrapy-redis is told to read start URLs from."""
    if crawler.settings.getbool("REDIS_START_URLS_AS_SET", defaults.START_URLS_AS_SET):
        return "set"
    return "zset" if crawler.settings.getbool("REDIS_START_URLS_AS_ZSET", defaults.START_URLS_AS_ZSET) else "list"
