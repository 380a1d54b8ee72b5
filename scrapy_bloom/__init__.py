"""A Bloom filter in Redis as the dupefilter of a distributed Scrapy crawl."""

import re
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
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
    from scrapy_bloom.filter.describe import FilterInfo, LayerInfo
    from scrapy_bloom.filter.memory import MemoryBloomFilter
    from scrapy_bloom.pipelines import RedisPipeline
    from scrapy_bloom.scheduler import BloomScheduler
    from scrapy_bloom.spiders import RedisCrawlSpider, RedisSpider
    from scrapy_bloom.transport.urls import FromSentinel

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
    "MemoryBloomFilter",
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
    "filter.describe": ("FilterInfo", "LayerInfo"),
    "filter.memory": ("MemoryBloomFilter",),
    "pipelines": ("RedisPipeline",),
    "scheduler": ("BloomScheduler",),
    "spiders": ("RedisCrawlSpider", "RedisSpider"),
    "transport.urls": ("FromSentinel",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


@cache
def _require_redis() -> None:
    """Refuse a redis-py that is too old: pip installs it, with a mere warning, for a package that asks for it."""
    with suppress(metadata.PackageNotFoundError):  # a checkout on Python's path
        found = metadata.version("redis")
        (required,) = (each for each in metadata.requires("scrapy-bloom") or () if re.match(r"redis\b", each))
        least = required.rpartition(">=")[2]
        if _numbers(found) < _numbers(least):
            raise ImportError(
                f"redis {found} is installed, but scrapy-bloom needs {least} or newer: run `pip check` to see which "
                f"package asks for the old one, and pip install 'redis>={least}'"
            )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)][:3]


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import the module of a public name at the first use of the name.

        So the filters work without Scrapy, and the `scrapy` command, which loads this package, stays fast.
        """
        if name in _MODULE_OF:
            _require_redis()
            return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
