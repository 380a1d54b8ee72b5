"""Spiders for `scrapy runspider`, each in its own file."""
