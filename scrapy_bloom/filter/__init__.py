"""The Bloom filter: formulas, layers and steps, without I/O or Scrapy."""

from scrapy_bloom.filter.bloom_filter import BloomFilter, MemoryBloomFilter
from scrapy_bloom.filter.describe import FilterInfo, LayerInfo

__all__ = ["BloomFilter", "FilterInfo", "LayerInfo", "MemoryBloomFilter"]
