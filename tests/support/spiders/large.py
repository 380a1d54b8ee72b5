"""A spider of large requests."""

import os
from collections.abc import Iterator
from typing import Any

from scrapy import Request
from scrapy.http import Response

from tests.support.spiders.links import LinksSpider

SIZE = 20_000


class LargeSpider(LinksSpider):
    """Follows the links, each with a ballast of `SIZE` bytes that no proxy can compress."""

    def parse(self, response: Response, **attributes: Any) -> Iterator[Request]:
        """Follow the links."""
        attributes.pop("ballast", None)
        for request in super().parse(response, **attributes):
            yield request.replace(cb_kwargs={**request.cb_kwargs, "ballast": os.urandom(SIZE // 2).hex()})
