"""A spider with one page of very many links, for `scrapy runspider`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.http import Response

from tests.support.spiders.links import LinksSpider


class BurstSpider(LinksSpider):
    """Requests BURST missing pages after the first one, and then creates the file `given`."""

    handle_httpstatus_list = (404,)

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        if "/burst/" not in response.url:
            for number in range(self.settings.getint("BURST")):
                yield Request(f"{self._start}/burst/{number}")
            Path("given").touch()
