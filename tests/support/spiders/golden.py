"""A spider fed by Redis that follows links, with a page that kills its process."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.http import HtmlResponse, Response

from tests.support.spiders.started import StartedSpider


class GoldenSpider(StartedSpider):
    """Follows every link with metadata, and dies at the page in the file `killer`."""

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:  # type: ignore[override]  # the parent's follows none
        killer = Path("killer")
        if killer.exists() and response.url.endswith(killer.read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(response, HtmlResponse):
            for place, href in enumerate(response.css("a::attr(href)").getall()):
                meta, arguments = {"from": response.url}, {"place": place}
                yield response.follow(href, self.parse, meta=meta, cb_kwargs=arguments, priority=place)
