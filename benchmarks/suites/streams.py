"""The links of two real sites, and new links, replayed through dupefilters.

Links arrive page by page, as from a spider's callback, and each page as fresh requests. The timing of a dupefilter
covers `request_seen`. The timing of a scheduler covers `enqueue_request` and one `next_request` per page:
fingerprint, check and log, and for new requests serializing, queueing and taking, which a dupefilter leaves to the
scheduler. All contenders take turns page by page, and their answers are compared with those of Scrapy's own filter,
which are exact.
"""

import gzip
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import redis
from scrapy import Request

from benchmarks.harness import redisbloom, report
from benchmarks.harness.interleaved import ratio, rotated
from benchmarks.harness.plots import Bars, Plot
from benchmarks.harness.urls import urls
from benchmarks.subjects.contenders import (
    BF_ADD,
    DUPEFILTERS,
    FORK,
    OUR_SCHEDULER,
    OURS,
    SCHEDULERS,
    SCRAPY,
    SET,
    STOCK_SCHEDULER,
    Contender,
    build,
)
from devtools.round_trips import Sent, counting
from devtools.servers import Server, available, running

Pages = Sequence[Sequence[str]]

DATA = Path(__file__).parents[2] / "tests" / "data"
PYTHON, POSTGRESQL, NEW = "Python documentation", "PostgreSQL documentation", "all new"
ROUNDS = 3
NEW_PAGES, NEW_LINKS = 400, 25
# Slow contenders get the first links of a stream only, in one round; of new links only the slowest ones do.
FEW_LINKS = 5_000
SLOW = (SET, FORK, BF_ADD, STOCK_SCHEDULER)
SLOWEST = (FORK,)

Target = tuple[str, str, float]
TARGETS: dict[str, tuple[Target, ...]] = {
    PYTHON: ((OURS, SCRAPY, 0.1), (OURS, SET, 1 / 80), (OURS, FORK, 1 / 400)),
    POSTGRESQL: ((OURS, SCRAPY, 0.6), (OUR_SCHEDULER, SCRAPY, 0.35)),
    NEW: ((OUR_SCHEDULER, STOCK_SCHEDULER, 0.3),),
}
MOST_TRIPS_A_PAGE = 1.0


@dataclass
class Replay:
    """The results of a contender on its links, at most `most` of them."""

    contender: Contender
    sent: Sent
    most: int
    seconds: float = 0.0
    answers: list[bool] = field(default_factory=list)
    pages: int = 0
    round_trips: int = 0
    memory_bytes: int = 0

    def give(self, page: Sequence[str]) -> None:
        """Replay a page's links."""
        requests = [Request(link) for link in page[: self.most - len(self.answers)]]
        if not requests:
            return
        before = self.sent.trips
        started = time.perf_counter()
        answers = self.contender.page(requests)
        self.seconds += time.perf_counter() - started
        self.round_trips += self.sent.trips - before
        self.answers += answers
        self.pages += 1

    def end(self) -> None:
        """Record the memory, and delete the data."""
        self.memory_bytes = self.contender.memory_bytes()
        self.contender.end()

    def differences(self, exact: "Replay") -> int:
        """Count the wrong answers."""
        return sum(mine != right for mine, right in zip(self.answers, exact.answers, strict=False))


Rounds = list[dict[str, Replay]]


def run(_: Sequence[Path]) -> list[Plot]:
    """Replay each stream, and print its table."""
    module = redisbloom.server_options()
    names = [*(name for name in DUPEFILTERS if module or name != BF_ADD), *SCHEDULERS]
    panels = {}
    with (
        running(available()[0], *module) as server,
        server.client(protocol=3) as client,
        counting() as sent,
    ):
        for site, pages in streams().items():
            rounds: Rounds = []
            for turn in range(ROUNDS):
                few = SLOWEST if site == NEW else SLOW
                chosen = [name for name in names if turn == 0 or name not in few]
                rounds.append(_replay(pages, dict.fromkeys(few, FEW_LINKS), chosen, (server, client, sent)))
                report.say(f"  {site}: round {turn + 1} of {ROUNDS}")
            panels[site] = _print(site, server, pages, rounds)
    return [Bars("streams", "Time for the links of a site, Scrapy in memory = 1", panels, is_log=True)]


def streams() -> dict[str, Pages]:
    """Return the links of each page of each stream."""
    made_up = [urls(start, NEW_LINKS) for start in range(0, NEW_PAGES * NEW_LINKS, NEW_LINKS)]
    return {
        PYTHON: _links(DATA / "links-python-docs.txt.gz"),
        POSTGRESQL: _links(DATA / "links-postgresql-docs.txt.gz"),
        NEW: made_up,
    }


def _links(path: Path) -> Pages:
    """Read a stream by pages; a line with # names the page of the next links."""
    pages: list[list[str]] = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            if line.startswith("#"):
                pages.append([])
            else:
                pages[-1].append(line.rstrip("\n"))
    return pages


def _replay(
    pages: Pages, most: Mapping[str, int], names: Sequence[str], on: tuple[Server, redis.Redis, Sent]
) -> dict[str, Replay]:
    server, client, sent = on
    links = sum(map(len, pages))
    replays = {
        name: Replay(build(name, server, client, f"bench:{name}"), sent, most.get(name, links)) for name in names
    }
    for number, page in enumerate(pages):
        for replay in rotated(list(replays.values()), number):
            replay.give(page)
    for replay in replays.values():
        replay.end()
    return replays


def _print(site: str, server: Server, pages: Pages, rounds: Rounds) -> dict[str, float]:
    """Print the table, and return the times to Scrapy's."""
    first = rounds[0]
    links = sum(map(len, pages))
    costs = {name: [each[name].seconds / len(each[name].answers) for each in rounds if name in each] for name in first}
    to_scrapy = {
        name: [mine / exact for mine, exact in zip(costs[name], costs[SCRAPY], strict=False)] for name in first
    }
    rows = [
        (
            name,
            report.times(median(to_scrapy[name])),
            f"{min(to_scrapy[name]):.2f} to {max(to_scrapy[name]):.2f}",
            report.times(ratio(costs[name], costs[STOCK_SCHEDULER])),
            f"{median(costs[name]) * 1e6:.1f}",
            f"{replay.round_trips / replay.pages:.2f}",
            f"{replay.memory_bytes:,}",
            f"{replay.differences(first[SCRAPY]):,} of {len(replay.answers):,}",
        )
        for name, replay in first.items()
    ]
    new = first[SCRAPY].answers.count(False)
    report.table(
        f"{site}: {len(pages):,} pages, {links:,} links, {new:,} of them new. {server.name}, medians of "
        f"{ROUNDS} rounds.",
        (
            *("dupefilter or scheduler", "to Scrapy", "range", "to scrapy-redis's Scheduler", "us a link"),
            *("round trips a page", "bytes", "wrong answers"),
        ),
        rows,
    )
    few = ", ".join(name for name in first if len(first[name].answers) < links)
    report.line(
        "\nBytes are MEMORY USAGE of the filter's keys; for Scrapy, the size of the set in memory and its members. "
        f"All links would take minutes, so these got the first {FEW_LINKS:,} in one round: {few}."
    )
    for name, other, most in TARGETS[site]:
        report.target(f"{site}: {name}, times {other},", ratio(costs[name], costs[other]), most)
    if site == PYTHON:
        trips = first[OUR_SCHEDULER].round_trips / first[OUR_SCHEDULER].pages
        report.target(f"{site}: round trips a page, {OUR_SCHEDULER},", trips, MOST_TRIPS_A_PAGE)
    return {name: median(ratios) for name, ratios in to_scrapy.items()}
