"""All that leans on the insides of Scrapy and scrapy-redis, and differs between their versions."""
