"""Counts round trips: each send of redis-py's connections, by any caller."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from redis.connection import AbstractConnection
from scrapy import signals
from scrapy.crawler import Crawler

STAT = "round_trips"


@dataclass
class Sent:
    """The number of sends, and of their bytes."""

    trips: int = 0
    bytes: int = 0


@contextmanager
def counting() -> Iterator[Sent]:
    """Count all data sent to Redis by this process for as long as the block lasts."""
    sent = Sent()
    send = AbstractConnection.send_packed_command

    def counted(self: AbstractConnection, command: Any, *args: Any, **kwargs: Any) -> None:
        sent.trips += 1
        sent.bytes += sum(map(len, command)) if isinstance(command, list | tuple) else len(command)
        send(self, command, *args, **kwargs)  # type: ignore[no-untyped-call]

    AbstractConnection.send_packed_command = counted  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        AbstractConnection.send_packed_command = send  # type: ignore[method-assign]


class RoundTrips:
    """The extension that counts a worker's round trips, from before the queue is opened to after it is closed."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._counting = counting()
        self._sent = self._counting.__enter__()  # until the process ends

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Count the round trips of a crawler's process."""
        self = cls(crawler)
        # Before the ledger, which records the stats then.
        crawler.signals.connect(self._engine_stopped, signals.engine_stopped)
        return self

    def _engine_stopped(self) -> None:
        if self._crawler.stats is not None:
            self._crawler.stats.set_value(STAT, self._sent.trips)


SETTINGS: dict[str, object] = {"EXTENSIONS": f'{{"{RoundTrips.__module__}.{RoundTrips.__qualname__}": 0}}'}
"""The settings of a crawl whose stats have the round trips."""
