"""Adds up the ledgers of a crawl's workers while they are written. Knows neither Redis nor processes."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from w3lib.url import canonicalize_url

from example_project.crawler.ledger import OFFERED_STAT


class Tally:
    """What the workers of a crawl have offered and fetched, and their stats once they have stopped.

    A page is a canonical URL, as it is to the dupefilter.
    """

    def __init__(self, ledgers: Sequence[Path]) -> None:
        self._tails = [_Tail(ledger) for ledger in ledgers]
        self._attempts: Counter[tuple[str, int]] = Counter()
        self.offered: set[str] = set()
        self.fetched: set[str] = set()
        self.stats: dict[Path, dict[str, Any]] = {}

    def read(self) -> None:
        """Take in what was written since the last call."""
        for tail in self._tails:
            for line in tail.lines():
                self._enter(tail.path, json.loads(line))

    @property
    def fetched_twice(self) -> set[str]:
        """Pages that were fetched more than once; Scrapy's retries after an error do not count."""
        return {page for (page, _), times in self._attempts.items() if times > 1}

    @property
    def links_offered(self) -> int:
        """Requests offered to the dupefilter: all links and the start page of each worker."""
        return int(self.total(OFFERED_STAT))

    def missed(self, expected: Sequence[str]) -> set[str]:
        """Pages that are expected, or that some worker offered, and that no worker fetched."""
        return (self.offered | {canonicalize_url(url) for url in expected}) - self.fetched

    def total(self, stat: str) -> float:
        """Sum of a stat over the workers; one that does not have it adds 0."""
        return float(sum(stats.get(stat, 0) for stats in self.stats.values()))

    def _enter(self, ledger: Path, entry: list[Any]) -> None:
        match entry:
            case ["offered", url]:
                self.offered.add(canonicalize_url(url))
            case ["fetched", url, attempt]:
                page = canonicalize_url(url)
                self.fetched.add(page)
                self._attempts[page, attempt] += 1
            case ["stats", stats]:
                self.stats[ledger] = stats
            case _:
                raise ValueError(f"{ledger.name} holds {entry!r}: not a ledger's line")


class _Tail:
    """The whole lines of a growing file, each of them once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def lines(self) -> Iterator[bytes]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line
