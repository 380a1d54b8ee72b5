"""Settings of the example crawls: a queue and a filter in Redis, which all workers of a crawl share."""

import os

BOT_NAME = "crawler"
SPIDER_MODULES = ["crawler.spiders"]

# Sets SCHEDULER and DUPEFILTER_CLASS. The spider `plugin` has the filter alone, under scrapy-redis's scheduler.
ADDONS = {"scrapy_bloom.Addon": 500}
REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")  # one server for all machines
SCHEDULER_SERIALIZER = "scrapy_bloom.serializer"  # MessagePack instead of pickle
SCHEDULER_PERSIST = True  # Ctrl-C keeps the crawl, and the next start resumes it
BLOOMFILTER_CAPACITY = 1_000_000  # distinct requests you expect

# Seconds that each worker waits between two pages of a site: ten workers put ten times the load on it.
ROBOTSTXT_OBEY = True
DOWNLOAD_DELAY = 1

COOKIES_ENABLED = False
LOG_LEVEL = "INFO"
# An example needs no remote access to its processes.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
