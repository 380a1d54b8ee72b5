"""The links of two real sites, replayed through the dupefilters that a crawl can choose from.

Only `request_seen` is timed, on requests that were not looked at before. The dupefilters take turns of CHUNK links, and
the answers of each are compared with those of Scrapy's own, which are exact.
"""

import gzip
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import redis
from scrapy import Request

from benchmarks import report
from benchmarks.dupefilters import FORK, OURS, SCRAPY, SET, Contender, build
from benchmarks.launch import Server, running
from benchmarks.rounds import ratio, rotated

DATA = Path(__file__).parent.parent / "tests" / "data"
STREAMS = {"Python": "links-python-docs.txt.gz", "PostgreSQL": "links-postgresql-docs.txt.gz"}
ROUNDS = 3
CHUNK = 1_000
# The fork takes a minute and a half for the links of the Python documentation: it gets the first, in one round.
FORK_LINKS = 20_000

MOST_TIMES_SCRAPY = 1.3
MOST_TIMES_SET = 0.2
"""What is promised for the links of the Python documentation."""


@dataclass
class Replay:
    """What a dupefilter made of the links that it was given, `most` of them at the most."""

    contender: Contender
    most: int
    seconds: float = 0.0
    answers: list[bool] = field(default_factory=list)
    round_trips: int = 0
    memory_bytes: int = 0

    def give(self, links: Sequence[str]) -> None:
        """Ask about links."""
        requests = [Request(link) for link in links[: self.most - len(self.answers)]]
        seen = self.contender.dupefilter.request_seen
        started = time.perf_counter()
        answers = [seen(request) for request in requests]
        self.seconds += time.perf_counter() - started
        self.answers += answers

    def end(self) -> None:
        """Note what it has used, and let it delete its data."""
        self.round_trips = self.contender.round_trips()
        self.memory_bytes = self.contender.memory_bytes()
        self.contender.dupefilter.close("finished")

    def differences(self, exact: "Replay") -> int:
        """How many answers are not those of an exact dupefilter."""
        return sum(mine != right for mine, right in zip(self.answers, exact.answers, strict=False))


def run() -> None:
    """Replay each stream, and print a table for it."""
    with running() as server, server.client() as client:
        for site, file in STREAMS.items():
            links = _links(DATA / file)
            rounds = []
            for turn in range(ROUNDS):
                names = (SCRAPY, SET, FORK, OURS) if turn == 0 else (SCRAPY, SET, OURS)
                rounds.append(_replay(links, names, server, client))
                report.say(f"  {site}: round {turn + 1} of {ROUNDS}")
            _print(site, server, links, rounds)


def _links(path: Path) -> list[str]:
    """The links of a stream; a line that begins with # names the page that the next ones are from."""
    with gzip.open(path, "rt") as lines:
        return [line.rstrip("\n") for line in lines if not line.startswith("#")]


def _replay(links: list[str], names: Sequence[str], server: Server, client: redis.Redis) -> dict[str, Replay]:
    replays = {
        name: Replay(build(name, server, client, f"bench:{name}"), FORK_LINKS if name == FORK else len(links))
        for name in names
    }
    for turn, start in enumerate(range(0, len(links), CHUNK)):
        for replay in rotated(list(replays.values()), turn):
            replay.give(links[start : start + CHUNK])
    for replay in replays.values():
        replay.end()
    return replays


def _print(site: str, server: Server, links: list[str], rounds: list[dict[str, Replay]]) -> None:
    first = rounds[0]
    # Calls as there would be for all links, over those that there were.
    scale = {name: len(links) / len(replay.answers) for name, replay in first.items()}
    seconds = {name: [each[name].seconds * scale[name] for each in rounds if name in each] for name in first}
    to_scrapy = {name: ratio(taken, seconds[SCRAPY]) for name, taken in seconds.items()}
    to_set = {name: ratio(taken, seconds[SET]) for name, taken in seconds.items()}
    rows = [
        (
            f"{name} *" if scale[name] > 1 else name,
            report.times(to_scrapy[name]),
            report.times(to_set[name]),
            f"{median(seconds[name]):.2f}",
            f"{median(seconds[name]) / len(links) * 1e6:.1f}",
            f"{replay.round_trips * scale[name]:,.0f}",
            f"{replay.memory_bytes:,}",
            f"{replay.differences(first[SCRAPY]):,} of {len(replay.answers):,}",
        )
        for name, replay in first.items()
    ]
    new = first[SCRAPY].answers.count(False)
    report.table(
        f"{site} documentation: {len(links):,} links, {new:,} of them new. {server.name}, {ROUNDS} rounds, medians.",
        ("dupefilter", "to Scrapy", "to scrapy-redis", "seconds", "us a call", "round trips", "bytes", "wrong answers"),
        rows,
    )
    print(f"\n\\* given the first {FORK_LINKS:,} links in one round; seconds and round trips are scaled to all links.")
    print("Bytes are MEMORY USAGE of all keys, and of the set in memory those of it and its members.")
    if site == "Python":
        report.target(f"{OURS}, times Scrapy's time in memory,", to_scrapy[OURS], MOST_TIMES_SCRAPY)
        report.target(f"{OURS}, times scrapy-redis's time,", to_set[OURS], MOST_TIMES_SET)
