"""An ordinary Scrapy project whose crawls share a queue and a filter in Redis, and a demo of it."""
