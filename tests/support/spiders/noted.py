"""A spider whose requests carry a note, for `scrapy runspider`."""

import json
from collections.abc import Iterator
from typing import Any

from scrapy import Request
from scrapy.http import Response

from tests.support.spiders.links import LinksSpider


class NotedSpider(LinksSpider):
    """Adds the text NOTE, which is JSON, to each request whose URL ends with NOTED."""

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        note = json.loads(self.settings["NOTE"])
        for request in super().parse(response):
            if request.url.endswith(self.settings.get("NOTED", "")):
                request.meta["note"] = note
            yield request
