"""A queue that knows when a crawl is over for all its workers. Knows nothing of the demo that uses it.

A worker that finds the shared queue empty cannot tell the end of the crawl from a moment in which the others
hold all that is left. So the queue keeps a count in Redis of what is open: requests that wait, requests in
some worker's hands, and workers that have yet to offer their start requests.

* A request is counted by the transaction that queues it.
* It is discounted when the worker that took it is idle, so after all that its page led to has been counted.
* A worker counts as one from the opening of its queue until it is idle for the first time.

While work is left anywhere, the count is above zero: no order of events lets a worker leave early. At zero
nobody holds anything that could make new work, so it is over for all. A worker that is killed never gives
back its part and the others wait for it: whoever starts the workers must watch them.
"""

import asyncio
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider
from scrapy_redis.queue import FifoQueue

POLL_SECONDS = 0.1
"""How soon a worker that found the queue empty looks again; Scrapy's own heartbeat is 5 s."""


class TogetherQueue(FifoQueue):  # type: ignore[misc]  # scrapy-redis has no types
    """A first-in, first-out SCHEDULER_QUEUE_CLASS that holds idle workers until the crawl is over for all.

    Needs a SCHEDULER_QUEUE_KEY that is new, and SCHEDULER_PERSIST, lest the first worker to leave clears it.
    """

    def __init__(self, server: Any, spider: Spider, key: str, serializer: Any = None) -> None:
        super().__init__(server, spider, key, serializer)
        self._open_key = f"{self.key}:open"
        self._in_hand = 1  # its own start requests
        self._alarm: asyncio.TimerHandle | None = None
        self.server.incr(self._open_key)
        spider.crawler.signals.connect(self._settle, signals.spider_idle)

    def push(self, request: Request) -> None:
        """Queue a request and count it as open."""
        with self.server.pipeline(transaction=True) as pipe:
            pipe.incr(self._open_key)
            pipe.lpush(self.key, self._encode_request(request))
            pipe.execute()

    def pop(self, timeout: int = 0) -> Request | None:
        """Take a request, which stays open until this worker is idle; look again soon if there is none."""
        request: Request | None = super().pop(timeout)
        if request is None:
            self._set_alarm()
        else:
            self._in_hand += 1
        return request

    def _settle(self) -> None:
        in_hand, self._in_hand = self._in_hand, 0
        if self.server.decrby(self._open_key, in_hand) > 0:
            raise DontCloseSpider

    def _set_alarm(self) -> None:
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(POLL_SECONDS, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        # Scrapy has no public way to have the next request asked for before its heartbeat.
        if slot := self.spider.crawler.engine._slot:
            slot.nextcall.schedule()
