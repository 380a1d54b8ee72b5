"""The Bloom filter in this process's memory."""

from dataclasses import dataclass

from scrapy_bloom import options
from scrapy_bloom.filter import hashing, sizing
from scrapy_bloom.filter.base import BaseBloomFilter
from scrapy_bloom.filter.describe import FilterInfo, describe
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.sizing import BLOCK_BYTES, LayerSize

# In TTLs: a generation takes items for a fifth, and lives for 1.25.
_GENERATION, _LIFE = 1 / sizing.GENERATIONS, 1.25
_MASKS = [1 << (byte % 8) for byte in range(256)]


@dataclass
class _Layer:
    place: int
    size: LayerSize
    created: float
    bits: bytearray
    count: int = 0


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
        parameters = FilterParameters(capacity, error_rate, expansion, ttl, fingerprint).require_size()
        super().__init__("memory", parameters, cache_size)
        self._sizes = self.parameters.sizes()
        self._secret = hashing.new_secret().encode()
        self._layers: list[_Layer] = []
        self._forgotten: set[bytes] = set()

    def info(self) -> FilterInfo:
        """Describe the filter."""
        self._drop_ended()
        began = self._runtime.unix_time() - self._runtime.monotonic() if self.parameters.ttl else 0.0
        layers = [(layer.size, layer.count, began + layer.created) for layer in self._layers]
        return describe(self.parameters, layers or [(self._sizes[0], 0, 0.0)], 0, len(self._forgotten))

    def clear(self) -> None:
        """Empty the filter."""
        self._layers.clear()
        self._forgotten.clear()
        self._owed.clear()
        self.forget_cached()

    def _add(self, items: list[bytes]) -> None:
        self._drop_ended()
        for item in items:
            # Owed before its bits are set, and so in any case.
            self._owed.add(item)
            if not self._is_new(item):
                self._owed.discard(item)
        self._remember(items)
        if self.parameters.ttl and self._layers:
            self._cache_until = self._layers[0].created + _LIFE * self.parameters.ttl

    def _look_up(self, items: list[bytes]) -> list[bool]:
        self._drop_ended()
        return [self._has(item) for item in items]

    def _forget(self, items: list[bytes]) -> set[bytes]:
        found = {item for item, is_in in zip(items, self._look_up(items), strict=True) if is_in}
        self._forgotten |= found
        return found

    def _has(self, item: bytes) -> bool:
        if item in self._forgotten:
            return False
        item = hashing.digest(item, self._secret)
        return any(_holds(layer, item) for layer in self._layers)

    def _is_new(self, item: bytes) -> bool:
        was_forgotten = item in self._forgotten
        self._forgotten.discard(item)
        item = hashing.digest(item, self._secret)
        # A forgotten item is to be remembered for a whole TTL: older layers do not count.
        if any(_holds(layer, item) for layer in ([self._layer_for_new()] if was_forgotten else self._layers)):
            return was_forgotten
        layer = self._layer_for_new()
        layer.count += 1
        for place, mask in _bits(layer, item):
            layer.bits[place] |= mask
        return True

    def _layer_for_new(self) -> _Layer:
        newest = self._layers[-1] if self._layers else None
        now, ttl = self._runtime.monotonic(), self.parameters.ttl
        if newest is None or (ttl and now >= newest.created + _GENERATION * ttl):
            place, created = 0, now if ttl else 0.0
        elif newest.count >= newest.size.room:
            place, created = min(newest.place + 1, len(self._sizes) - 1), newest.created
        else:
            return newest
        size = self._sizes[place]
        self._layers.append(_Layer(place, size, created, bytearray(size.blocks * BLOCK_BYTES)))
        return self._layers[-1]

    def _drop_ended(self) -> None:
        if self.parameters.ttl:
            oldest = self._runtime.monotonic() - _LIFE * self.parameters.ttl
            self._layers = [layer for layer in self._layers if layer.created > oldest]
            if not self._layers:
                self._forgotten.clear()


def _bits(layer: _Layer, item: bytes) -> list[tuple[int, int]]:
    first = (int.from_bytes(item[:6], "big") * layer.size.blocks >> 48) * BLOCK_BYTES
    return [(first + item[i], _MASKS[item[i + 1]]) for i in range(8, 8 + 2 * layer.size.hashes, 2)]


def _holds(layer: _Layer, item: bytes) -> bool:
    return all(layer.bits[place] & mask for place, mask in _bits(layer, item))
