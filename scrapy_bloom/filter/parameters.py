"""What all processes of a filter agree on: its parameters, and the bytes of an item from which its bits are taken.

The hash of an item covers the filter's secret. Without a secret anybody could compute a few URLs whose bits cover those
of another page, offline and once for every filter. Source: Gerbet, Kumar and Lauradoux, "The Power of Evil Choices in
Bloom Filters", 2015. MurmurHash3 has collisions for every seed, and so for every secret, which anybody can compute
as well. Source: Aumasson, Bernstein and Bosslet, "Hash-flooding DoS reloaded", 2012. Hence it hashes fingerprints only:
those of Scrapy and scrapy-redis are SHA-1 already, and of any other item the SHA-1 takes its place.
"""

import json
import math
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha1
from typing import Any, Self

from mmh3 import mmh3_x64_128_digest

from scrapy_bloom import settings
from scrapy_bloom.errors import START_ANEW, ConfigError, MismatchError
from scrapy_bloom.filter import sizing
from scrapy_bloom.text import as_number

# What to do about a key that holds other data.
OTHER_KEY = "use another key (SCHEDULER_DUPEFILTER_KEY)"
FORMAT = 1
SCHEME = "mmh3-x64-128 partitioned"
# The fingerprint schemes whose items are SHA-1 already.
_DIGESTS = ("scrapy-redis", "scrapy.utils.request.RequestFingerprinter")
# The bit of a byte, by its highest three bits.
_BITS = bytes(1 << (byte >> 5) for byte in range(256))


@dataclass(frozen=True)
class FilterParameters:
    """The parameters that all processes of a filter share. Invalid values are refused.

    Attributes:
        capacity: items of the whole crawl, or of one `ttl`.
        error_rate: share of new items that may be reported as seen over the whole filter, between 0 and 1.
        expansion: growth factor of the layers' capacities; 0: the filter never grows.
        ttl: minimum seconds for which an item is remembered; None: forever.
        fingerprint: name of the items' fingerprint scheme.
        hash: name of the hash scheme.
    """

    capacity: int = settings.CAPACITY.default
    error_rate: float = settings.ERROR_RATE.default
    expansion: int = settings.EXPANSION.default
    ttl: float | None = settings.TTL.default
    fingerprint: str = "bytes"
    hash: str = field(default=SCHEME, init=False)

    def __post_init__(self) -> None:
        for option in settings.OF_FILTER:
            object.__setattr__(self, option.name, option.read(getattr(self, option.name)))

    @classmethod
    def of(cls, config: settings.BloomSettings, fingerprint: str = "bytes") -> Self:
        """Return the parameters of a crawl's filter.

        Raises:
            ConfigError: such a filter would be too large.
        """
        given = cls(config.capacity, config.error_rate, config.expansion, config.ttl, fingerprint)
        return given.require_size(config.partitions)

    @classmethod
    def of_text(cls, key: str, text: str) -> Self:
        """Return the parameters that the filter at `key` stores.

        Raises:
            MismatchError: the filter has a newer format, or another hash scheme.
        """
        stored = json.loads(text)
        parameters = cls(**{each.name: stored[each.name] for each in fields(cls) if each.init and each.name in stored})
        parameters.verify(key, text)
        return parameters

    @property
    def noun(self) -> str:
        """What the filter holds: requests, or items of a pipeline or of a program."""
        return "item" if self.fingerprint.startswith(("bytes", settings.ITEM_KEY)) else "request"

    @property
    def other_key(self) -> str:
        """What to do if the key of the filter holds other data."""
        is_of_pipeline = self.fingerprint.startswith(settings.ITEM_KEY)
        return "UniqueItemsPipeline has no other key: rename that one, or the spider" if is_of_pipeline else OTHER_KEY

    def arguments(self) -> dict[str, Any]:
        """Return the parameters as arguments of `BloomFilter`."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def hasher(self, secret: bytes) -> Callable[[bytes], bytes]:
        """Return the function from an item to its 69 bytes in the filter with this secret, see `block.lua`."""
        is_digest = self.fingerprint in _DIGESTS

        def bytes_of(item: bytes) -> bytes:
            keyed = secret + (item if is_digest else sha1(item, usedforsecurity=False).digest())
            hashed = mmh3_x64_128_digest(keyed, 0) + mmh3_x64_128_digest(keyed, 1) + mmh3_x64_128_digest(keyed, 2)
            places = hashed[5:37]
            return hashed[:5] + places + places.translate(_BITS)

        return bytes_of

    def of_partition(self, count: int) -> Self:
        """Return the parameters of one of `count` partitions, which has its share of the items, by their hash.

        The share is a binomial variable; four standard deviations are added to its mean.
        """
        share = self.capacity / count
        return self if count == 1 else replace(self, capacity=math.ceil(share + 4 * math.sqrt(share)))

    def require_size(self, partitions: int = 1) -> Self:
        """Return these parameters, if a partition's filter is not too large.

        Raises:
            ConfigError: it is.
        """
        part = self.of_partition(partitions)
        # The minimum of any filter; a blocked one takes up to a half more, and its exact size a tenth of a second.
        needed = part.capacity * -math.log2(self.error_rate) / math.log(2) / 8
        if sizing.MAX_LAYER_BYTES / 2 < needed <= sizing.MAX_LAYER_BYTES:
            needed = part.sizes()[0].blocks * sizing.BLOCK_BYTES
        if needed > sizing.MAX_LAYER_BYTES:
            raise ConfigError(
                f"{settings.CAPACITY.label} = {self.capacity!r}: with {settings.ERROR_RATE.label} = "
                f"{as_number(self.error_rate)} such a filter would take {needed / 1e9:,.0f} GB; the limit is "
                f"{sizing.MAX_LAYER_BYTES / 1e9:.0f} GB. Set the expected number of different requests, a larger "
                "error rate, or more partitions (BLOOMFILTER_PARTITIONS)"
            )
        return self

    def sizes(self) -> list[sizing.LayerSize]:
        """Return the sizes of the layers; this takes up to a tenth of a second."""
        return sizing.sizes(self.capacity, self.error_rate, self.expansion, self.ttl)

    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        """Return a new filter for a script that may create it; without `sizes`, which take long, it creates none.

        These are the parameters, a new id and secret, the TTL in ms, and the sizes of the layers.
        """
        text = "".join("{} {} {} {};".format(*size) for size in self.sizes()) if sizes else ""
        return self.to_json(), secrets.token_hex(8), secrets.token_bytes(16), round((self.ttl or 0) * 1000), text

    def to_json(self) -> str:
        """Return the text that a filter stores."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    def verify(self, key: str, text: str) -> None:
        """Compare with the text that the filter at `key` stores.

        Raises:
            MismatchError: the stored filter has other parameters, or a newer format.
        """
        stored = json.loads(text)
        if stored.get("format", 0) > FORMAT:
            raise MismatchError(
                f"the filter at {key!r} has format {stored['format']}, and this scrapy-bloom knows formats up to "
                f"{FORMAT}: upgrade scrapy-bloom here, or use another key"
            )
        differences = [
            f"{name} = {mine!r} here, {stored.get(name)!r} in the stored filter"
            for name, mine in asdict(self).items()
            if stored.get(name) != mine
        ]
        if differences:
            action = f"use another key, or {START_ANEW}"
            if self.fingerprint.startswith(settings.ITEM_KEY):
                action = f"or start over by `scrapy bloom clear --key {key} --yes`"
            raise MismatchError(
                f"the filter at {key!r} was made with other parameters: {'; '.join(differences)}. Use the stored "
                f"values, {action}"
            )
