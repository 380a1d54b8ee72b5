"""Item pipelines whose items wait for Redis; a page is acknowledged when its items are stored."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy_redis import defaults, pipelines
from twisted.internet.defer import Deferred

from scrapy_bloom import engine
from scrapy_bloom.command import reports_at_exit
from scrapy_bloom.errors import BloomError, ConfigError, RefusedError
from scrapy_bloom.queue.keys import key_of
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.settings import BloomSettings, load_component, path_of
from scrapy_bloom.transport.connect import connect, disconnect, require_usable
from scrapy_bloom.transport.failures import UNKNOWN, advice_for, describe
from scrapy_bloom.transport.retry import (
    LAST_TRY_SECONDS,
    CircuitBreaker,
    RedisUnreachableError,
    disable_client_retries,
    retry_until,
)

# Items that one RPUSH stores at most: a lost reply stores so many twice.
_BATCH = 100
# Seconds until items are sent again while Redis is unreachable.
_PAUSE_SECONDS = 0.6
_GIVEN_UP = (
    "The crawl ends while an item waits for Redis or for an equal item, and this item is not stored. BloomScheduler "
    "keeps its page in the queue, and the next crawl fetches the page; other schedulers do not"
)

T = TypeVar("T")


class _Stored(Deferred[Any]):
    """The result of an item: a Deferred that a coroutine can await under each reactor."""

    def __await__(self) -> Any:
        future = maybe_deferred_to_future(self)
        return super().__await__() if future is self else future.__await__()


class _Waiting(NamedTuple):
    item: Any
    spider: Spider
    value: bytes | None
    stored: _Stored


class WaitingPipeline:
    """The calls of an item pipeline, which wait while Redis is unreachable, without blocking the reactor.

    Attributes:
        hold_pages: called before the end of a crawl whose items cannot be processed, so that `BloomScheduler`, which
            sets it, keeps their pages.
    """

    _runtime: ClassVar[Runtime] = RUNTIME
    hold_pages: Callable[[], object] = staticmethod(lambda: None)
    _silent_since: float | None = None
    _has_ended = False

    @cached_property
    def _breaker(self) -> CircuitBreaker:
        return CircuitBreaker(self._runtime, "the item pipeline")

    async def _attempt(self, crawler: Crawler, work: Callable[[], T]) -> T:
        """Return the result of `work`, which another thread calls. One call is made at a time.

        Raises:
            RedisUnreachableError: Redis was unreachable, and a pause is over: try again.
            BloomError: Redis was unreachable until the end of the crawl, or has refused a command.
        """
        begin = self._runtime.monotonic()
        try:
            result = await self._runtime.in_thread(partial(self._breaker.call, work))
        except RedisUnreachableError:
            self._silent_since = begin if self._silent_since is None else self._silent_since
            self._require_time(crawler, self._silent_since)
            await self._runtime.pause(_PAUSE_SECONDS)
            raise
        self._silent_since = None
        return result

    def _require_time(self, crawler: Crawler, since: float) -> None:
        """Give the item up if the crawl is ending, and the wait that began at `since` has lasted too long."""
        if engine.is_closing(crawler) and self._runtime.monotonic() - since > LAST_TRY_SECONDS:
            self.hold_pages()
            raise BloomError(_GIVEN_UP) from None

    def _end(self, crawler: Crawler, error: Exception) -> None:
        """End the crawl, once."""
        self.hold_pages()
        if not self._has_ended:
            self._has_ended = True
            engine.end_crawl(crawler, error, self._runtime)


class RedisPipeline(WaitingPipeline, pipelines.RedisPipeline):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's RedisPipeline, with items that wait while Redis is unreachable.

    Scrapy keeps a page in progress until its items are stored, so `BloomScheduler` acknowledges the page after them. An
    item whose reply was lost is stored again: at least once. If Redis refuses the items, the crawl ends.

    REDIS_ITEMS_KEY, REDIS_ITEMS_SERIALIZER and the hooks are scrapy-redis's. `item_key` and `serialize` are called in
    the reactor's thread. An overridden `_process_item` is called in another thread, for one item at a time, and again
    after an outage.

    Attributes:
        hold_pages: called before the end of a crawl whose items cannot be stored, so that `BloomScheduler`, which sets
            it, keeps their pages.

    Args:
        server: a Redis client.
        key: the key of the items' list: `%(spider)s` is the spider's name, and `%(x)s` its attribute `x`.
        serialize_func: returns an item as text or bytes.

    Raises:
        ConfigError: `server` is no Redis client.

    Example:
        In a project's `settings.py`:

        >>> ITEM_PIPELINES = {"scrapy_bloom.RedisPipeline": 300}
        >>> REDIS_URL = "redis://localhost:6379"
    """

    _crawler: Crawler | None = None

    def __init__(
        self, server: Any, key: str = defaults.PIPELINE_KEY, serialize_func: Any = pipelines.default_serialize
    ) -> None:
        super().__init__(disable_client_retries(require_usable(server)), key, serialize_func)
        self._has_own_process = self._process_item != super()._process_item
        self._limit = self._size = 1 if self._has_own_process else _BATCH
        self._waiting: dict[Any, list[_Waiting]] = {}  # by key
        self._is_storing = False

    @classmethod
    @reports_at_exit()
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the pipeline, as Scrapy does.

        Args:
            crawler: the crawl.

        Returns:
            The pipeline, which closes its connections when the spider closes.

        Raises:
            ConfigError: a setting is invalid.
            UnavailableError: the client connects eagerly, and Redis was unreachable for BLOOMFILTER_RETRY_TIMEOUT s.
        """
        self: Self = super().from_crawler(crawler)
        self._crawler = crawler
        if crawler.spider is not None and cls.item_key is RedisPipeline.item_key:
            self.item_key(None, crawler.spider)
        crawler.signals.connect(self._disconnect, signals.spider_closed)
        return self

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Connect, with the timeouts of this package.

        Args:
            settings: the crawl's settings.

        Returns:
            The pipeline.

        Raises:
            ConfigError: a setting is invalid.
            UnavailableError: the client connects eagerly, and Redis was unreachable for BLOOMFILTER_RETRY_TIMEOUT s.
        """
        timeout = BloomSettings.from_settings(settings).retry_timeout
        options = {"server": retry_until(lambda: connect(settings), timeout, runtime=cls._runtime)}
        if key := settings.get("REDIS_ITEMS_KEY"):
            options["key"] = key
        if path := settings.get("REDIS_ITEMS_SERIALIZER"):
            options["serialize_func"] = load_component("REDIS_ITEMS_SERIALIZER", path, "json.dumps")
        return cls(**options)

    def item_key(self, item: Any, spider: Spider) -> str:  # noqa: ARG002  # for subclasses
        """Return the key of the list for an item.

        Args:
            item: the item.
            spider: the crawl's spider.

        Returns:
            The key that REDIS_ITEMS_KEY names, with attributes of the spider in it.

        Raises:
            ConfigError: the spider lacks an attribute.
        """
        return key_of("REDIS_ITEMS_KEY", self.key, spider)

    def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        """Store an item; wait while Redis is unreachable, without blocking the reactor.

        Args:
            item: the item.
            spider: the crawl's spider; Scrapy before 2.14 passes it.

        Returns:
            An awaitable of the item, or of the result of an overridden `_process_item`. An overridden `process_item`
            gets a Deferred, to which it can add callbacks, as from scrapy-redis.

        Raises:
            BloomError: when awaited: Redis has refused the item, or was unreachable when the crawl ended.
            ConfigError: when awaited: `from_crawler` is overridden, and the spider is unknown.
        """
        is_own = type(self).process_item is RedisPipeline.process_item
        return self._result(item, spider) if is_own else self._stored(item, spider)  # Scrapy warns of a Deferred

    async def _result(self, item: Any, spider: Spider | None) -> Any:
        return await self._stored(item, spider)

    def _stored(self, item: Any, spider: Spider | None) -> _Stored:
        stored = _Stored()
        try:
            self._add(item, spider, stored)
        except Exception as error:
            stored.errback(error)
        return stored

    def _add(self, item: Any, spider: Spider | None, stored: _Stored) -> None:
        if spider is None and self._crawler is not None:
            spider = self._crawler.spider
        if spider is None:
            name = path_of(type(self))
            raise ConfigError(f"{name}.from_crawler: knows no spider; return super().from_crawler(crawler) in it")
        key = value = None
        if not self._has_own_process:
            # Encoded here, so that a value of a wrong type fails alone.
            key, value = self.item_key(item, spider), self.server.get_encoder().encode(self.serialize(item))
        self._waiting.setdefault(key, []).append(_Waiting(item, spider, value, stored))
        if not self._is_storing:
            self._is_storing = True
            deferred_from_coro(self._store_all())

    async def _store_all(self) -> None:
        """Store the waiting items, one batch after another: no more than one thread is busy."""
        try:
            while self._waiting:
                key = next(iter(self._waiting))
                waiting = self._waiting.pop(key)
                batch = waiting[: self._size]
                if len(waiting) > len(batch):
                    self._waiting[key] = waiting[len(batch) :]
                await self._store(key, batch)
        finally:
            self._is_storing = False

    async def _store(self, key: Any, batch: list[_Waiting]) -> None:
        crawler = batch[0].spider.crawler
        try:
            results = await self._attempt(crawler, partial(self._send, key, batch))
        except RedisUnreachableError:
            # A smaller batch, in case the link is slow.
            self._size = max(1, self._size // 2)
            self._waiting[key] = batch + self._waiting.get(key, [])
        except RefusedError as error:
            self._refuse(crawler, key, batch, error)
        except Exception as error:  # also of an overridden `_process_item`
            _fail(batch, error)
        else:
            self._size = min(self._size + 1, self._limit)
            for each, result in zip(batch, results, strict=True):
                each.stored.callback(result)

    def _send(self, key: Any, batch: list[_Waiting]) -> list[Any]:
        if self._has_own_process:
            return [self._process_item(each.item, each.spider) for each in batch]
        self.server.rpush(key, *(each.value for each in batch))
        return [each.item for each in batch]

    def _refuse(self, crawler: Crawler, key: Any, batch: list[_Waiting], error: RefusedError) -> None:
        """End the crawl, unless the error may be that of one item."""
        cause: Any = error.__context__
        if advice_for(cause) == UNKNOWN:
            _fail(batch, cause)
            return
        where = f"{type(self).__qualname__}._process_item" if self._has_own_process else f"REDIS_ITEMS_KEY = {key!r}"
        refusal = RefusedError(
            f"{where}: Redis refused an item ({describe(cause)}). Use a key that is absent or a list, permit RPUSH on "
            "it, and give the server memory; the next crawl fetches the pages of the items that are not stored"
        )
        self._end(crawler, refusal)
        _fail(batch, refusal)

    def _disconnect(self) -> None:
        disconnect(self.server)


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for each in batch:
        each.stored.errback(error)
