"""The checks of `scrapy bloom doctor`: each takes the examined crawl and yields findings."""
