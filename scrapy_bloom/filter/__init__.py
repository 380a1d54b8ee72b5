"""The Bloom filter in Redis: sizes, scripts, repeated calls; without Scrapy."""
