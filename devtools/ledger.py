"""Record the events of one crawling process, to be added up later. Judges nothing.

A ledger is a file of JSON lines, each of them a list: `["received", url]` for each response that the spider gets, and
last, when the engine has stopped, `["stats", {...}]`: the Scrapy stats of the process.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.http import Response


class Ledger:
    """The spider middleware that keeps the ledger; the setting LEDGER names its file.

    Each line is written at once, so that it outlives a killed process.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._file = os.open(crawler.settings["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Keep a ledger for a crawler."""
        ledger = cls(crawler)
        # Every other component has set its last stats by now: it had `spider_closed` to do so.
        crawler.signals.connect(ledger._engine_stopped, signals.engine_stopped)
        return ledger

    def process_spider_input(self, response: Response, **_: object) -> None:
        """Record a response that the spider gets."""
        self._write("received", response.url)

    def _engine_stopped(self) -> None:
        self._write("stats", self._crawler.stats.get_stats() if self._crawler.stats else {})

    def _write(self, *entry: object) -> None:
        os.write(self._file, f"{json.dumps(entry, default=str)}\n".encode())


def settings_for(path: Path) -> dict[str, object]:
    """Return the settings of a crawl that keeps its ledger at a path."""
    return {"SPIDER_MIDDLEWARES": json.dumps({f"{Ledger.__module__}.{Ledger.__qualname__}": 1}), "LEDGER": path}


def read(path: Path, kind: str) -> Iterator[Any]:
    """Yield the complete entries of a kind so far."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    for line in lines:
        if line.endswith("\n") and (entry := json.loads(line))[0] == kind:
            yield entry[1]
