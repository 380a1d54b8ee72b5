"""The pages that crawls miss or fetch twice when a worker or Redis is killed.

Each page of a tree is linked once, so a lost request is a missed page, and so are all pages below it. The other site
has the links of PostgreSQL's documentation. Two workers, with 8 requests at a time and leases of 2 s, crawl them: at
random moments the one that fetches a page is killed and replaced. One worker crawls a small tree: in the middle Redis
is killed, and is back with all of its data 2 s later.
"""

import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from benchmarks.harness import report
from benchmarks.harness.plots import Plot
from devtools.servers import Server, available, running
from devtools.site import Links
from tests.support import real_links
from tests.support.killing import crawl_with_killed_workers
from tests.support.pages import tree
from tests.support.scenario import OURS, STOCK, Kind, Scene, scene

ROUNDS = 3
PAGES_IN_OUTAGE = 121
MORE_KILLS = 4
OUTAGE_SECONDS = 2.0
KINDS: dict[str, Kind] = {"scrapy-redis": STOCK, "scrapy-bloom, BloomScheduler": {**OURS, "BLOOMFILTER_LEASE": 2}}

Case = Callable[[Server, str, Path, int], Scene]


def run(_: Sequence[Path]) -> list[Plot]:
    """Crawl under both schedulers in turns; after more kills than one, scrapy-redis would have too few pages left."""
    cases: dict[tuple[str, str, str, int], Case] = {}
    for site, links in sites().items():
        for (name, kind), kills in product(KINDS.items(), (1, MORE_KILLS)):
            if kills == 1 or kind is not STOCK:
                cases[site, name, "a worker", kills] = _kill_workers(links, kind, kills)
    for name, kind in KINDS.items():
        cases["small tree", name, f"Redis, for {OUTAGE_SECONDS:g} s", 1] = _kill_redis(kind)
    found: dict[tuple[str, str, str, int], list[Scene]] = {case: [] for case in cases}
    with running(available()[0], "--appendonly", "yes", "--appendfsync", "always") as server:
        with tempfile.TemporaryDirectory(prefix="scrapy-bloom-bench-") as scratch:
            for turn in range(ROUNDS):
                for number, (case, crawl) in enumerate(cases.items()):
                    directory = Path(scratch, f"{turn}-{number}")
                    directory.mkdir()
                    found[case].append(crawl(server, f"bench:{turn}:{number}", directory, turn))
                report.say(f"  round {turn + 1} of {ROUNDS}")
            rows = [
                (
                    site,
                    name,
                    killed,
                    f"{kills}",
                    _range([len(each.missed) for each in scenes]),
                    _range([each.twice for each in scenes]),
                    f"{len(scenes[0].site.links):,}",
                )
                for (site, name, killed, kills), scenes in found.items()
            ]
        title = f"Killed workers and servers. {server.name}, {ROUNDS} rounds."
    report.table(title, ("site", "crawl", "killed", "times", "pages missed", "pages fetched twice", "pages"), rows)
    return []


def sites() -> dict[str, Links]:
    """Return the sites on which workers are killed."""
    return {"tree": tree(600), "PostgreSQL's links": real_links.site()}


def _kill_workers(links: Links, kind: Kind, kills: int) -> Case:
    def crawl(server: Server, key: str, directory: Path, turn: int) -> Scene:
        _, played = crawl_with_killed_workers(links, kind, server, key, directory, workers=2, kills=kills, seed=turn)
        return played

    return crawl


def _kill_redis(kind: Kind) -> Case:
    def crawl(server: Server, key: str, directory: Path, _: int) -> Scene:
        with scene(tree(PAGES_IN_OUTAGE), directory, server.url, key) as played:
            with played.outage(server, OUTAGE_SECONDS):
                played.crawl(kind)
            return played

    return crawl


def _range(counts: Sequence[int]) -> str:
    return f"{min(counts):,} to {max(counts):,}" if min(counts) < max(counts) else f"{counts[0]:,}"
