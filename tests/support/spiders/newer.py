"""The links spider as a later version of a project has it, for `scrapy runspider`."""

from collections.abc import Iterator
from typing import Any

from scrapy import Request
from scrapy.http import Response

from devtools.spiders.links import LinksSpider


class NewerSpider(LinksSpider):
    """Names a callback in its requests that the older version has not, so that only this one can read them."""

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        for request in super().parse(response):
            yield request.replace(callback=self.parse_page)

    def parse_page(self, response: Response) -> Iterator[Request]:
        yield from self.parse(response)
