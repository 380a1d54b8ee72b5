"""`python -m tests.soak --seconds 600 --seed 1`: crawls by real processes, with faults at random moments.

It fails as soon as a page is missed, a worker fails or hangs, a key is left, or a fault fails.
`--seed N --first K --crawls 1` runs crawl K of a seed again, with the same faults at the same pages.
"""

import argparse
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from devtools import servers
from devtools.crawl_process import Crawl
from devtools.site import Links, path_of
from scrapy_bloom.queue.keys import QueueKeys
from tests.support.pages import tree
from tests.support.proxy.link import Link, LinkProxy, forwarding
from tests.support.scenario import OURS, Scene, scene
from tests.support.waiting import until

LEASE = 1.0
# Shares of a crawl between which faults happen: the first worker has joined, and there is work left.
FIRST, LAST = 0.05, 0.75
# Seconds of a crawl without faults.
LEAST_SECONDS = 6.0
_MOST_FAULTS = 6
_sleep = threading.Event().wait


class Fault(NamedTuple):
    """A fault at a number of requested pages; `size` chooses target and strength."""

    kind: str
    page: int
    size: float


class Plan(NamedTuple):
    """A crawl, drawn from a seed alone."""

    number: int
    workers: int
    pages: int
    concurrency: int
    faults: tuple[Fault, ...]


def draw(seed: int, number: int) -> Plan:
    """Draw the crawl of a number."""
    source = random.Random(f"{seed} {number}")
    pages = source.randint(150, 400)
    count = source.randint(1, _MOST_FAULTS)
    moments = sorted(source.randint(int(FIRST * pages), int(LAST * pages)) for _ in range(count))
    faults = tuple(Fault(source.choice([*FAULTS]), page, source.random()) for page in moments)
    return Plan(number, source.randint(2, 4), pages, source.choice((1, 2, 4, 8)), faults)


class Soak:
    """A crawl of a plan: workers, faults at their pages, and the final checks."""

    def __init__(self, plan: Plan, server: servers.Server, link: LinkProxy, played: Scene) -> None:
        self.server, self.link, self._plan, self._played = server, link, plan, played
        self._killed, self._leaving, self._faults = set[str](), set[str](), list[Future[None]]()
        # Without it a worker asked to stop deletes the queue.
        self._persists = any(fault.kind == "SIGTERM" for fault in plan.faults)

    def run(self) -> None:
        """Crawl to the end, and check it."""
        played, plan = self._played, self._plan
        # Faults of workers and those of the server overlap, and two of a kind do not.
        with ThreadPoolExecutor(1) as of_server, ThreadPoolExecutor(1) as of_workers:
            self._lanes = of_server, of_workers
            for fault in plan.faults:
                played.moments.when(fault.page, partial(self._begin, fault))
            # Long enough for faults to happen.
            played.moments.delay = min(0.5, LEAST_SECONDS * plan.workers * plan.concurrency / plan.pages)
            played.site.before = self._requested
            for _ in range(plan.workers):
                self._start()
            for worker in played.workers:  # grows
                ended = worker.wait()
                assert worker.name in self._killed or _has_ended_well(ended), (worker.name, ended.exit_code)
                if worker is played.workers[-1]:
                    for each in self._faults:
                        each.result()
                    with self.server.client() as client:  # a stopped worker may have returned requests too late
                        is_left = self._leaving - self._killed and client.zcard(f"soak-{plan.number}:queue")
                    if is_left and worker is played.workers[-1]:
                        self._leaving.clear()
                        self._start()
        assert not played.missed
        keys = played.keys
        if keys:
            with self.server.client() as client:
                client.unlink(*keys)
        of_crawl = QueueKeys(f"soak-{plan.number}:queue")
        # A crawl that persists keeps its own record, and the filter.
        left = {key for key in keys if ":queue" in key} - {of_crawl.crawl}
        assert not (left if self._persists else keys)

    def hit(self, size: float, sent: signal.Signals) -> None:
        """Send a worker a signal, if one runs; one that ends it has a successor."""
        alive = [
            each for each in self._played.workers if each.process.poll() is None and each.name not in self._leaving
        ]
        if not alive:
            return
        victim = alive[int(size * len(alive))]
        if sent is signal.SIGSTOP:
            victim.process.send_signal(sent)
            _sleep(LEASE * (1.5 + size))
            victim.process.send_signal(signal.SIGCONT)
            return
        self._start()
        self._leaving.add(victim.name)
        if sent is signal.SIGKILL:
            self._killed.add(victim.name)
        victim.process.send_signal(sent)

    def _start(self) -> None:
        at_once = dict.fromkeys(("CONCURRENT_REQUESTS", "CONCURRENT_REQUESTS_PER_DOMAIN"), self._plan.concurrency)
        own = {"BLOOMFILTER_LEASE": LEASE, "SCHEDULER_PERSIST": self._persists}
        self._played.start(f"worker-{len(self._played.workers)}", {**OURS, **own, **at_once})

    def _begin(self, fault: Fault, _: str) -> None:
        lane = self._lanes[fault.kind.startswith("SIG")]
        self._faults.append(lane.submit(FAULTS[fault.kind], self, fault.size))

    def _requested(self, worker: str) -> None:
        self._played.moments(worker)
        if self._played.moments.asked > LAST * self._plan.pages:
            # A worker that has not joined when the others end would crawl everything anew.
            workers = self._played.workers
            until(lambda: all("Spider opened" in each.log or each.process.poll() is not None for each in workers))


def _has_ended_well(ended: Crawl) -> bool:
    """Return whether a worker finished or stopped; one that is asked before Scrapy handles signals has no stats."""
    reason = ended.stats.get("finish_reason")
    return (ended.exit_code == 0 and reason in {"finished", "shutdown"}) or (
        reason is None and ended.exit_code in {0, -signal.SIGTERM}
    )


def _restart(soak: Soak, size: float) -> None:
    soak.server.kill()
    _sleep(5 * size**2)
    soak.server.start()


def _cut(soak: Soak, _: float) -> None:
    with soak.server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)


def _slow_down(soak: Soak, size: float) -> None:
    soak.link.link = Link(rate=50_000 + 500_000 * (1 - size), delay=0.1 * size)
    _sleep(1 + 2 * size)
    soak.link.link = Link()


def _lose_replies(soak: Soak, size: float) -> None:
    soak.link.link.lost_replies = 1 + int(5 * size)
    until(lambda: soak.link.link.lost_replies == 0)


FAULTS: dict[str, Callable[[Soak, float], None]] = {
    "SIGKILL": lambda soak, size: soak.hit(size, signal.SIGKILL),
    "SIGSTOP": lambda soak, size: soak.hit(size, signal.SIGSTOP),
    "SIGTERM": lambda soak, size: soak.hit(size, signal.SIGTERM),
    "restart": _restart,
    "cut connections": _cut,
    "slow link": _slow_down,
    "lost replies": _lose_replies,
}


def site(pages: int) -> Links:
    """Return a tree whose pages also link to themselves and back: no repeat makes up for a lost request."""
    back = {path_of(page): [path_of(0), path_of(max(0, page - 1) // 3), path_of(page)] for page in range(pages)}
    return {path: [*links, *back[path]] for path, links in tree(pages).items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Crawl until the time has run out or a crawl fails, and print a line for each crawl."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Crawl with faults at random moments.")
    parser.add_argument("--seconds", type=float, default=600, help="seconds after which no crawl begins (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first crawl (%(default)s)")
    parser.add_argument("--crawls", type=int, default=1_000, help="maximum number of crawls (%(default)s)")
    options = parser.parse_args(arguments)
    end, number = time.monotonic() + options.seconds, options.first
    with ExitStack() as stack:
        server = stack.enter_context(
            servers.running(servers.available()[-1], "--appendonly", "yes", "--appendfsync", "always")
        )
        link = stack.enter_context(forwarding(server.port))
        while number < options.first + options.crawls and time.monotonic() < end:
            directory, plan = Path(tempfile.mkdtemp(prefix=f"soak-{number}-")), draw(options.seed, number)
            print(f"{plan}; its logs are in {directory}", flush=True)
            with scene(site(plan.pages), directory, link.url, f"soak-{number}") as played:
                Soak(plan, server, link, played).run()
            print(f"all fetched, {played.twice} fetched twice", flush=True)
            shutil.rmtree(directory)
            number += 1


if __name__ == "__main__":
    main()
