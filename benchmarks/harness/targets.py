"""Upper bounds of crawl times."""

_CRAWLS = {"python3-doc": 0.9, "postgresql-doc": 1.0}


def of_crawl(name: str, workers: int) -> list[float]:
    """Return the bound of a crawl's time relative to Scrapy's own; none for several workers."""
    return [most for directory, most in _CRAWLS.items() if workers == 1 and name.startswith(directory)]
