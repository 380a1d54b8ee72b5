"""Spiders for `scrapy runspider`, each in a file of its own."""
