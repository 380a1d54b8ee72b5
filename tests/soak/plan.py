"""The plan of a crawl: its size, and its faults with their moments, drawn from a seed alone."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

WORKERS = (2, 4)
PAGES = (150, 400)
MOST_FAULTS = 6
# Shares of a crawl between which faults happen: the first worker has joined, and there is work left.
FIRST, LAST = 0.05, 0.75
# Seconds of a crawl without faults, up to a maximum delay of a page.
LEAST_SECONDS = 6.0
MOST_DELAY = 0.5


class Kind(StrEnum):
    """The kinds of faults, as the report names them."""

    SIGKILL = "SIGKILL"
    SIGSTOP = "SIGSTOP"
    SIGTERM = "SIGTERM"
    LOST_REPLIES = "lost-replies"
    RESTART = "restart"
    FAILOVER = "failover"
    FAILOVER_KEPT = "failover-kept"
    CLIENT_KILL = "CLIENT-KILL"
    SLOW_LINK = "slow-link"
    BUSY = "BUSY"


SIGNALS = (Kind.SIGKILL, Kind.SIGSTOP, Kind.SIGTERM)
"""The kinds that hit a worker; the others hit the servers, or the link."""


@dataclass(frozen=True)
class Fault:
    """A fault at a number of requested pages; `size` chooses target and strength."""

    kind: Kind
    page: int
    size: float


@dataclass(frozen=True)
class Plan:
    """A crawl; `persist` is SCHEDULER_PERSIST.

    Without it a worker asked to stop deletes the queue.
    """

    number: int
    workers: int
    pages: int
    concurrency: int
    persist: bool
    faults: tuple[Fault, ...]

    @property
    def delay(self) -> float:
        """Seconds that each page takes: long enough for faults to happen."""
        return min(MOST_DELAY, LEAST_SECONDS * self.workers * self.concurrency / self.pages)

    def __str__(self) -> str:
        kinds = Counter(fault.kind for fault in self.faults)
        faults = ", ".join(f"{kind} x{times}" if times > 1 else kind for kind, times in kinds.items())
        size = f"{self.workers} workers, {self.pages} pages, {self.concurrency} at once"
        return f"crawl {self.number}: {size}{', persistent' if self.persist else ''}: {faults}"


def draw(seed: int, number: int, kinds: Sequence[Kind]) -> Plan:
    """Draw the crawl of a number; the same seed and kinds give the same. Half of the crawls persist."""
    source = random.Random(f"{seed} {number}")
    pages = source.randint(*PAGES)
    persist = source.random() < 1 / 2
    possible = [kind for kind in kinds if persist or kind is not Kind.SIGTERM] or list(kinds)
    moments = sorted(
        source.randint(int(FIRST * pages), int(LAST * pages)) for _ in range(source.randint(1, MOST_FAULTS))
    )
    return Plan(
        number,
        workers=source.randint(*WORKERS),
        pages=pages,
        concurrency=source.choice((1, 2, 4, 8)),
        persist=persist or Kind.SIGTERM in possible,
        faults=tuple(Fault(source.choice(possible), page, source.random()) for page in moments),
    )
