"""The Bloom filter that a program uses: over Redis, or in this process; it knows nothing of Scrapy."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from scrapy_bloom import options, protocol, sampling
from scrapy_bloom.cache import Recent
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.info import FilterInfo, LayerInfo
from scrapy_bloom.layers import Layers
from scrapy_bloom.line import Client
from scrapy_bloom.metadata import NO_IDENTITY, Layer, Plan
from scrapy_bloom.ops import Op
from scrapy_bloom.patience import PatientStore, without_resending
from scrapy_bloom.sizing import count_of_fill, error_rate_of_fill
from scrapy_bloom.store import MemoryStore, RedisStore, Store
from scrapy_bloom.stored import Steps

T = TypeVar("T")
Item = str | bytes

# A filter that is quite full calls nearly everything seen; what it missed cannot be told from what it took then.
_LARGEST_ERROR_RATE = 0.999


class Filter:
    """A Bloom filter over a store; `BloomFilter` and `MemoryBloomFilter` are the ones to use.

    It is for one thread. Opening it stores its parameters, and the first addition makes room for its bits. Raises
    MismatchError where the stored filter was made with other parameters, WrongTypeError where its key holds something
    else, and what the store's client raises.
    """

    def __init__(
        self,
        store: Store,
        key: str | bytes,
        plan: Plan,
        *,
        cache_size: int = options.DEFAULT_CACHE_SIZE,
        flush: bool = False,
        key_of: "Filter | None" = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.key = _key_as_text(key)
        self.plan = plan
        self._store = store
        self._doubtful: set[bytes] = set()
        self._cache: Recent[bytes, bool] = Recent(options.cache_size("cache_size", cache_size))
        if key_of is not None and not isinstance(key_of, Filter):
            raise ConfigError(f"key_of = {key_of!r}: must be another filter, whose key this one takes")
        hash_key = None if key_of is None else key_of._hash_key()
        self._layers = Layers(self.key, plan, self._cache.clear, monotonic, hash_key)
        self.counters = self._layers.counters
        if flush:
            self.clear()
        self._run(self._layers.verify())

    @property
    def is_open(self) -> bool:
        """Whether this process uses a filter now: not before the first addition, nor after `clear` until the next."""
        return bool(self._layers.all)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"

    def add(self, item: Item) -> bool:
        """Add an item; True: it was new."""
        if self.knows(item):
            return False
        if self._layers.is_due:
            self._run(self._layers.age())
        unknown = [_as_item(item)]
        try:
            return bool(self._add(unknown))
        except BaseException:
            self._unsettle(unknown)
            raise

    def knows(self, item: Item) -> bool:
        """Whether this process knows without asking that an item is in the filter."""
        if self._cache.get(item.encode() if isinstance(item, str) else item) and not self._layers.is_due:
            self.counters.cache_hits += 1
            return True
        return False

    def doubt(self, items: Iterable[Item]) -> None:
        """Take it that these may be in the filter by an attempt of which the end is not known: then they are new."""
        self._doubtful.update(_as_item(item) for item in items)

    def add_many(self, items: Sequence[Item], first: Sequence[Op] = ()) -> list[bool]:
        """Add items in one batch; True for each that was new, which a repeat within the batch is not.

        The `first` operations are carried out before the filter's own, in the same round trip.
        """
        if self._layers.is_due:
            self._run(self._layers.age())
        batch = [_as_item(item) for item in items]
        unknown = {item: None for item in batch if not self._cache.get(item)}
        self.counters.cache_hits += len(batch) - len(unknown)
        try:
            new = self._add(list(unknown), first)
            answers = []
            for item in batch:
                answers.append(item in new)
                new.discard(item)
        except BaseException:
            self._unsettle(unknown)
            raise
        return answers

    def __contains__(self, item: Item) -> bool:
        return self.contains_many([item])[0]

    def contains_many(self, items: Sequence[Item]) -> list[bool]:
        """Whether each item is in the filter, in one batch; nothing is added."""
        if self._layers.is_due:
            self._run(self._layers.age())
        batch = [_as_item(item) for item in items]
        unknown = list(dict.fromkeys(item for item in batch if not self._cache.get(item)))
        present = self._run(protocol.contains(self._layers, unknown)) if unknown else set()
        for item in present:
            self._cache.put(item, True)
        absent = set(unknown) - present
        return [item not in absent for item in batch]

    def info(self) -> FilterInfo:
        """How large and how full the filter is, counted over 64 KB of each shard.

        Of a filter to which nothing was added yet, it is what the first addition will make.
        """
        by_layer = self._run(self._info())
        bits = sum(layer.bits for layer in by_layer)
        return FilterInfo(
            capacity=self.plan.capacity,
            error_rate=self.plan.error_rate,
            layers=len(by_layer),
            shards=sum(layer.shards for layer in by_layer),
            bits=bits,
            hashes=by_layer[-1].hashes,
            memory_bytes=sum(layer.memory_bytes for layer in by_layer),
            fill_ratio=sum(layer.fill_ratio * layer.bits for layer in by_layer) / bits,
            estimated_count=sum(layer.estimated_count for layer in by_layer),
            estimated_error_rate=sum(layer.estimated_error_rate for layer in by_layer),
            by_layer=by_layer,
        )

    def clear(self) -> None:
        """Delete the filter from the store; the next addition begins another one."""
        self._run(self._layers.clear())

    def close(self) -> None:
        """Give back the room that this worker reserved and did not use; the filter can be used on."""
        self._give_back(keep=0)

    def rest(self) -> None:
        """Do as `close` where nothing was reserved in the last seconds: for a worker that has nothing to do."""
        if self._layers.credits.is_idle:
            self._give_back(keep=0)

    def _add(self, unknown: list[bytes], first: Sequence[Op] = ()) -> set[bytes]:
        if not unknown:
            return set()
        if self._layers.credits.is_idle:
            self._give_back(keep=len(unknown))
        new = self._run(protocol.add(self._layers, unknown, self._doubtful), first)
        self._doubtful.difference_update(unknown)
        for item in unknown:
            self._cache.put(item, True)
        self.counters.added += len(new)
        # Each addition stands for 1 / (1 - p) new items, of which p / (1 - p) were called seen.
        error_rate = min(self._layers.error_rate, _LARGEST_ERROR_RATE)
        self.counters.expected_false_positives += len(new) * error_rate / (1 - error_rate)
        return new

    def _unsettle(self, items: Iterable[bytes]) -> None:
        """Take back what was made of items, since nobody was told: the server may have marked them.

        Whatever ended the addition, a KeyboardInterrupt too, and wherever it was.
        """
        self.doubt(items)
        if any(self._cache.get(item) for item in items):
            self._cache.clear()

    def _give_back(self, keep: int) -> None:
        """Return credit, once: an attempt that fails is not made again, and the room stays unused."""
        with contextlib.suppress(BloomError):
            self._run(self._layers.give_back(keep))

    def _hash_key(self) -> int:
        return self._run(self._layers.hash_key())

    def _info(self) -> Steps[tuple[LayerInfo, ...]]:
        yield from self._layers.age()
        if not self._layers.all:
            return (_describe(self.plan.first_layer(self.key, NO_IDENTITY, 0, 0.0), 0.0),)
        described = []
        for layer in self._layers.all:
            taken = sampling.samples(layer)
            described.append(_describe(layer, sampling.fill(taken, (yield taken))))
        return tuple(described)

    def _run(self, steps: Steps[T], first: Sequence[Op] = ()) -> T:
        """Carry out steps over the store, `first` with the first of them."""
        said = None
        while True:
            try:
                ops = steps.send(said)  # type: ignore[arg-type]  # the first thing sent to a generator is None
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # T, which StopIteration does not know
            said = self._store.execute([*first, *ops] if first else ops)
            del said[: len(first)]
            first = ()
            self.counters.round_trips += 1


class BloomFilter(Filter):
    """A Bloom filter in Redis at `key`, shared by every process that opens it with the same parameters.

    Opening it stores its parameters; the first addition makes room for its bits.

    `server` is a `redis.Redis` or `redis.RedisCluster`, best one of the filter's own: its resending of commands is
    turned off, since a lost reply must be known. The filter itself waits up to `retry_timeout` seconds for a server
    that is away, and then raises UnavailableError. `capacity` (at least 1) items keep `error_rate` (between 0
    and 1); beyond, a filter with an `expansion` of 1 or more grows by layers and keeps it still, one with 0 does not.
    With a `ttl` in seconds an item is forgotten between 1 and 1.25 times that after it was added. `fingerprint` names
    where the items come from, and is stored and compared like the rest. `cache_size` repeats are remembered in the
    process. `flush` deletes whatever is at the key first. Where an item's bits are depends on a key that each filter
    draws for itself, unless it is made with that of another filter, `key_of`: the two can then be merged. Raises
    ConfigError for a value that is not allowed; for what else see `Filter`.
    """

    def __init__(
        self,
        server: Client,
        key: str | bytes,
        *,
        capacity: int = options.DEFAULT_CAPACITY,
        error_rate: float = options.DEFAULT_ERROR_RATE,
        expansion: int = options.DEFAULT_EXPANSION,
        ttl: float | None = None,
        fingerprint: str = "bytes",
        cache_size: int = options.DEFAULT_CACHE_SIZE,
        retry_timeout: float = options.DEFAULT_RETRY_TIMEOUT,
        flush: bool = False,
        key_of: Filter | None = None,
    ) -> None:
        plan = Plan(capacity, error_rate, expansion, ttl, fingerprint)
        self._patient = PatientStore(
            RedisStore(without_resending(server)), options.retry_timeout("retry_timeout", retry_timeout)
        )
        super().__init__(self._patient, key, plan, cache_size=cache_size, flush=flush, key_of=key_of)

    @property
    def retry_timeout(self) -> float:
        """Seconds that are waited for a server that is away; 0: UnavailableError is raised at once."""
        return self._patient.timeout

    @retry_timeout.setter
    def retry_timeout(self, seconds: float) -> None:
        self._patient.timeout = seconds

    def _give_back(self, keep: int) -> None:
        timeout, self.retry_timeout = self.retry_timeout, 0.0
        try:
            super()._give_back(keep)
        finally:
            self.retry_timeout = timeout


class MemoryBloomFilter(Filter):
    """The same filter in this process's memory; the parameters are those of `BloomFilter`."""

    def __init__(
        self,
        *,
        capacity: int = options.DEFAULT_CAPACITY,
        error_rate: float = options.DEFAULT_ERROR_RATE,
        expansion: int = options.DEFAULT_EXPANSION,
        ttl: float | None = None,
        fingerprint: str = "bytes",
        cache_size: int = options.DEFAULT_CACHE_SIZE,
        key_of: Filter | None = None,
    ) -> None:
        plan = Plan(capacity, error_rate, expansion, ttl, fingerprint)
        super().__init__(MemoryStore(), "memory", plan, cache_size=cache_size, key_of=key_of)


def _as_item(item: Item) -> bytes:
    """The bytes of an item, checked before anything is sent."""
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return item
    raise TypeError(f"{type(item).__name__} {item!r}: an item must be str or bytes")


def _key_as_text(key: str | bytes) -> str:
    """A key's name; given as bytes it is the same key."""
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return key.decode()
    raise ConfigError(f"key = {key!r}: must be text, or its UTF-8; set the name of the key where the filter is")


def _describe(layer: Layer, fill: float) -> LayerInfo:
    size = layer.size
    return LayerInfo(
        capacity=layer.capacity,
        error_rate=layer.error_rate,
        shards=size.shards,
        bits=size.bits,
        hashes=size.hashes,
        memory_bytes=size.memory_bytes,
        fill_ratio=fill,
        estimated_count=count_of_fill(fill, size),
        estimated_error_rate=error_rate_of_fill(fill, size.hashes),
        created=layer.created,
    )
