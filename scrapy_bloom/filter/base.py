"""The common part of the filters in Redis and in memory: items, answers and the cache of repeats."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

from scrapy_bloom import options
from scrapy_bloom._cache import TwoGenerationCache
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.describe import Counters, FilterInfo
from scrapy_bloom.filter.parameters import FilterParameters

Item = str | bytes

# A script of so many new items blocks the server for some 5 ms.
_BATCH = 500


class BaseBloomFilter(ABC):
    """A Bloom filter, for one thread. Use `BloomFilter` or `MemoryBloomFilter`."""

    _runtime: ClassVar[Runtime] = RUNTIME

    def __init__(self, key: str, parameters: FilterParameters, cache_size: int) -> None:
        self.key = key
        self.parameters = parameters
        self.counters = Counters()
        self._cache: TwoGenerationCache[bytes, bool] = TwoGenerationCache(options.CACHE_SIZE.read(cache_size))
        self._clearings = 0  # of the cache
        self._cache_until = math.inf  # the end of the oldest layer, by the process's clock
        # New items that the filter has, but of which the caller has got no result, perhaps of an interrupted call.
        self._owed: set[bytes] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"

    def add(self, item: Item) -> bool:
        """Add an item.

        Args:
            item: bytes, or text, which is encoded in UTF-8.

        Returns:
            True if the item is new to every process, False if it was added before. A new item is
            reported as False with a probability of at most the filter's error rate.

        Raises:
            TypeError: the item is neither bytes nor text.
            ConfigError: the text cannot be encoded in UTF-8.
            BloomError: the server failed. The item does not count as seen.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> bloom.add("https://example.com/"), bloom.add("https://example.com/")
            (True, False)
        """
        if self.is_cached(item):
            return False
        return self.add_many([item])[0]

    def is_cached(self, item: Item) -> bool:
        """Return whether the cache knows, without a round trip, that an item was added.

        Args:
            item: bytes, or text, which is encoded in UTF-8.

        Returns:
            True counts as a cache hit. False says nothing about the filter.

        Raises:
            TypeError: the item is neither bytes nor text.
            ConfigError: the text cannot be encoded in UTF-8.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.is_cached("a"), bloom.is_cached("b")
            (True, False)
        """
        encoded = as_item(item)
        if not self._cache.get(encoded) or encoded in self._owed:
            return False
        if self.parameters.ttl and self._runtime.monotonic() >= self._cache_until:
            return False
        self.counters.cache_hits += 1
        return True

    def add_many(self, items: Iterable[Item]) -> list[bool]:
        """Add items in batches of 500, each in one round trip.

        Args:
            items: bytes or texts. Of equal items only the first can be new.

        Returns:
            For each item the result of `add`.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several; nothing is added.
            ConfigError: an item cannot be encoded in UTF-8; nothing is added.
            BloomError: the server failed. No item counts as seen that was new to this call.

        Example:
            >>> MemoryBloomFilter().add_many(["a", "b", "a"])
            [True, True, False]
        """
        batch = as_items(items)
        self._begin()
        clearings, known, owed = self._clearings, self._cache.get, self._owed
        asked = {item: None for item in batch if not known(item)}
        for part in _parts([*asked]):
            self._add(part)
        if self._clearings != clearings:
            # The filter may have lost or forgotten items of the cache.
            cached = dict.fromkeys(item for item in batch if item not in asked)
            asked |= cached
            for part in _parts([*cached]):
                self._add(part)
        new = owed.intersection(batch)
        try:
            results = []
            for item in batch:
                results.append(item in owed)
                owed.discard(item)
            self.counters.added += len(new)
            self.counters.cache_hits += len(batch) - len(asked)
            # Inside the `try`: even an interrupt on this line leaves the caller without a result.
            return results
        except BaseException:
            owed |= new
            raise

    def __contains__(self, item: Item) -> bool:
        return self.contains_many([item])[0]

    def contains_many(self, items: Iterable[Item]) -> list[bool]:
        """Look items up in batches of 500, each in one round trip, without adding them.

        Args:
            items: bytes or texts.

        Returns:
            For each item whether it is in the filter. An absent item is reported as present with a
            probability of at most the filter's error rate.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several.
            ConfigError: an item cannot be encoded in UTF-8.
            BloomError: the server failed.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.contains_many(["a", "b"])
            [True, False]
        """
        batch = as_items(items)
        self._begin()
        return [found for part in _parts(batch) for found in self._look_up(part)]

    def forget(self, item: Item) -> bool:
        """Forget an item: the next addition reports it as new, to one process of all.

        Other processes learn of it at their next round trip; until then, their caches may still call it seen. The bits
        stay, and a field of the filter's hash holds the item until then: about 100 bytes of Redis's memory.

        Args:
            item: bytes, or text, which is encoded in UTF-8.

        Returns:
            True if the item was in the filter and is forgotten now, False if it was not in.

        Raises:
            TypeError: the item is neither bytes nor text.
            ConfigError: the text cannot be encoded in UTF-8.
            BloomError: the server failed. The item may be forgotten; a further call does no harm.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.forget("a"), bloom.forget("b")
            (True, False)
            >>> bloom.add("a"), bloom.add("a")
            (True, False)
        """
        return self.forget_many([item])[0]

    def forget_many(self, items: Iterable[Item]) -> list[bool]:
        """Forget items in batches of 500, each in one round trip.

        Each batch empties the caches of all processes: forget items together if there are several.

        Args:
            items: bytes or texts.

        Returns:
            For each item the result of `forget`.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several.
            ConfigError: an item cannot be encoded in UTF-8.
            BloomError: the server failed. Some items may be forgotten; a further call does no harm.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add_many(["a", "b"])
            >>> bloom.forget_many(["a", "c"]), bloom.contains_many(["a", "b"])
            ([True, False], [False, True])
        """
        batch = as_items(items)
        self._begin()
        forgotten = {item for part in _parts([*dict.fromkeys(batch)]) for item in self._forget(part)}
        self.forget_cached()
        return [item in forgotten for item in batch]

    @abstractmethod
    def info(self) -> FilterInfo:
        """Describe the size and the fill of the filter.

        Returns:
            Its sizes and counts. For an empty filter, the sizes that the first addition will allocate.

        Raises:
            BloomError: the server failed.

        Example:
            >>> bloom = MemoryBloomFilter(capacity=1000)
            >>> _ = bloom.add_many(["a", "b", "c"])
            >>> bloom.info().count
            3
        """

    @abstractmethod
    def clear(self) -> None:
        """Delete the filter; the next addition creates another one.

        Raises:
            BloomError: the server failed.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.clear()
            >>> "a" in bloom
            False
        """

    def forget_cached(self) -> None:
        """Clear the cache: the next lookup of each item asks the filter.

        Use it after other processes may have replaced the filter.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.forget_cached()
            >>> bloom.is_cached("a"), "a" in bloom
            (False, True)
        """
        self._clearings += 1
        self._cache.clear()

    def _begin(self) -> None:
        """Begin a call."""
        if self.parameters.ttl and self._runtime.monotonic() >= self._cache_until:
            self._cache_until = math.inf
            self.forget_cached()

    def _remember(self, items: Iterable[bytes]) -> None:
        for item in items:
            self._cache.put(item, True)

    @abstractmethod
    def _add(self, items: list[bytes]) -> None:
        """Add distinct items, let the new ones be owed, and cache all."""

    @abstractmethod
    def _look_up(self, items: list[bytes]) -> list[bool]:
        """Return for each item whether the filter has it."""

    @abstractmethod
    def _forget(self, items: list[bytes]) -> set[bytes]:
        """Forget distinct items, and return the known ones."""


def _parts(items: list[bytes]) -> Iterator[list[bytes]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))


def as_items(items: Iterable[Item]) -> list[bytes]:
    """Return the bytes of items; all are checked before anything is sent."""
    if isinstance(items, (str, bytes)):
        raise TypeError(
            f"items = {items!r}: must be a list of items, or another iterable; use add or `in` for one item"
        )
    return [as_item(item) for item in items]


def as_item(item: Item) -> bytes:
    """Return the bytes of an item."""
    if isinstance(item, bytes):
        return item
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} {item!r}: an item must be str or bytes")
    try:
        return item.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"str {item!r}: an item must be text that UTF-8 can encode; pass other text as bytes"
        ) from None


def key_as_text(key: str | bytes) -> str:
    """Return a key as text; bytes name the same key."""
    if key and isinstance(key, (str, bytes)):
        with contextlib.suppress(UnicodeError):
            return (key.encode() if isinstance(key, str) else key).decode()
    raise ConfigError(f"key = {key!r}: must be text, or text in UTF-8; pass the name of the filter's key")
