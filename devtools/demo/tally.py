"""Adds up the ledgers of a crawl's workers while they are written.

Knows neither Redis nor processes.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from w3lib.url import canonicalize_url

from devtools.ledger import OFFERED_STAT, Reader


class Tally:
    """The pages offered and fetched by the workers of a crawl, and their stats.

    A page is a canonical URL, as it is to the dupefilter.
    """

    def __init__(self, ledgers: Sequence[Path]) -> None:
        self._readers = [Reader(ledger) for ledger in ledgers]
        self._attempts: Counter[tuple[str, int]] = Counter()
        self.offered: set[str] = set()
        self.fetched: set[str] = set()
        self.stats: dict[Path, dict[str, Any]] = {}

    def read(self) -> None:
        """Read the new entries of all ledgers."""
        for reader in self._readers:
            for entry in reader.entries():
                self._enter(reader.path, entry)

    @property
    def fetched_twice(self) -> set[str]:
        """Pages that were fetched more than once; Scrapy's retries after an error do not count."""
        return {page for (page, _), times in self._attempts.items() if times > 1}

    @property
    def links_offered(self) -> int:
        """Requests offered to the dupefilter: all links and the start page of each worker."""
        return int(self.total(OFFERED_STAT))

    def missed(self, expected: Sequence[str]) -> set[str]:
        """Return the pages, expected or offered by some worker, that no worker fetched."""
        return (self.offered | {canonicalize_url(url) for url in expected}) - self.fetched

    def total(self, stat: str) -> float:
        """Sum a stat over the workers; a missing stat counts as 0."""
        return float(sum(stats.get(stat, 0) for stats in self.stats.values()))

    def _enter(self, ledger: Path, entry: list[Any]) -> None:
        match entry:
            case ["offered", url]:
                self.offered.add(canonicalize_url(url))
            case ["fetched", url, attempt]:
                page = canonicalize_url(url)
                self.fetched.add(page)
                self._attempts[page, attempt] += 1
            case ["received", _]:
                pass
            case ["stats", stats]:
                self.stats[ledger] = stats
            case _:
                raise ValueError(f"{ledger.name} holds {entry!r}: not a ledger's line")
