"""A spider with a page that kills its process, for `scrapy runspider`."""

import ctypes
import os
import signal
from collections.abc import Iterator
from typing import Any

from scrapy import Request
from scrapy.http import Response

from tests.support.spiders.links import LinksSpider


class DeadlySpider(LinksSpider):
    """Dies at the page DEADLY, or holds the interpreter there for HELD seconds."""

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        if response.url.endswith(self.settings["DEADLY"]):
            held = self.settings.getint("HELD")
            if not held:
                os.kill(os.getpid(), signal.SIGKILL)
            ctypes.PyDLL(None).sleep(held)
        yield from super().parse(response)
