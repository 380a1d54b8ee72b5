"""A Bloom filter in Redis as the dupefilter of a distributed Scrapy crawl."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, RefusedError, UnavailableError, WrongTypeError
from scrapy_bloom.filter.bloom_filter import BloomFilter, MemoryBloomFilter
from scrapy_bloom.filter.info import FilterInfo, LayerInfo

if TYPE_CHECKING:
    from scrapy_bloom.addon import Addon
    from scrapy_bloom.dupefilter import BloomRFPDupeFilter
    from scrapy_bloom.scheduler import BloomScheduler
    from scrapy_bloom.spiders import RedisCrawlSpider, RedisSpider

__all__ = [
    "Addon",
    "BloomError",
    "BloomFilter",
    "BloomRFPDupeFilter",
    "BloomScheduler",
    "ConfigError",
    "FilterInfo",
    "LayerInfo",
    "MemoryBloomFilter",
    "MismatchError",
    "RedisCrawlSpider",
    "RedisSpider",
    "RefusedError",
    "UnavailableError",
    "WrongTypeError",
]


_WITH_SCRAPY = {
    "Addon": "scrapy_bloom.addon",
    "BloomRFPDupeFilter": "scrapy_bloom.dupefilter",
    "BloomScheduler": "scrapy_bloom.scheduler",
    "RedisCrawlSpider": "scrapy_bloom.spiders",
    "RedisSpider": "scrapy_bloom.spiders",
}


if not TYPE_CHECKING:  # or a type checker would take any name for one that is here

    def __getattr__(name: str) -> Any:
        """Import what needs Scrapy only when it is asked for: the filters are usable without it."""
        if name in _WITH_SCRAPY:
            return getattr(import_module(_WITH_SCRAPY[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
