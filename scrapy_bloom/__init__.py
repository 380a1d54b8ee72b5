"""A Bloom filter in Redis as the dupefilter of a distributed Scrapy crawl."""

from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import (
    BloomError,
    ConfigError,
    MismatchError,
    RefusedError,
    UnavailableError,
    WrongTypeError,
)
from scrapy_bloom.filter import BloomFilter, MemoryBloomFilter
from scrapy_bloom.info import FilterInfo, LayerInfo

if TYPE_CHECKING:
    from scrapy_bloom.dupefilter import BloomRFPDupeFilter

__all__ = [
    "BloomError",
    "BloomFilter",
    "BloomRFPDupeFilter",
    "ConfigError",
    "FilterInfo",
    "LayerInfo",
    "MemoryBloomFilter",
    "MismatchError",
    "RefusedError",
    "UnavailableError",
    "WrongTypeError",
]


def __getattr__(name: str) -> Any:
    """Import what needs Scrapy only when it is asked for: the filters are usable without it."""
    if name == "BloomRFPDupeFilter":
        from scrapy_bloom.dupefilter import BloomRFPDupeFilter  # noqa: PLC0415  # the reason is above

        return BloomRFPDupeFilter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
