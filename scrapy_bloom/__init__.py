"""A Bloom filter in Redis as the dupefilter of a distributed Scrapy crawl."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    "unique_items": ("UniqueItemsPipeline",),
}

if TYPE_CHECKING:  # the public names again, as type checkers read them
    from scrapy_bloom.addon import Addon as Addon
    from scrapy_bloom.dupefilter import BloomRFPDupeFilter as BloomRFPDupeFilter
    from scrapy_bloom.errors import BloomError as BloomError
    from scrapy_bloom.errors import ConfigError as ConfigError
    from scrapy_bloom.errors import MismatchError as MismatchError
    from scrapy_bloom.errors import RefusedError as RefusedError
    from scrapy_bloom.errors import UnavailableError as UnavailableError
    from scrapy_bloom.errors import WrongTypeError as WrongTypeError
    from scrapy_bloom.filter.bloom_filter import BloomFilter as BloomFilter
    from scrapy_bloom.filter.info import FilterInfo as FilterInfo
    from scrapy_bloom.filter.info import LayerInfo as LayerInfo
    from scrapy_bloom.pipelines import RedisPipeline as RedisPipeline
    from scrapy_bloom.scheduler import BloomScheduler as BloomScheduler
    from scrapy_bloom.spiders import RedisCrawlSpider as RedisCrawlSpider
    from scrapy_bloom.spiders import RedisSpider as RedisSpider
    from scrapy_bloom.transport.connect import FromSentinel as FromSentinel
    from scrapy_bloom.unique_items import UniqueItemsPipeline as UniqueItemsPipeline
else:  # a type checker would accept any name
    __all__ = [name for names in _MODULES.values() for name in names]

    def __getattr__(name: str) -> Any:
        """Import the module of a public name at the first use of the name.

        So the filter works without Scrapy, and the `scrapy` command, which loads this package, stays fast.
        """
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
