"""Depend on internals of Scrapy and scrapy-redis, and on differences between their versions."""
