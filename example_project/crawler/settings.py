"""Settings of the example crawls: scrapy-redis's shared queue, with the Bloom filter as its dupefilter."""

import os

BOT_NAME = "crawler"
SPIDER_MODULES = ["crawler.spiders"]

SCHEDULER = "scrapy_redis.scheduler.Scheduler"
DUPEFILTER_CLASS = "scrapy_bloom.BloomRFPDupeFilter"
BLOOMFILTER_CAPACITY = 1_000_000
BLOOMFILTER_ERROR_RATE = 1e-6
REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")

# Active only where LEDGER names a file, which the demo does.
EXTENSIONS = {"crawler.ledger.Ledger": 500}

# The example sites are served from this machine: nothing to be polite to. Elsewhere set both.
ROBOTSTXT_OBEY = False
DOWNLOAD_DELAY = 0

COOKIES_ENABLED = False
LOG_LEVEL = "INFO"
# Nobody needs to look into the processes of an example.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
