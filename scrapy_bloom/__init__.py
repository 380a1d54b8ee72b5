"""A Bloom filter in Redis as the dupefilter of a distributed Scrapy crawl."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_bloom.addon import Addon
    from scrapy_bloom.dupefilter import BloomRFPDupeFilter
    from scrapy_bloom.errors import (
        BloomError,
        ConfigError,
        MismatchError,
        RefusedError,
        UnavailableError,
        WrongTypeError,
    )
    from scrapy_bloom.filter.bloom_filter import BloomFilter
    from scrapy_bloom.filter.info import FilterInfo, LayerInfo
    from scrapy_bloom.pipelines import RedisPipeline
    from scrapy_bloom.scheduler import BloomScheduler
    from scrapy_bloom.spiders import RedisCrawlSpider, RedisSpider
    from scrapy_bloom.transport.connect import FromSentinel

__all__ = [
    "Addon",
    "BloomError",
    "BloomFilter",
    "BloomRFPDupeFilter",
    "BloomScheduler",
    "ConfigError",
    "FilterInfo",
    "FromSentinel",
    "LayerInfo",
    "MismatchError",
    "RedisCrawlSpider",
    "RedisPipeline",
    "RedisSpider",
    "RefusedError",
    "UnavailableError",
    "WrongTypeError",
]


_MODULES = {
    "addon": ("Addon",),
    "dupefilter": ("BloomRFPDupeFilter",),
    "errors": ("BloomError", "ConfigError", "MismatchError", "RefusedError", "UnavailableError", "WrongTypeError"),
    "filter.bloom_filter": ("BloomFilter",),
    "filter.info": ("FilterInfo", "LayerInfo"),
    "pipelines": ("RedisPipeline",),
    "scheduler": ("BloomScheduler",),
    "spiders": ("RedisCrawlSpider", "RedisSpider"),
    "transport.connect": ("FromSentinel",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import the module of a public name at the first use of the name.

        So the filter works without Scrapy, and the `scrapy` command, which loads this package, stays fast.
        """
        if name in _MODULE_OF:
            return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
