"""A filter that is being filled: workers do not open it before that is done."""

from scrapy_bloom.filter.bloom_filter import CrawlFilter


class FillingFilter(CrawlFilter):
    """A `CrawlFilter` for whoever fills it, with the mark that it is not complete, or without."""

    _fills = True
