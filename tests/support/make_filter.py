"""The type of the fixture that makes filters."""

from collections.abc import Callable

from scrapy_bloom.filter.base_filter import BaseBloomFilter

MakeFilter = Callable[..., BaseBloomFilter]
