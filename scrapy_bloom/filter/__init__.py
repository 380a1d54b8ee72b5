"""The Bloom filter, in Redis and in memory: sizes, scripts, repeated calls; without Scrapy."""
