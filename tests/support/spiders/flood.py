"""A spider that starts with very many requests, for `scrapy runspider`."""

from collections.abc import AsyncIterator
from pathlib import Path

from scrapy import Request

from devtools.spiders.links import LinksSpider

NUMBER = 3000


class FloodSpider(LinksSpider):
    """Asks for pages that are not there, as fast as it may; the file `given` says how many, each hundred of them."""

    handle_httpstatus_list = (404,)

    async def start(self) -> AsyncIterator[Request]:
        yield Request(self._start)
        for number in range(NUMBER):
            if number % 100 == 0:
                Path("given").write_text(str(number))
            yield Request(f"{self._start}/flood/{number}")
