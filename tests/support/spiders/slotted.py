"""A spider whose requests choose their slot of the downloader, and whose errbacks complain, for `scrapy runspider`."""

from collections.abc import Iterator
from typing import Any

from scrapy import Request
from scrapy.http import Response

from tests.support.spiders.links import LinksSpider

SLOT = "http://user:password@{proxy} ☃ \ud800"


class SlottedSpider(LinksSpider):
    """Follows every link, each in a slot of one name; any text may be one."""

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        for request in super().parse(response):
            yield request.replace(errback=self.complain, meta={"download_slot": SLOT})

    def complain(self, failure: Any) -> None:
        """Log an error."""
        self.logger.error("An errback was called: %r", failure)
