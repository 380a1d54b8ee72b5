"""One crawl of a plan: workers, faults at their pages, and the final checks."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from devtools.crawl_process import Crawl, CrawlProcess, Job
from devtools.site import Links, Site, path_of, serving
from scrapy_bloom.queue.keys import QueueKeys
from tests.soak.plan import LAST, SIGNALS, Fault, Kind, Plan
from tests.soak.servers import Servers
from tests.support.spiders import links
from tests.support.waiting import until

LEASE = 1.0
# Seconds after which a crawl hangs. A crawl takes a quarter of a minute, and several minutes on a busy machine.
LIMIT = 300.0
_FANOUT = 3
_NAMED = 5


@dataclass
class Outcome:
    """The outcome of a crawl: its missed pages, its repeated fetches, and its other complaints.

    `happened` counts the observed faults. `hung` names the workers that did not end, `failed` the workers that ended
    with an error, `left` the remaining keys.
    """

    plan: Plan
    happened: Counter[Kind] = field(default_factory=Counter)
    missed: set[str] = field(default_factory=set)
    twice: int = 0
    hung: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: set[str] = field(default_factory=set)

    @property
    def absent(self) -> list[Kind]:
        """The planned faults that did not happen: a crawl without them proves nothing about them."""
        planned = Counter(fault.kind for fault in self.plan.faults)
        return list((planned - self.happened).elements())

    @property
    def complaints(self) -> Iterator[str]:
        """Each complaint about the crawl."""
        for name in ("missed", "hung", "failed", "left", "absent"):
            found: list[str] = sorted(getattr(self, name))
            if found:
                yield f"{name} {len(found)}: {', '.join(found[:_NAMED])}{' …' if len(found) > _NAMED else ''}"

    def __str__(self) -> str:
        return f"{self.plan}: {'; '.join(self.complaints) or 'all fetched'}, {self.twice} fetched twice"


class SoakCrawl:
    """A running crawl in a directory, with the keys that contain `key`."""

    def __init__(self, plan: Plan, servers: Servers, directory: Path) -> None:
        self._plan = plan
        self._servers = servers
        self._directory = directory
        self._key = f"soak-{plan.number}"
        self._outcome = Outcome(plan)
        self._workers: list[CrawlProcess] = []
        self._killed: set[str] = set()
        self._leaving: set[str] = set()
        self._wakings: list[threading.Timer] = []
        self._due = list(plan.faults)
        self._asked = 0
        self._counting = threading.Lock()
        self._happening = threading.Lock()
        self._never = threading.Event()

    def run(self) -> Outcome:
        """Crawl to the end, and return the outcome."""
        end = time.monotonic() + LIMIT
        self._servers.happened.clear()
        with serving(site(self._plan.pages)) as self._site:
            self._site.before = self._asked_for
            try:
                for _ in range(self._plan.workers):
                    self._start()
                self._wait(end)
                self._sweep(end)
            finally:
                for waking in self._wakings:
                    waking.join()
                for worker in self._workers:
                    worker.kill()
                self._servers.settle()
            self._look(self._site)
        return self._outcome

    def _start(self) -> None:
        settings = {
            "SCHEDULER": "scrapy_bloom.BloomScheduler",
            "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
            "REDIS_URL": self._servers.link.url,
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
        job = Job(("runspider", links.__file__), {"start": self._site.url}, settings, {"SCRAPY_PROJECT": ""})
        self._workers.append(CrawlProcess(f"worker-{len(self._workers)}", job, self._directory))

    def _asked_for(self, _: str) -> None:
        """Count a request, and apply the due faults before its response."""
        with self._counting:
            self._asked += 1
            is_late = self._asked > LAST * self._plan.pages
            due = [fault for fault in self._due if fault.page <= self._asked]
            self._due = self._due[len(due) :]
        for fault in due:
            with self._happening:
                try:
                    (self._hit if fault.kind in SIGNALS else self._servers.befall)(fault)
                except Exception as error:  # a thread's own error, which would go unnoticed
                    self._outcome.failed.append(f"{fault.kind} ({error!r})")
        if is_late:
            # A worker that has not joined when the others end would crawl everything anew.
            until(self._all_have_begun)
        self._never.wait(self._plan.delay)

    def _hit(self, fault: Fault) -> None:
        """Send a worker a signal, if one runs; replace it if the signal ends it."""
        running = (worker for worker in self._workers if worker.process.poll() is None)
        targets = [worker for worker in running if worker.name not in self._leaving]
        if not targets:
            return
        victim = targets[int(fault.size * len(targets))]
        if fault.kind is Kind.SIGSTOP:
            victim.process.send_signal(signal.SIGSTOP)
            self._outcome.happened[Kind.SIGSTOP] += is_stopped(victim)
            waking = threading.Timer(LEASE * (1.5 + fault.size), victim.process.send_signal, (signal.SIGCONT,))
            waking.start()
            self._wakings.append(waking)
            return
        self._start()
        self._leaving.add(victim.name)
        if fault.kind is Kind.SIGKILL:
            self._killed.add(victim.name)
            victim.kill()
        else:
            victim.process.send_signal(signal.SIGTERM)

    def _all_have_begun(self) -> bool:
        return all("Spider opened" in worker.log or worker.process.poll() is not None for worker in self._workers)

    def _wait(self, end: float) -> None:
        """Wait for all workers, including those started meanwhile."""
        for worker in self._workers:  # grows
            if not worker.has_ended(max(0.0, end - time.monotonic())):
                self._outcome.hung.append(worker.name)
                worker.process.send_signal(signal.SIGCONT)

    def _sweep(self, end: float) -> None:
        """Start one more worker if a stopped worker returned requests too late."""
        self._servers.settle()
        with self._servers.master.client() as client:
            is_left = bool(client.zcard(f"{self._key}:queue"))
        if self._plan.persist and is_left and not self._outcome.hung and self._leaving - self._killed:
            self._start()
            self._workers[-1].has_ended(max(0.0, end - time.monotonic()))

    def _look(self, crawled: Site) -> None:
        fetched: Counter[str] = Counter()
        for worker in self._workers:
            ended = worker.wait()
            fetched.update(url.removeprefix(crawled.url) or "/" for url in ended.fetched)
            self._judge(worker.name, ended)
        self._outcome.happened += self._servers.happened
        self._outcome.missed = set(crawled.links) - set(fetched)
        self._outcome.twice = fetched.total() - len(fetched)
        with self._servers.master.client() as client:
            keys = {key.decode() for key in client.scan_iter(match=f"*{self._key}:*", count=10_000)}
            if keys:
                client.unlink(*keys)
        # A crawl that persists keeps its own record, and the filter.
        kept = {QueueKeys(f"{self._key}:queue").crawl, QueueKeys(f"{self._key}:queue").departed}
        self._outcome.left = {key for key in keys if ":queue" in key} - kept if self._plan.persist else keys

    def _judge(self, name: str, ended: Crawl) -> None:
        """Count the signal by which a worker ended, or its failure."""
        reason = ended.stats.get("finish_reason")
        if name in self._killed:
            self._outcome.happened[Kind.SIGKILL] += ended.exit_code == -signal.SIGKILL
        elif name in self._leaving and reason != "finished":
            self._outcome.happened[Kind.SIGTERM] += 1
            if reason is None and ended.exit_code in {0, -signal.SIGTERM}:
                return  # it was asked to stop before Scrapy handled signals, or while it was starting
        if name in self._killed or name in self._outcome.hung:
            return
        if ended.exit_code != 0 or reason not in {"finished", "shutdown"}:
            self._outcome.failed.append(f"{name} ({ended.exit_code}, {reason})")


def site(pages: int) -> Links:
    """Return a tree whose pages also link to themselves and back.

    No repeat makes up for a lost request.
    """
    made = {}
    for page in range(pages):
        children = range(_FANOUT * page + 1, min(_FANOUT * page + 1 + _FANOUT, pages))
        made[path_of(page)] = [path_of(each) for each in (*children, 0, max(0, page - 1) // _FANOUT, page)]
    return made


def is_stopped(worker: CrawlProcess) -> bool:
    """Wait until a process has stopped after SIGSTOP; return False if it has ended."""
    try:
        seen = os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return False
    return seen is not None and seen.si_code == os.CLD_STOPPED
