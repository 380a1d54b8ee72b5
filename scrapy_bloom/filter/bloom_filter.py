"""The public Bloom filters: in Redis, and in memory. They know nothing of Scrapy."""

from typing import ClassVar, Self

from scrapy_bloom import options
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom.errors import FILTER_SERVER_NAMES, SETTING_NAMES, Names
from scrapy_bloom.filter.base_filter import BaseBloomFilter, key_as_text
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.placement import Placement
from scrapy_bloom.storage.operation import Store
from scrapy_bloom.storage.stores import MemoryStore, RedisStore, RetryingStore
from scrapy_bloom.transport.client import Client, require_usable
from scrapy_bloom.transport.retry import disable_client_retries


class BloomFilter(BaseBloomFilter):
    """A Bloom filter in Redis, shared by all processes that open the same key.

    Opening stores its parameters, which must be the same everywhere; the first addition allocates
    its bits. Use it in one thread.

    Args:
        server: a `redis.Redis` or `redis.RedisCluster`.
        key: the name of the filter's key, and the beginning of the others' names.
        capacity: items for which it is sized, at least 1. With a `ttl`, the items of one `ttl`.
        error_rate: share of new items that may be reported as seen, from 1e-15 to below 1. It holds
            for the whole filter, also after growth.
        expansion: growth factor of the layers, 1 for equal layers. With 0 the filter never grows,
            and exceeds its error rate beyond its capacity.
        ttl: minimum seconds for which an item is remembered; the maximum is 1.25 times as long.
            None: for ever.
        fingerprint: name of the items' fingerprint scheme. It is stored, and compared like the
            other parameters.
        cache_size: items in the process's cache, 0 for none.
        shard_bytes: maximum bytes of a shard that this process creates, from 1,048,576 to
            33,554,432. None: 4,194,304 on a cluster, and 33,554,432 on a server.
        retry_timeout: seconds to wait for an unreachable server, 0 not to wait.
        flush: delete the key, of any type, first.

    Raises:
        ConfigError: an argument is invalid.
        MismatchError: the stored filter has other parameters, or a newer format.
        WrongTypeError: the key holds foreign data.
        UnavailableError: the server was unreachable for `retry_timeout` seconds.
        RefusedError: the server refuses a command; retrying cannot help.

    Warning:
        It disables redis-py's retries on the client, since it must know about lost replies. Pass a dedicated client.

    Example:
        >>> bloom = BloomFilter(client, "pages", capacity=1_000_000, error_rate=1e-6)
        >>> bloom.add("https://example.com/"), bloom.add("https://example.com/")
        (True, False)
        >>> bloom.clear()
    """

    _runtime: ClassVar[Runtime] = RUNTIME

    def __init__(
        self,
        server: Client,
        key: str | bytes,
        *,
        capacity: int = options.CAPACITY.default,
        error_rate: float = options.ERROR_RATE.default,
        expansion: int = options.EXPANSION.default,
        ttl: float | None = None,
        fingerprint: str = "bytes",
        cache_size: int = options.CACHE_SIZE.default,
        shard_bytes: int | None = options.SHARD_BYTES.default,
        retry_timeout: float = options.RETRY_TIMEOUT.default,
        flush: bool = False,
    ) -> None:
        parameters = FilterParameters(capacity, error_rate, expansion, ttl, fingerprint)
        self._retrying = RetryingStore(
            self._store_over(disable_client_retries(require_usable(server, self._names))),
            options.RETRY_TIMEOUT.read("retry_timeout", retry_timeout),
            self._names,
            self._runtime,
        )
        key = key_as_text(key)
        super().__init__(
            self._retrying,
            key,
            parameters,
            placement=Placement.on(server, key, options.SHARD_BYTES.read("shard_bytes", shard_bytes)),
            cache_size=cache_size,
            flush=flush,
            monotonic=self._runtime.monotonic,
            randbelow=self._runtime.randbelow,
        )

    @classmethod
    def with_parameters(
        cls,
        server: Client,
        key: str | bytes,
        parameters: FilterParameters,
        *,
        cache_size: int = options.CACHE_SIZE.default,
        shard_bytes: int | None = options.SHARD_BYTES.default,
        retry_timeout: float = options.RETRY_TIMEOUT.default,
        flush: bool = False,
    ) -> Self:
        """Open a filter with another filter's parameters.

        Args:
            server: as for `BloomFilter`.
            key: as for `BloomFilter`.
            parameters: the attribute `parameters` of another filter.
            cache_size: as for `BloomFilter`.
            shard_bytes: as for `BloomFilter`.
            retry_timeout: as for `BloomFilter`.
            flush: as for `BloomFilter`.

        Returns:
            The filter at the key.

        Raises:
            ConfigError: an argument is invalid.
            MismatchError: the stored filter has other parameters, or a newer format.
            WrongTypeError: the key holds foreign data.
            UnavailableError: the server was unreachable for `retry_timeout` seconds.
            RefusedError: the server refuses a command; retrying cannot help.

        Example:
            >>> pages = BloomFilter(client, "pages", capacity=5000)
            >>> images = BloomFilter.with_parameters(client, "images", pages.parameters)
            >>> images.parameters == pages.parameters
            True
            >>> images.clear(), pages.clear()
            (None, None)
        """
        return cls(
            server,
            key,
            **parameters.arguments(),
            cache_size=cache_size,
            shard_bytes=shard_bytes,
            retry_timeout=retry_timeout,
            flush=flush,
        )

    def _store_over(self, client: Client) -> Store:
        return RedisStore(client)

    @property
    def retry_timeout(self) -> float:
        """Seconds to wait for an unreachable server; 0 raises UnavailableError at once.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> bloom.retry_timeout = 5.0
            >>> bloom.retry_timeout
            5.0
            >>> bloom.clear()
        """
        return self._retrying.timeout

    @retry_timeout.setter
    def retry_timeout(self, seconds: float) -> None:
        self._retrying.timeout = seconds

    def _return_credit(self, keep: int) -> None:
        timeout, self.retry_timeout = self.retry_timeout, 0.0
        try:
            super()._return_credit(keep)
        finally:
            self.retry_timeout = timeout


class CrawlFilter(BloomFilter):
    """The filter of a crawl: its errors name settings, such as BLOOMFILTER_CAPACITY."""

    _names: Names = SETTING_NAMES


class SeparateFilter(CrawlFilter):
    """The filter of a crawl on a server of its own: its errors name BLOOMFILTER_REDIS_URL."""

    _names = FILTER_SERVER_NAMES


class MemoryBloomFilter(BaseBloomFilter):
    """A Bloom filter in this process's memory.

    Args:
        capacity: as for `BloomFilter`.
        error_rate: as for `BloomFilter`.
        expansion: as for `BloomFilter`.
        ttl: as for `BloomFilter`.
        fingerprint: as for `BloomFilter`.
        cache_size: as for `BloomFilter`.

    Raises:
        ConfigError: an argument is invalid.

    Example:
        >>> bloom = MemoryBloomFilter(capacity=1000)
        >>> bloom.add("https://example.com/")
        True
        >>> "https://example.com/" in bloom
        True
    """

    def __init__(
        self,
        *,
        capacity: int = options.CAPACITY.default,
        error_rate: float = options.ERROR_RATE.default,
        expansion: int = options.EXPANSION.default,
        ttl: float | None = None,
        fingerprint: str = "bytes",
        cache_size: int = options.CACHE_SIZE.default,
    ) -> None:
        parameters = FilterParameters(capacity, error_rate, expansion, ttl, fingerprint)
        super().__init__(MemoryStore(), "memory", parameters, cache_size=cache_size)
