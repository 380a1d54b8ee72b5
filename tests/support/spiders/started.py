"""Spiders fed by Redis and controlled by a file in their directory."""

import os
from pathlib import Path
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response

from scrapy_bloom import RedisSpider

BAD = "/bad"


class FedSpider(Spider):
    """Fetches the paths of a start key, and follows no links.

    The file `signals` has a path and numbers of signals, one for each time that the path is opened: the process sends
    it to itself.
    """

    name = "started"
    redis_batch_size = 16

    def __init__(self, start: str, **attributes: str) -> None:
        super().__init__(**attributes)
        self._site = start

    def make_request_from_data(self, data: bytes) -> Request:
        """Return the request of a path."""
        path, file = data.decode(), Path("signals")
        if path == BAD:
            raise ValueError("it makes no sense")
        chosen, *numbers = file.read_text().split() if file.exists() else [""]
        if chosen == path and numbers:
            file.write_text(" ".join((path, *numbers[1:])))
            os.kill(os.getpid(), int(numbers[0]))
        return Request(self._site + path)

    def parse(self, response: Response, **_: Any) -> None:
        """Take the page."""


class StartedSpider(FedSpider, RedisSpider):
    """The spider with this package's class."""
