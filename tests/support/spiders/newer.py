"""The links spider in a later version of a project, for `scrapy runspider`."""

from collections.abc import Iterator
from typing import Any

from scrapy import Request
from scrapy.http import Response

from devtools.spiders.links import LinksSpider


class NewerSpider(LinksSpider):
    """Uses a callback that the older version lacks, so that only this version can read its requests."""

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        for request in super().parse(response):
            yield request.replace(callback=self.parse_page)

    def parse_page(self, response: Response) -> Iterator[Request]:
        yield from self.parse(response)
