"""The item pipeline that drops repeated items: an item is dropped only if an equal one has passed all pipelines.

An item *claims* its key in Redis, passes the pipelines behind this one, and then adds its key to a Bloom filter. Its
page is in progress until then, so a page whose worker is killed before the addition is fetched again. An item that
meets another one's claim waits for the end of that: either the key is in the filter, or the other item was dropped or
failed, or its worker was killed and the claim has expired. In the last two cases the waiting item claims the key.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import date
from decimal import Decimal
from functools import partial
from hashlib import sha256
from typing import Any, Self

from itemadapter import ItemAdapter
from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import DeferredLock

from scrapy_bloom import engine
from scrapy_bloom.command import reports_at_exit
from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter.bloom_filter import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.pipelines import WaitingPipeline
from scrapy_bloom.report import warn_about_memory
from scrapy_bloom.settings import ITEM_KEY, BloomSettings
from scrapy_bloom.text import LimitedWarnings, get_logger
from scrapy_bloom.transport.connect import connect, disconnect, tagged
from scrapy_bloom.transport.retry import RedisUnreachableError, retry_until
from scrapy_bloom.transport.scripts import Script

_CLAIM = Script("claim")
# Seconds until an item asks again about the claim of an equal one.
_PAUSE_SECONDS = 0.1
# As JSON.
_EMPTY = ("null", "NaN", '""', "[]", "{}")
_WITHOUT_KEY = (
    f"{ITEM_KEY} = %s: an item of the type %s lacks a value there, and passes without deduplication; set fields that "
    "all items have, or the path of a callable, which may return None for such items"
)


class RepeatedItem(DropItem):
    """Raised for an item whose key was seen. Scrapy's stat of dropped items has this name."""


class UniqueItemsPipeline(WaitingPipeline):
    """Item pipeline that drops an item if an equal one has passed all pipelines, in any worker and any run.

    BLOOMFILTER_ITEM_KEY chooses the key of an item. A Bloom filter at `<spider>:items:dupefilter` has the keys, with
    the parameters of the crawl's filter. No crawl deletes it. While Redis is unreachable, items wait.

    Its place in ITEM_PIPELINES is behind pipelines that drop items, and before those that store them.

    Args:
        crawler: the crawl.

    Raises:
        ConfigError: a setting is invalid, or BLOOMFILTER_ITEM_KEY is not set.
        MismatchError: the stored filter has other parameters, or another BLOOMFILTER_ITEM_KEY.
        UnavailableError: Redis was unreachable for BLOOMFILTER_RETRY_TIMEOUT seconds.

    Example:
        In a project's `settings.py`:

        >>> ITEM_PIPELINES = {"scrapy_bloom.UniqueItemsPipeline": 200, "scrapy_bloom.RedisPipeline": 300}
        >>> BLOOMFILTER_ITEM_KEY = "url"
    """

    _pass_on: Callable[[Any], Awaitable[Any]]

    def __init__(self, crawler: Crawler) -> None:
        config = BloomSettings.from_settings(crawler.settings)
        if config.item_key is None:
            raise ConfigError(f"{ITEM_KEY} is not set: UniqueItemsPipeline needs the key of an item; set a field")
        self._crawler, self._chosen, self._lease = crawler, config.item_key, round(config.lease * 1000)
        self._label = str(getattr(self._chosen, "__qualname__", self._chosen))
        self._server = retry_until(lambda: connect(crawler.settings), config.retry_timeout, self._runtime)
        key = f"{(crawler.spider or crawler.spidercls).name}:items:dupefilter"
        parameters = FilterParameters.of(config, f"{ITEM_KEY} = {self._label}")
        warn_about_memory(self._server, key, parameters)
        self._filter = BloomFilter.with_parameters(
            self._server,
            key,
            parameters,
            cache_size=config.cache_size,
            retry_timeout=config.retry_timeout,
        )
        self._filter.retry_timeout = 0.0  # `_call` waits
        self._lock = DeferredLock()
        self._warnings = LimitedWarnings(get_logger(__name__), self._runtime.monotonic)

    @classmethod
    @reports_at_exit()
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the pipeline, as Scrapy does.

        Args:
            crawler: the crawl.

        Returns:
            The pipeline, which closes its connections when the spider closes.

        Raises:
            BloomError: as for the class.
        """
        self = cls(crawler)
        crawler.signals.connect(self._disconnect, signals.spider_closed)
        return self

    @reports_at_exit()
    def open_spider(self, spider: Spider | None = None) -> None:  # noqa: ARG002
        """Take the pipelines behind this one from Scrapy: `process_item` calls them.

        Args:
            spider: the crawl's spider; Scrapy before 2.14 passes it.

        Raises:
            ConfigError: ITEM_PROCESSOR is not derived from Scrapy's, or there are two such pipelines.
        """
        found = [each for each in engine.item_pipelines(self._crawler) if isinstance(each, UniqueItemsPipeline)]
        if len(found) > 1:
            names = " and ".join(type(each).__qualname__ for each in found)
            raise ConfigError(f"ITEM_PIPELINES: {names} would wait for each other's items; remove all but one")
        self._pass_on = engine.take_pipelines_behind(self._crawler, self)

    async def process_item(self, item: Any, spider: Spider | None = None) -> Any:  # noqa: ARG002
        """Drop an item if its key was seen, or have the pipelines behind this one process it and add the key.

        Args:
            item: the item.
            spider: the crawl's spider; Scrapy before 2.14 passes it.

        Returns:
            The item as the last pipeline returns it.

        Raises:
            DropItem: the key was seen, or another pipeline drops the item.
            BloomError: Redis has refused a command, or the crawl ended while the item waited.
        """
        if (key := self._key_of(item)) is None:
            return await self._pass_on(item)
        claimant, name = self._runtime.token_hex(8), f"{tagged(self._filter.key)}:claim:{sha256(key).hexdigest()}"
        claim = partial(_CLAIM.call, self._server, [name])
        await self._wait_for(key, partial(claim, [claimant, self._lease]))
        try:
            passed = await self._pass_on(item)
        except Exception:
            await self._call(partial(claim, [claimant, 0]), is_end=True)
            raise
        await self._call(lambda: self._filter.add(key), is_end=True)
        return passed

    async def _wait_for(self, key: bytes, claim: Callable[[], Any]) -> None:
        """Return once the key is claimed, and not seen."""

        def take() -> bool | None:
            # The claim first: what has passed before it is in the filter.
            is_claimed = claim()
            return key in self._filter or (False if is_claimed else None)

        since = self._runtime.monotonic()
        while (is_seen := self._filter.is_cached(key) or await self._call(take)) is None:
            self._require_time(self._crawler, since)
            await self._runtime.pause(_PAUSE_SECONDS)
        if is_seen:
            raise RepeatedItem(f"the key {key[:200].decode()} was seen", "DEBUG")

    async def _call(self, work: Callable[[], Any], *, is_end: bool = False) -> Any:
        """Return the result of `work`, which calls Redis, one call at a time; wait while Redis is unreachable.

        The end of a claim goes before new ones: a kill until then has a stored item be stored again.
        """
        try:
            while True:
                with suppress(RedisUnreachableError):
                    attempt = self._lock.run(lambda: deferred_from_coro(self._attempt(self._crawler, work)))
                    if is_end and self._lock.waiting:
                        self._lock.waiting.insert(0, self._lock.waiting.pop())
                    return await maybe_deferred_to_future(attempt)
        except (MismatchError, RefusedError, WrongTypeError) as error:
            self._end(self._crawler, error)
            raise

    def _key_of(self, item: Any) -> bytes | None:
        """Return the key of an item as JSON, or None if it has none."""
        chosen = self._chosen
        values = [chosen(item)] if callable(chosen) else [ItemAdapter(item).get(name) for name in chosen]
        texts = [json.dumps(value, sort_keys=True, default=_plain) for value in values]
        if not any(text in _EMPTY for text in texts):
            return f"[{', '.join(texts)}]".encode()
        if not callable(chosen):
            self._warnings.warn(_WITHOUT_KEY, self._label, type(item).__name__)
        return None

    def _disconnect(self) -> None:
        self._warnings.flush()
        with suppress(BloomError):
            self._filter.close()
        disconnect(self._server)


def _plain(value: Any) -> Any:
    """Return a value that has no JSON by one that has."""
    if isinstance(value, (bytes, date, Decimal)):
        return {type(value).__name__: repr(value)}
    raise ConfigError(
        f"{ITEM_KEY}: the key of an item has a {type(value).__name__}, but must be of text, bytes, numbers, dates, "
        "lists and dicts; set the path of a callable that returns such a key"
    )
