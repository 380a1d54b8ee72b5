"""Crawls whose workers are killed at random moments."""

import random
from pathlib import Path

from devtools.crawl_process import Crawl, CrawlProcess
from devtools.servers import Server
from devtools.site import Links
from tests.support.scenario import Kind, Scene, scene


def crawl_with_killed_workers(
    links: Links, kind: Kind, server: Server, key: str, directory: Path, *, workers: int, kills: int, seed: int = 6
) -> tuple[list[Crawl], Scene]:
    """At random moments the worker that fetches a page is killed and replaced."""
    source = random.Random(seed)
    crawls: list[Crawl] = []
    with scene(links, directory, server.url, key, delay=0.05) as played:
        by_name: dict[str, CrawlProcess] = {}

        def start() -> None:
            name = f"worker-{len(by_name)}"
            # Without SCHEDULER_PERSIST a worker that is still starting would crawl the cleared site anew.
            by_name[name] = played.start(name, kind, CONCURRENT_REQUESTS=8, SCHEDULER_PERSIST=True)

        def kill(victim: str) -> None:
            process = by_name[victim].process
            if process.poll() is not None:  # it was killed while this page was on its way: another one will do
                played.moments.when(played.moments.asked + 1, kill)
                return
            # In this order the list has grown before the last of the others can have ended.
            start()
            process.kill()
            process.wait()

        for part in range(kills):
            played.moments.when(source.randrange(30, 100) + 100 * part, kill)
        for _ in range(workers):
            start()
        # The list grows while they are killed.
        crawls.extend(worker.wait() for worker in played.workers)
    assert len(crawls) == workers + kills
    return crawls, played
