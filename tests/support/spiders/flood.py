"""A spider that starts with very many requests, for `scrapy runspider`."""

from collections.abc import AsyncIterator
from pathlib import Path

from scrapy import Request

from devtools.spiders.links import LinksSpider
from devtools.waiting import until

NUMBER = 600
HALT = 200


class FloodSpider(LinksSpider):
    """Asks for pages that are not there, as fast as it may; the file `given` says how many, each hundred of them.

    After `HALT` of them the spider makes the file `halted` and waits, with the reactor, for the file `go`.
    """

    handle_httpstatus_list = (404,)

    async def start(self) -> AsyncIterator[Request]:
        yield Request(self._start)
        for number in range(NUMBER):
            if number % 100 == 0:
                Path("given.new").write_text(str(number))
                Path("given.new").rename("given")
            if number == HALT:
                Path("halted").touch()
                until(Path("go").exists)
            yield Request(f"{self._start}/flood/{number}")
