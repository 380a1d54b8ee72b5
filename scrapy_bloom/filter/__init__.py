"""The Bloom filter, in Redis and in memory: sizes, scripts, repeated calls; without Scrapy."""

from scrapy_bloom.filter.bloom_filter import BloomFilter
from scrapy_bloom.filter.describe import FilterInfo, LayerInfo
from scrapy_bloom.filter.memory import MemoryBloomFilter

__all__ = ["BloomFilter", "FilterInfo", "LayerInfo", "MemoryBloomFilter"]
