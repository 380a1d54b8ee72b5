"""Record the events of one crawling process, to be added up later. Judges nothing.

A ledger is a file of JSON lines, each of them a list:

| line | written |
|---|---|
| `["offered", url]` | when a URL is offered to the dupefilter for the first time by this process |
| `["fetched", url, attempt]` | for each response, redirects and errors too; a retry is another attempt |
| `["received", url]` | for each response that the spider gets |
| `["stats", {...}]` | last, when the engine has stopped: the Scrapy stats of the process |
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.statscollectors import StatsCollector

OFFERED_STAT = "ledger/offered"
"""The stat of requests offered to the dupefilter, with repeats and start requests."""


class Ledger:
    """The spider middleware that keeps the ledger; the setting LEDGER names its file.

    Each line is written at once, so that it outlives a killed process.
    """

    def __init__(self, path: str, stats: StatsCollector) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._stats = stats
        self._offered: set[str] = set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Keep a ledger for a crawler."""
        if crawler.stats is None:
            raise ValueError("a crawler has its stats before its middlewares")
        ledger = cls(crawler.settings["LEDGER"], crawler.stats)
        crawler.signals.connect(ledger._request_scheduled, signals.request_scheduled)
        crawler.signals.connect(ledger._response_downloaded, signals.response_downloaded)
        # Every other component has set its last stats by now: it had `spider_closed` to do so.
        crawler.signals.connect(ledger._engine_stopped, signals.engine_stopped)
        return ledger

    def process_spider_input(self, response: Response, **_: object) -> None:
        """Record a response that the spider gets."""
        self._write("received", response.url)

    def _request_scheduled(self, request: Request) -> None:
        if request.dont_filter:
            return
        self._stats.inc_value(OFFERED_STAT)
        if request.url not in self._offered:
            self._offered.add(request.url)
            self._write("offered", request.url)

    def _response_downloaded(self, request: Request) -> None:
        self._write("fetched", request.url, request.meta.get("retry_times", 0))

    def _engine_stopped(self) -> None:
        self._write("stats", self._stats.get_stats())

    def _write(self, *entry: object) -> None:
        os.write(self._file, f"{json.dumps(entry, default=str)}\n".encode())


def settings_for(path: Path) -> dict[str, object]:
    """Return the settings of a crawl that keeps its ledger at a path."""
    return {"SPIDER_MIDDLEWARES": json.dumps({f"{Ledger.__module__}.{Ledger.__qualname__}": 1}), "LEDGER": path}


class Reader:
    """Reads a ledger, even while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def entries(self) -> Iterator[list[Any]]:
        """Yield each complete entry that no earlier call has yielded."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield json.loads(line)
