"""Spiders fed by Redis and controlled by files in their directory."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response

from scrapy_bloom import RedisSpider

BAD = "/bad"


class FedSpider(Spider):
    """Fetches the paths of a start key, and follows no links.

    The file `deadly` names the path at which the process dies, once. The file `hesitate` has the number of requests
    after which the start pauses. With the file `idle` the spider has been idle for too long.
    """

    name = "started"
    next_requests: Callable[[], Iterator[Request]]

    def __init__(self, start: str, **attributes: str) -> None:
        super().__init__(**attributes)
        self._site = start
        self._idle_since = int(time.time())

    @property
    def spider_idle_start_time(self) -> int:
        """The time that scrapy-redis compares with MAX_IDLE_TIME_BEFORE_CLOSE."""
        return 0 if Path("idle").exists() else self._idle_since

    @spider_idle_start_time.setter
    def spider_idle_start_time(self, since: int) -> None:
        self._idle_since = since

    async def start(self) -> Any:
        hesitate = Path("hesitate")
        if hesitate.exists():
            requests = self.next_requests()
            for _ in range(int(hesitate.read_text())):
                yield next(requests)
            hesitate.unlink()
            await asyncio.get_running_loop().create_future()

    def make_request_from_data(self, data: bytes) -> Request:
        """Return the request of a path."""
        path, deadly = data.decode(), Path("deadly")
        if path == BAD:
            raise ValueError("it makes no sense")
        if deadly.exists() and deadly.read_text() == path:
            deadly.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return Request(self._site + path)

    def parse(self, response: Response, **_: Any) -> None:
        """Take the page."""


class StartedSpider(FedSpider, RedisSpider):
    """The spider under test."""
