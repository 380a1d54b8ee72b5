"""Settings of the example crawls: a queue and a filter in Redis, which all workers of a crawl share."""

import os

BOT_NAME = "crawler"
SPIDER_MODULES = ["crawler.spiders"]

# It sets SCHEDULER and DUPEFILTER_CLASS.
ADDONS = {"scrapy_bloom.Addon": 500}
# How many different URLs the crawl is expected to meet, and the share of them that it may miss when it has.
BLOOMFILTER_CAPACITY = 1_000_000
BLOOMFILTER_ERROR_RATE = 1e-6
REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")

# Each worker waits so many seconds between two pages of a site: ten workers put ten times the load on it.
ROBOTSTXT_OBEY = True
DOWNLOAD_DELAY = 1

COOKIES_ENABLED = False
LOG_LEVEL = "INFO"
# Nobody needs to look into the processes of an example.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
