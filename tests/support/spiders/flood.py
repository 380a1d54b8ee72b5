"""A spider that starts with very many requests, for `scrapy runspider`."""

from collections.abc import AsyncIterator
from pathlib import Path

from scrapy import Request

from tests.support.spiders.links import LinksSpider
from tests.support.waiting import until

NUMBER = 600
HALT = 200


class FloodSpider(LinksSpider):
    """Requests missing pages as fast as possible; the file `given` has their number, to the hundred.

    After `HALT` of them the spider creates the file `halted` and blocks the reactor until the file `go` exists.
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
