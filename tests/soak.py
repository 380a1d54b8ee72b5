"""`python -m tests.soak --seconds 600 --seed 1`: crawls by real processes, with faults at random moments.

It ends with exit code 1 as soon as a page was missed, a worker failed or hung, a key was left, or a fault failed.
`--seed N --first K --crawls 1` runs crawl K of a seed again, with the same faults at the same pages.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from devtools.crawl_process import Crawl, CrawlProcess, Job
from devtools.servers import Server, available, running
from devtools.site import Links, Site, path_of, serving
from scrapy_bloom.queue.keys import QueueKeys
from tests.support.proxy.link import Link, LinkProxy, forwarding
from tests.support.spiders import links
from tests.support.waiting import until

LEASE = 1.0
# Seconds after which a crawl hangs. A crawl takes a quarter of a minute, and several minutes on a busy machine.
LIMIT = 300.0
# Shares of a crawl between which faults happen: the first worker has joined, and there is work left.
FIRST, LAST = 0.05, 0.75
# Seconds of a crawl without faults.
LEAST_SECONDS = 6.0
_FANOUT, _MOST_FAULTS = 3, 6


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

    @property
    def persist(self) -> bool:
        """SCHEDULER_PERSIST: without it a worker asked to stop deletes the queue."""
        return any(fault.kind == "SIGTERM" for fault in self.faults)

    def __str__(self) -> str:
        faults = ", ".join(fault.kind for fault in self.faults)
        return f"crawl {self.number}: {self.workers} workers, {self.pages} pages, {self.concurrency} at once: {faults}"


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

    def __init__(self, plan: Plan, server: Server, link: LinkProxy, directory: Path) -> None:
        self.twice, self._asked = 0, 0
        self.server, self.link = server, link
        self._plan, self._directory, self._key = plan, directory, f"soak-{plan.number}"
        self._due, self._faults = list(plan.faults), list[Future[None]]()
        self._workers, self._killed, self._leaving = list[CrawlProcess](), set[str](), set[str]()
        self._counting, self.sleep = threading.Lock(), threading.Event().wait

    def run(self) -> list[str]:
        """Crawl to the end, and return the complaints."""
        end = time.monotonic() + LIMIT
        with serving(site(self._plan.pages)) as crawled, ExitStack() as stack:
            # Faults of workers and those of the server overlap, and two of a kind do not.
            self._lanes = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(2)]
            crawled.before = self._asked_for
            self._url = crawled.url
            try:
                for _ in range(self._plan.workers):
                    self._start()
                complaints = [*self._wait(end)]
            finally:
                for worker in self._workers:
                    worker.kill()
            return [*complaints, *self._look(crawled)]

    def hit(self, size: float, sent: signal.Signals) -> None:
        """Send a worker a signal, if one runs; one that ends it has a successor."""
        alive = [each for each in self._workers if each.process.poll() is None and each.name not in self._leaving]
        if not alive:
            return
        victim = alive[int(size * len(alive))]
        if sent is signal.SIGSTOP:
            victim.process.send_signal(sent)
            self.sleep(LEASE * (1.5 + size))
            victim.process.send_signal(signal.SIGCONT)
            return
        self._start()
        self._leaving.add(victim.name)
        if sent is signal.SIGKILL:
            self._killed.add(victim.name)
        victim.process.send_signal(sent)

    def _start(self) -> None:
        settings = {
            "SCHEDULER": "scrapy_bloom.BloomScheduler",
            "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
            "REDIS_URL": self.link.url,
            "SCHEDULER_DUPEFILTER_KEY": f"{self._key}:filter",
            "SCHEDULER_QUEUE_KEY": f"{self._key}:queue",
            "SCHEDULER_PERSIST": self._plan.persist,
            "BLOOMFILTER_CAPACITY": 10_000,
            # A missing page was lost, not taken for seen.
            "BLOOMFILTER_ERROR_RATE": 1e-12,
            "BLOOMFILTER_LEASE": LEASE,
            "CONCURRENT_REQUESTS": self._plan.concurrency,
            "CONCURRENT_REQUESTS_PER_DOMAIN": self._plan.concurrency,
            "TELNETCONSOLE_ENABLED": False,
        }
        job = Job(("runspider", links.__file__), {"start": self._url}, settings, {"SCRAPY_PROJECT": ""})
        self._workers.append(CrawlProcess(f"worker-{len(self._workers)}", job, self._directory))

    def _asked_for(self, _: str) -> None:
        """Count a request, and begin the due faults before its response."""
        with self._counting:
            self._asked += 1
            is_late = self._asked > LAST * self._plan.pages
            while self._due and self._due[0].page <= self._asked:
                fault = self._due.pop(0)
                lane = self._lanes[fault.kind.startswith("SIG")]
                self._faults.append(lane.submit(FAULTS[fault.kind], self, fault.size))
        if is_late:
            # A worker that has not joined when the others end would crawl everything anew.
            until(lambda: all("Spider opened" in each.log or each.process.poll() is not None for each in self._workers))
        # Long enough for faults to happen.
        self.sleep(min(0.5, LEAST_SECONDS * self._plan.workers * self._plan.concurrency / self._plan.pages))

    def _wait(self, end: float) -> Iterator[str]:
        """Wait for all workers, also those started meanwhile, and for one more if requests were returned too late."""
        for worker in self._workers:  # grows
            if not worker.has_ended(max(0.0, end - time.monotonic())):
                yield f"hung: {worker.name}"
            elif worker is self._workers[-1]:
                yield from (f"failed: {error!r}" for fault in self._faults if (error := fault.exception()))
                with self.server.client() as client:
                    is_left = self._leaving - self._killed and client.zcard(f"{self._key}:queue")
                if is_left and worker is self._workers[-1]:
                    self._leaving.clear()
                    self._start()

    def _look(self, crawled: Site) -> Iterator[str]:
        """Yield the missed pages, the failures of workers and the keys that are left."""
        fetched: Counter[str] = Counter()
        for worker in self._workers:
            ended = worker.wait()
            fetched.update(url.removeprefix(crawled.url) or "/" for url in ended.fetched)
            if worker.name not in self._killed and not _ended_well(ended):
                yield f"failed: {worker.name} ({ended.exit_code}, {ended.stats.get('finish_reason')})"
        self.twice = fetched.total() - len(fetched)
        if missed := sorted(crawled.links.keys() - fetched):
            yield f"missed {len(missed)}: {', '.join(missed[:5])}"
        with self.server.client() as client:
            keys = {key.decode() for key in client.scan_iter(match=f"*{self._key}:*", count=10_000)}
            if keys:
                client.unlink(*keys)
        of_crawl = QueueKeys(f"{self._key}:queue")
        # A crawl that persists keeps its own record, and the filter.
        left = {key for key in keys if ":queue" in key} - {of_crawl.crawl, of_crawl.departed}
        if left := left if self._plan.persist else keys:
            yield f"left: {', '.join(sorted(left))}"


def _ended_well(ended: Crawl) -> bool:
    """Return whether a worker finished or stopped; one that is asked before Scrapy handles signals has no stats."""
    reason = ended.stats.get("finish_reason")
    return (ended.exit_code == 0 and reason in {"finished", "shutdown"}) or (
        reason is None and ended.exit_code in {0, -signal.SIGTERM}
    )


def _restart(soak: Soak, size: float) -> None:
    soak.server.kill()
    soak.sleep(5 * size**2)
    soak.server.start()


def _cut(soak: Soak, _: float) -> None:
    with soak.server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)


def _slow_down(soak: Soak, size: float) -> None:
    soak.link.link = Link(rate=50_000 + 500_000 * (1 - size), delay=0.1 * size)
    soak.sleep(1 + 2 * size)
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
    made = {}
    for page in range(pages):
        children = range(_FANOUT * page + 1, min(_FANOUT * page + 1 + _FANOUT, pages))
        made[path_of(page)] = [path_of(each) for each in (*children, 0, max(0, page - 1) // _FANOUT, page)]
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Crawl until the time has run out or a crawl has a complaint, and print a line for each crawl."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Crawl with faults at random moments.")
    parser.add_argument("--seconds", type=float, default=600, help="seconds after which no crawl begins (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first crawl (%(default)s)")
    parser.add_argument("--crawls", type=int, default=1_000, help="maximum number of crawls (%(default)s)")
    options = parser.parse_args(arguments)
    end, number = time.monotonic() + options.seconds, options.first
    with ExitStack() as stack:
        server = stack.enter_context(running(available()[-1], "--appendonly", "yes", "--appendfsync", "always"))
        link = stack.enter_context(forwarding(server.port))
        while number < options.first + options.crawls and time.monotonic() < end:
            directory = Path(tempfile.mkdtemp(prefix=f"soak-{number}-"))
            soak = Soak(plan := draw(options.seed, number), server, link, directory)
            complaints = soak.run()
            print(f"{plan}: {'; '.join(complaints) or 'all fetched'}, {soak.twice} fetched twice", flush=True)
            if complaints:
                sys.exit(f"    logs are in {directory}")
            shutil.rmtree(directory)
            number += 1
    print(f"{number - options.first} crawls with seed {options.seed}")


if __name__ == "__main__":
    main()
