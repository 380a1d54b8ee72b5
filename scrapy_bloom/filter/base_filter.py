"""The Bloom filter over any store: runs the steps, and caches seen items."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from scrapy_bloom import options
from scrapy_bloom._cache import TwoGenerationCache
from scrapy_bloom.errors import ARGUMENT_NAMES, BloomError, ConfigError, Names
from scrapy_bloom.filter import forgetting, membership
from scrapy_bloom.filter.describe import Counters, FilterInfo, describe
from scrapy_bloom.filter.events import Events, LoggedEvents
from scrapy_bloom.filter.layer_stack import LayerStack
from scrapy_bloom.filter.opening import Opening
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.pending_batch import PendingBatch
from scrapy_bloom.filter.placement import PLAIN, Placement
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.operation import Operations, Results, Steps, Store
from scrapy_bloom.storage.stores import run_steps

T = TypeVar("T")
Item = str | bytes

# An overfull filter calls nearly every item seen: beyond this rate the estimate is meaningless.
_MAX_ERROR_RATE = 0.999


class BaseBloomFilter:
    """A Bloom filter over a store, for one thread.

    Use `BloomFilter` or `MemoryBloomFilter`. `events` report the life of the filter, `monotonic`
    gives seconds that never go back, and `randbelow` draws the identity of a new filter. Subclasses
    that fill an unfinished filter set `_fills`.
    """

    _fills = False
    _names: Names = ARGUMENT_NAMES

    def __init__(
        self,
        store: Store,
        key: str | bytes,
        parameters: FilterParameters,
        *,
        cache_size: int = options.CACHE_SIZE.default,
        flush: bool = False,
        events: Events | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        randbelow: Callable[[int], int] = secrets.randbelow,
        placement: Placement = PLAIN,
    ) -> None:
        self.key = key_as_text(key)
        self.parameters = parameters
        self.counters = Counters()
        self._store = store
        self._ambiguous: set[bytes] = set()
        self._contact = 0
        self._forgets = 0
        cache_size = options.CACHE_SIZE.read("cache_size", cache_size)
        self._cache: TwoGenerationCache[bytes, bool] = TwoGenerationCache(cache_size)
        self._stack = LayerStack(self.key, parameters, monotonic, placement)
        opening = Opening(
            self._stack,
            events or LoggedEvents(self._names, monotonic),
            self.forget_cached,
            fills=self._fills,
            names=self._names,
            randbelow=randbelow,
        )
        self._protocol = FilterProtocol(opening)
        if not isinstance(flush, bool):
            raise ConfigError(f"flush = {flush!r}: must be True or False; True deletes the key first")
        if flush:
            self.clear()
        self._run(self._protocol.opening.verify())

    @property
    def is_open(self) -> bool:
        """Whether this process uses the filter, from an addition until `clear`.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> bloom.is_open, bloom.add("a"), bloom.is_open
            (False, True, True)
        """
        return bool(self._stack.layers)

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
            BloomError: the store failed. The item does not count as seen.

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
        if self._cache.get(_as_item(item)) and not self._stack.needs_rotation:
            self.counters.cache_hits += 1
            return True
        return False

    def mark_ambiguous(self, items: Iterable[Item]) -> None:
        """Mark items as ambiguous: an interrupted call may have added them.

        The next addition reports them as new even if their bits are set, since the bits may be our
        own. The cache forgets them.

        Args:
            items: bytes or texts.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several.
            ConfigError: an item cannot be encoded in UTF-8.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.mark_ambiguous(["a"])
            >>> bloom.add("a"), bloom.add("a")
            (True, False)
        """
        marked = set(_as_items(items))
        self._ambiguous |= marked
        if any(self._cache.get(item) for item in marked):
            self.forget_cached()

    def is_ambiguous(self, item: Item) -> bool:
        """Return whether the next addition reports an item as new even if its bits are set.

        Args:
            item: bytes, or text, which is encoded in UTF-8.

        Returns:
            True if an interrupted call may have added the item, and no later call has reported it.

        Raises:
            TypeError: the item is neither bytes nor text.
            ConfigError: the text cannot be encoded in UTF-8.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> bloom.mark_ambiguous(["a"])
            >>> bloom.is_ambiguous("a"), bloom.is_ambiguous("b")
            (True, False)
        """
        return _as_item(item) in self._ambiguous

    def add_many(self, items: Sequence[Item]) -> list[bool]:
        """Add items in one batch, in as few round trips as possible.

        Args:
            items: bytes or texts. Of equal items only the first can be new.

        Returns:
            For each item the result of `add`.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several;
                nothing is added.
            ConfigError: an item cannot be encoded in UTF-8; nothing is added.
            BloomError: the store failed. Items that the call may have added are ambiguous.

        Example:
            >>> MemoryBloomFilter().add_many(["a", "b", "a"])
            [True, True, False]
        """
        if self._stack.needs_rotation:
            self._run(self._protocol.lifecycle.rotate(adds=True))
        batch = _as_items(items)
        forgets = self._forgets
        asked = {item: None for item in batch if not self._cache.get(item)}
        parts: list[PendingBatch] = []
        try:
            new = self._add(list(asked), parts)
            if self._forgets != forgets:
                cached = [item for item in dict.fromkeys(batch) if item not in asked]
                asked.update(dict.fromkeys(cached))
                new |= self._add(cached, parts)
            results = []
            for item in batch:
                results.append(item in new)
                new.discard(item)
            self.counters.cache_hits += len(batch) - len(asked)
            # Inside the `try`: even an interrupt on this line leaves the caller without a result.
            return results
        except BaseException as error:
            # The server may have marked items, but the caller got no result.
            outcomes = error.outcomes if isinstance(error, BloomError) else None
            self.mark_ambiguous(item for part in parts for item in part.in_doubt(outcomes))
            raise

    def __contains__(self, item: Item) -> bool:
        return self.contains_many([item])[0]

    def contains_many(self, items: Sequence[Item]) -> list[bool]:
        """Look items up in one batch, without adding them.

        Args:
            items: bytes or texts.

        Returns:
            For each item whether it is in the filter. An absent item is reported as present with a
            probability of at most the filter's error rate.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several.
            ConfigError: an item cannot be encoded in UTF-8.
            BloomError: the store failed.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.contains_many(["a", "b"])
            [True, False]
        """
        if self._stack.needs_rotation:
            self._run(self._protocol.lifecycle.rotate(adds=False))
        batch = _as_items(items)
        forgets = self._forgets
        asked = {item: None for item in batch if not self._cache.get(item)}
        absent = self._absent(list(asked))
        if self._forgets != forgets:
            absent |= self._absent([item for item in dict.fromkeys(batch) if item not in asked])
        return [item not in absent for item in batch]

    def forget(self, item: Item) -> bool:
        """Forget an item: the next addition reports it as new, to one process of all.

        Other processes learn of it at their next round trip; until then, their caches may still call it seen. The bits
        stay, and a set beside the filter holds the item until then: about 160 bytes of Redis's memory.

        Args:
            item: bytes, or text, which is encoded in UTF-8.

        Returns:
            True if the item was in the filter and is forgotten now, False if it was not in.

        Raises:
            TypeError: the item is neither bytes nor text.
            ConfigError: the text cannot be encoded in UTF-8.
            BloomError: the store failed. The item may be forgotten; a further call does no harm.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.forget("a"), bloom.forget("b")
            (True, False)
            >>> bloom.add("a"), bloom.add("a")
            (True, False)
        """
        return self.forget_many([item])[0]

    def forget_many(self, items: Sequence[Item]) -> list[bool]:
        """Forget items in one batch, in as few round trips as possible.

        Each call empties the caches of all processes: forget items together if there are several.

        Args:
            items: bytes or texts.

        Returns:
            For each item the result of `forget`.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several.
            ConfigError: an item cannot be encoded in UTF-8.
            BloomError: the store failed. Some items may be forgotten; a further call does no harm.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add_many(["a", "b"])
            >>> bloom.forget_many(["a", "c"]), bloom.contains_many(["a", "b"])
            ([True, False], [False, True])
        """
        batch = _as_items(items)
        forgotten = self._run(forgetting.forget(self._protocol, list(dict.fromkeys(batch)))) if batch else set()
        self.forget_cached()
        return [item in forgotten for item in batch]

    def info(self) -> FilterInfo:
        """Estimate the size and the fill of the filter from 64 KB of each shard.

        Returns:
            Its sizes and estimates. For an empty filter, the sizes that the first addition will
            allocate.

        Raises:
            BloomError: the store failed.

        Example:
            >>> bloom = MemoryBloomFilter(capacity=1000)
            >>> _ = bloom.add_many(["a", "b", "c"])
            >>> bloom.info().estimated_count
            3
        """
        return self._run(describe(self._protocol))

    def clear(self) -> None:
        """Delete the filter from the store; the next addition creates another one.

        Raises:
            BloomError: the store failed.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.clear()
            >>> "a" in bloom
            False
        """
        self._run(self._protocol.lifecycle.clear())

    def add_reference(self, name: str) -> None:
        """Add a reference: `remove_reference` keeps the filter while any is left.

        If another process replaces the filter, or restores its hash, this object adds its
        references again when it opens the filter.

        Args:
            name: the user of the filter, such as a crawl's queue. Adding it twice changes nothing.

        Raises:
            BloomError: the store failed.

        Example:
            >>> MemoryBloomFilter().add_reference("shop:requests")
        """
        self._run(self._protocol.lifecycle.add_reference(name))

    def remove_reference(self, name: str) -> bool:
        """Remove a reference; delete the filter when none is left.

        Args:
            name: the name of the reference. Removing an unknown name is not an error.

        Returns:
            True if the filter was deleted; the next addition begins another one.

        Raises:
            BloomError: the store failed.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> bloom.add_reference("shop:requests")
            >>> bloom.add_reference("news:requests")
            >>> bloom.remove_reference("shop:requests"), bloom.remove_reference("news:requests")
            (False, True)
        """
        return self._run(self._protocol.lifecycle.remove_reference(name))

    def close(self) -> None:
        """Return unused credit. The filter remains usable.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.close()
            >>> bloom.add("b")
            True
        """
        self._return_credit(keep=0)
        self._protocol.events.on_close()

    def release_idle_credit(self) -> None:
        """Return unused credit if none was granted in the last five seconds.

        Call it when the process is idle.

        Example:
            >>> MemoryBloomFilter().release_idle_credit()
        """
        if self._stack.credits.is_idle:
            self._return_credit(keep=0)

    def forget_cached(self) -> None:
        """Clear the cache: the next lookup of each item asks the store.

        Use it after other processes may have replaced the filter.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> _ = bloom.add("a")
            >>> bloom.forget_cached()
            >>> bloom.is_cached("a"), "a" in bloom
            (False, True)
        """
        self._forgets += 1
        self._cache.clear()

    @property
    def is_stale(self) -> bool:
        """True if the store has not answered for some seconds, so that the cache may have missed a forgotten item.

        Example:
            >>> bloom = MemoryBloomFilter()
            >>> bloom.add("a"), bloom.is_stale
            (True, False)
        """
        return self._stack.is_stale

    def refresh_cache(self) -> None:
        """Clear the cache if an item was forgotten meanwhile, which takes a round trip.

        Call it now and then if the filter `is_stale`: the cache may answer everything.

        Raises:
            BloomError: the store failed.

        Example:
            >>> MemoryBloomFilter().refresh_cache()
        """
        # Any item will do: its shards have the marks.
        self._run(membership.contains(self._protocol, [b""]))
        self._stack.note_contact()

    def _absent(self, unknown: list[bytes]) -> set[bytes]:
        """Return the items that the filter lacks, from distinct ones; cache the others."""
        if not unknown:
            return set()
        forgets = self._forgets
        present = self._run(membership.contains(self._protocol, unknown))
        self._remember(present, forgets)
        return set(unknown) - present

    def _add(self, unknown: list[bytes], parts: list[PendingBatch]) -> set[bytes]:
        """Add distinct items, as one of the `parts` of a call; cache them, and return the new ones."""
        if not unknown:
            return set()
        forgets = self._forgets
        if self._stack.credits.is_idle:
            self._return_credit(keep=len(unknown))
        batch = PendingBatch(unknown, self._ambiguous, self._stack.identity)
        parts.append(batch)
        new = self._run(membership.add(self._protocol, batch))
        self._ambiguous.difference_update(unknown)
        self._remember(unknown, forgets)
        self.counters.ambiguous += batch.taken_for_new
        self.counters.added += len(new)
        # Each addition stands for 1 / (1 - p) new items, of which p / (1 - p) were called seen.
        error_rate = min(self._stack.error_rate, _MAX_ERROR_RATE)
        self.counters.expected_false_positives += len(new) * error_rate / (1 - error_rate)
        return set(new)

    def _remember(self, present: Iterable[bytes], forgets: int) -> None:
        """Cache items, unless the cache was cleared since `forgets` was read.

        Some of the replies may be older than the clearing.
        """
        if self._forgets == forgets:
            for item in present:
                self._cache.put(item, True)

    def _return_credit(self, keep: int) -> None:
        """Return credit in a single attempt: after a failure the room stays unused."""
        with contextlib.suppress(BloomError):
            self._run(self._protocol.return_credit(keep))

    def _run(self, steps: Steps[T]) -> T:
        return run_steps(steps, self._execute)

    def _execute(self, operations: Operations) -> Results:
        results = self._store.execute(operations)
        self.counters.round_trips += 1
        if results.contact != self._contact:
            self._contact = results.contact
            self.forget_cached()
        return results


def _as_items(items: Iterable[Item]) -> list[bytes]:
    """Return the bytes of items; all are checked before anything is sent."""
    if isinstance(items, (str, bytes)):
        raise TypeError(
            f"items = {items!r}: must be a list of items, or another iterable; use add or `in` for one item"
        )
    return [_as_item(item) for item in items]


def _as_item(item: Item) -> bytes:
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
