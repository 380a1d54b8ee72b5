"""The Bloom filter: formulas, layers and steps. No input or output of its own, no Scrapy."""

from scrapy_bloom.filter.bloom_filter import BloomFilter, MemoryBloomFilter
from scrapy_bloom.filter.describe import FilterInfo, LayerInfo

__all__ = ["BloomFilter", "FilterInfo", "LayerInfo", "MemoryBloomFilter"]
