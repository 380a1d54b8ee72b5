"""Writes down what one worker did, for whoever adds up the crawl. Judges nothing.

A ledger is a file of JSON lines, each of them a list:

| line | written |
|---|---|
| `["offered", url]` | when a URL is offered to the dupefilter for the first time by this worker |
| `["fetched", url, attempt]` | for each response, redirects and errors too; a retry is another attempt |
| `["stats", {...}]` | last, when the engine has stopped: the Scrapy stats of the process |
"""

import json
from pathlib import Path
from typing import Self

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.statscollectors import StatsCollector

OFFERED_STAT = "ledger/offered"
"""The stat that counts the requests offered to the dupefilter, repeats and start requests included."""


class Ledger:
    """The extension that keeps the ledger; the setting LEDGER names its file."""

    def __init__(self, path: Path, stats: StatsCollector) -> None:
        self._file = path.open("a", buffering=1)  # a line at a time, so that it can be followed
        self._stats = stats
        self._offered: set[str] = set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Keep the ledger of a crawler; raises NotConfigured where no file is named."""
        path = crawler.settings.get("LEDGER")
        if not path or crawler.stats is None:
            raise NotConfigured
        ledger = cls(Path(path), crawler.stats)
        crawler.signals.connect(ledger._request_scheduled, signals.request_scheduled)
        crawler.signals.connect(ledger._response_downloaded, signals.response_downloaded)
        # Every other component has set its last stats by now: it had `spider_closed` to do so.
        crawler.signals.connect(ledger._engine_stopped, signals.engine_stopped)
        return ledger

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
        self._file.close()

    def _write(self, *entry: object) -> None:
        self._file.write(json.dumps(entry, default=str) + "\n")
