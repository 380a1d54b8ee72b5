"""The most that crawls are promised to take."""

_CRAWLS = {"python3-doc": 0.9, "postgresql-doc": 1.0}


def of_crawl(name: str, workers: int) -> list[float]:
    """The most times of Scrapy's own that a crawl of a directory may take; Scrapy alone has one worker only."""
    return [most for directory, most in _CRAWLS.items() if workers == 1 and name.startswith(directory)]
