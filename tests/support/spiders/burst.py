"""A spider with one page that leads to very many, for `scrapy runspider`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.http import Response

from devtools.spiders.links import LinksSpider


class BurstSpider(LinksSpider):
    """Asks for BURST pages that are not there when it gets the first; the file `given` is there when it has done so."""

    handle_httpstatus_list = (404,)

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        if "/burst/" not in response.url:
            for number in range(self.settings.getint("BURST")):
                yield Request(f"{self._start}/burst/{number}")
            Path("given").touch()
