"""The result of a crawl: measures its memory in Redis and makes the table.

Starts no processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redis import Redis
from scrapy import Request
from scrapy_redis.dupefilter import RFPDupeFilter

from devtools.demo.round_trips import ROUND_TRIPS_STAT
from devtools.demo.tally import Tally
from devtools.servers import memory_usage
from scrapy_bloom._format import plural

EXAMPLES = 5
"""The maximum number of faulty pages that are named."""


@dataclass(frozen=True)
class Memory:
    """Bytes that Redis holds for the same fingerprints, by MEMORY USAGE."""

    filter: int
    set: int


def measure(server: Redis, filter_key: str, set_key: str, pages: Iterable[str]) -> Memory:
    """Measure the filter, and the SET that scrapy-redis would keep, made at `set_key` and deleted."""
    fingerprint = RFPDupeFilter(server, set_key).request_fingerprint
    try:
        with server.pipeline(transaction=False) as pipe:
            for page in pages:
                pipe.sadd(set_key, fingerprint(Request(page)))
            pipe.execute()
        return Memory(
            filter=memory_usage(server, filter_key),
            set=memory_usage(server, set_key),
        )
    finally:
        server.delete(set_key)


@dataclass(frozen=True)
class Report:
    """The counts of a crawl, and the verdict on them."""

    tally: Tally
    missed: set[str]
    memory: Memory
    capacity: int

    @property
    def passed(self) -> bool:
        """True if every page was fetched exactly once."""
        return not self.missed and not self.tally.fetched_twice

    def table(self) -> str:
        """The counts, and the filter beside the SET."""
        tally, memory = self.tally, self.memory
        held = max(len(tally.offered), 1)
        room = max(held, self.capacity)
        trips = tally.total(ROUND_TRIPS_STAT)
        rows: list[Sequence[str]] = [
            ("pages fetched", f"{len(tally.fetched):,}"),
            ("pages fetched twice", f"{len(tally.fetched_twice):,}"),
            ("pages missed", f"{len(self.missed):,}"),
            ("links offered", f"{tally.links_offered:,}"),
            ("repeats filtered", f"{tally.total('dupefilter/filtered'):,.0f}"),
            (),
            ("the same URLs in", "the filter", "a SET"),
            ("round trips, with the queue", f"{trips:,.0f}", f"{tally.links_offered + 2 * len(tally.fetched):,} *"),
            ("bytes", f"{memory.filter:,}", f"{memory.set:,}"),
            ("bytes a URL", f"{memory.filter / held:,.1f}", f"{memory.set / held:,.1f}"),
            ("bytes a URL when full", f"{memory.filter / room:,.1f} **", "never full"),
        ]
        notes = (
            "* not measured: scrapy-redis makes one for each link offered, and two to queue and take each page",
            f"** it takes its memory with the first request, for {self.capacity:,} URLs (--capacity), more past them",
        )
        return "\n".join([*map(_line, rows), "", *notes])

    def verdict(self) -> str:
        """One line: whether every page was fetched exactly once."""
        if self.passed:
            return f"Passed: every page was fetched exactly once ({plural(len(self.tally.fetched), 'page')})."
        missed, twice = (plural(len(pages), "page") for pages in (self.missed, self.tally.fetched_twice))
        return f"Failed: {missed} missed, {twice} fetched twice."

    def faults(self) -> str:
        """The first missed or repeated pages, a line each."""
        faults = (("missed", self.missed), ("fetched twice", self.tally.fetched_twice))
        return "\n".join(f"{what}: {page}" for what, pages in faults for page in sorted(pages)[:EXAMPLES])


def _line(row: Sequence[str]) -> str:
    label, *values = row or ("",)
    return (f"{label:<28}" + "".join(f"{value:>20}" for value in values)).rstrip()
