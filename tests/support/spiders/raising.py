"""A spider whose callback follows all links of a page and then raises, for `scrapy runspider`."""

from collections.abc import Iterator
from typing import Any

from scrapy import Request
from scrapy.http import Response

from tests.support.spiders.unfiltered import UnfilteredSpider


class RaisingSpider(UnfilteredSpider):
    """Fails at each page, after its links."""

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        yield from super().parse(response)
        raise ValueError("a page of another kind")
