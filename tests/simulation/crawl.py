"""A simulated crawl by its plan: its world and its problems."""

import json
import logging
import pickle
import shutil
import tempfile
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from scrapy import Request
from scrapy.utils.request import request_from_dict
from scrapy_redis import spiders

from scrapy_bloom.queue.operations import Flush, Join, QueueOperation, Requeue, Status
from tests.simulation import checks
from tests.simulation.clock import BusyLoopError, Hub, SimulatedRuntime
from tests.simulation.faults import Faults
from tests.simulation.plan import Plan
from tests.simulation.process import START_KEY, Process
from tests.simulation.server import Before, Server
from tests.simulation.site import Site
from tests.support.start_memory import StartMemory

# Virtual seconds after which a crawl counts as endless.
_LIMIT_SECONDS = 600.0
# Workers started one after another at the end, for the remaining requests.
_MAX_LATE_STARTS = 6


@dataclass(frozen=True)
class Problem:
    """A broken invariant; `kind` is a word."""

    kind: str
    text: str
    details: str = ""


@dataclass
class Outcome:
    """The outcome of a crawl.

    Attributes:
        problems: broken invariants.
        log: lines with their moments, processes and texts.
        fetches: how often each page was fetched in one generation of the crawl, at most.
        seconds: virtual seconds that it took.
    """

    plan: Plan
    problems: list[Problem] = field(default_factory=list)
    log: list[tuple[float, str, str]] = field(default_factory=list)
    fetches: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    hits: int = 0

    @property
    def kinds(self) -> set[str]:
        """The kinds of its problems."""
        return {problem.kind for problem in self.problems}


class Fetch(NamedTuple):
    """A page whose callback has ended."""

    at: float
    process: str
    generation: int
    is_filtered: bool


class World:
    """All processes of a crawl, their server, and the observations of both."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = Random(f"run {plan.seed} {plan.course}")
        self.hub = Hub()
        shared = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  # the name is drawn
        self.directory = tempfile.mkdtemp(prefix="simulation-", dir=shared)
        Path(self.directory, "temporary").mkdir()
        self.runtime = SimulatedRuntime(self.hub, self.chance, f"{self.directory}/temporary")
        self.site = Site(plan.shape, Random(f"site {plan.seed}"))
        self.server = Server(self.hub, plan.link, self.chance)
        self.server.listen = self._heard
        self.outcome = Outcome(plan)
        self.faults = Faults(self)
        self.processes: list[Process] = []
        self.fetched: dict[str, list[Fetch]] = defaultdict(list)
        self.begun: Counter[str] = Counter()
        # How many requests of each page there were at most, at a fault or where a worker noticed one.
        self.copies: Counter[str] = Counter()
        # The last flush of a queue, the process that did it, and the numbers of flushes and of ends of filters.
        self.flushed_at: float | None = None
        self.flusher = ""
        self.generation = 0
        # The last stop of a worker without persistence, which deleted requests with their filter.
        self.deleted_at = -1.0
        self.has_lost_data = False
        self._has_ended = False
        self._late_starts = 0
        self._members: dict[bytes, str] = {}
        self._last_heard: dict[str, float] = {}
        pages = Random(f"pages {plan.seed}").sample(self.site.urls[1:], plan.poison + plan.holding)
        self.poison, self.holding = set(pages[: plan.poison]), set(pages[plan.poison :])

    # Reports of processes.

    def log(self, text: str, name: str = "") -> None:
        """Record a line."""
        who = name or (self.hub.current.name if self.hub.current else "")
        self.outcome.log.append((self.hub.now, who, text.replace(f"{self.directory}/", "")))

    def found(self, kind: str, text: str, error: BaseException | None = None) -> None:
        """Record a problem."""
        details = "".join(traceback.format_exception(error)) if error is not None else ""
        self.log(f"PROBLEM {kind}: {text}")
        self.outcome.problems.append(Problem(kind, text, details))

    def listen(self, sender: str, text: str, operation: object) -> None:
        """Record an operation that the server executes for a process."""
        kind = type(operation).__name__
        self.outcome.log.append((self.hub.now, "server", f"{sender} > {kind} {text}"))
        if isinstance(operation, Flush):
            self.flushed_at = self.hub.now
            self.flusher = operation.worker.partition("-")[0]
            self.generation += 1
            self.faults.on_flush()
        if isinstance(operation, Requeue | Join) and f": {Status.OK}," not in text:
            self.count_copies()
        if isinstance(operation, Requeue) and f": {Status.REQUEUED}," in text:
            self.outcome.hits += self._was_late(operation.dead)
        elif isinstance(operation, QueueOperation):
            self._last_heard[operation.worker] = self.hub.now
        if kind == "DeleteShard":
            self.generation += 1

    def count_copies(self) -> None:
        """Note the number of requests of each page that a fault may bring back."""
        self.copies |= Counter(self.url_of(member) for member in set(checks.held_requests(self)))

    def _was_late(self, worker: str) -> bool:
        """Return whether a worker taken for dead is alive, and its heartbeats were late on a slow link."""
        running = {process.name for process in self.alive if self.hub.now >= process.stopped_until}
        silent = self.hub.now - self._last_heard.get(worker, 0.0)
        # A check of the workers is in transit for a while, too.
        return worker.partition("-")[0] in running and silent > float(self.plan.settings["BLOOMFILTER_LEASE"]) / 2  # type: ignore[arg-type]

    def _heard(self, owner: Any, name: str, reply: Any) -> None:
        if isinstance(reply, Exception):
            self.log(f"{name}: {type(reply).__name__}: {reply}", owner.name)

    def refused(self, process: Process, error: Exception) -> None:
        """Record that a process cannot open its crawl."""
        self.log(f"cannot open: {type(error).__name__}: {error}", process.name)

    def roots_of(self, process: Process) -> list[str]:
        """Return the start requests of a process: the first page, and its share of the private ones."""
        first = self.plan.workers * len(self.plan.spiders)
        return self.site.urls[:1] + (self.site.private[process.number :: first] if process.number < first else [])

    def further_starts(self, url: str) -> list[str]:
        """Return further pages that a start URL makes requests for."""
        return [link.url for link in self.site.links[url]] if self.plan.kind == "fed" else []

    def began(self, process: Process, request: Request) -> None:
        self.begun[request.url] += 1
        self.log(f"fetch {request.url}", process.name)

    def before_callback(self, process: Process, url: str) -> None:
        """Apply a page's effect to the process that runs its callback."""
        if url in self.poison:
            self.log(f"{url} kills the process", process.name)
            self.outcome.hits += 1
            process.kill()
            self.hub.after(1.0, lambda: self.start(process.spider_name, process.directory))
        if url in self.holding:
            self.log(f"{url} holds the GIL for {self.plan.held:g} s", process.name)
            self.outcome.hits += 1
            process.stop(self.plan.held)

    def ended(self, process: Process, request: Request) -> None:
        # A retry fetches a request that passed the filter, too.
        is_filtered = not request.dont_filter or "attempt" in request.meta
        self.fetched[request.url].append(Fetch(self.hub.now, process.name, self.generation, is_filtered))

    def dropped(self, process: Process, request: Request) -> None:
        self.log(f"drop {request.url}", process.name)
        checks.check_drop(self, request.url)

    def called(self, process: Process, name: str, begin: float) -> None:
        checks.check_call(self, process, name, begin)

    def url_of(self, member: bytes) -> str:
        """Return the URL of a serialized request."""
        if member not in self._members:
            self._members[member] = str(request_from_dict(_without_callback(pickle.loads(member))).url)  # noqa: S301
        return self._members[member]

    # The crawl.

    def start(self, spider: str, directory: str | None = None, *, flush: bool = False) -> Process:
        """Start a process."""
        number = len(self.processes)
        if directory is None:
            directory = f"{self.directory}/{'shared' if self.plan.shares_directory else f'w{number}'}"
        Path(directory).mkdir(exist_ok=True)
        process = Process(self, f"w{number}", spider, directory, number=number, flush=flush)
        self.processes.append(process)
        return process

    @property
    def alive(self) -> list[Process]:
        """The running processes."""
        return [process for process in self.processes if not process.is_dead]

    def run(self) -> None:
        """Run the crawl to its end, and check it."""
        plan = self.plan
        if plan.is_fed:
            urls = self.site.urls[:1] + self.site.private
            waiting = [json.dumps({"url": url}).encode() for url in urls]
            self.server.data.start_urls[START_KEY] = StartMemory(plan.unusable[:1] + waiting + plan.unusable[1:])
        for spider in plan.spiders:
            for _ in range(plan.workers):
                self.hub.at(self.chance.random() * plan.stagger, lambda spider=spider: self.start(spider))  # type: ignore[misc]
        self.faults.plan()
        self.hub.at(0.5, self._watch)
        try:
            has_ended = self.hub.run(_LIMIT_SECONDS, lambda: self._has_ended)
        except BusyLoopError as error:
            self.found("busy loop", str(error))
        else:
            self.outcome.seconds = self.hub.now
            checks.check_end(self, has_ended=has_ended)

    def _watch(self) -> None:
        """Check for the end; start one more worker for remaining requests."""
        if self.hub.now > self.plan.faulty_until + self.plan.stagger and not self.alive and not self.faults.pending:
            spider, directory = self._left()
            if spider is None or self._late_starts >= _MAX_LATE_STARTS:
                self._has_ended = True
                return
            self._late_starts += 1
            self.log(f"the simulation starts one more worker of {spider!r}, for the remaining requests")
            self.start(spider, directory)
        self.hub.after(0.5, self._watch)

    def _left(self) -> tuple[str | None, str | None]:
        """Return the spider that has to start again, with its directory; None if no request is left."""
        for process in self.processes:
            # A spider reads its own files only, and may share its directory with another.
            if any(name.startswith(f"undelivered-{process.spider_name}_") for name in _undelivered(process.directory)):
                return process.spider_name, process.directory
        if _undelivered(f"{self.directory}/temporary"):
            return self.processes[-1].spider_name, None
        for spider in self.plan.spiders:
            queue = self.server.data.queues.get(f"{spider}:requests")
            last = [process for process in self.processes if process.spider_name == spider][-1:]
            was_cut = any(process.how in ("killed", "refused", "crashed") for process in last)
            if was_cut or (queue and (queue.queue or queue.workers or any(queue.leases.values()))):
                return spider, None
        if any(urls.waiting or urls.leased for urls in self.server.data.start_urls.values()):
            return self.plan.spiders[0], None
        return None, None

    def close(self) -> None:
        """End all threads, and delete the files."""
        for process in self.processes:
            process.is_dead = True
        self.hub.end()
        shutil.rmtree(self.directory, ignore_errors=True)


def simulate(plan: Plan, before: Before = lambda *_: None) -> Outcome:
    """Run a crawl and return its outcome; `before` is the server's hook."""
    world = World(plan)
    world.server.before = before
    handler = _Handler(world)
    root, package = logging.getLogger(), logging.getLogger("scrapy_bloom")
    found = root.handlers[:], package.level, spiders.time
    root.handlers[:] = [handler]
    # scrapy-redis has no place for a clock.
    spiders.time = SimpleNamespace(time=world.runtime.unix_time)
    package.setLevel(logging.INFO)
    try:
        world.run()
    finally:
        root.handlers[:], package.level, spiders.time = found
        world.close()
    return world.outcome


class _Handler(logging.Handler):
    """Records the package's log; an error with a traceback is a problem."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Record a log line."""
        if record.name.startswith(("scrapy_bloom", "scrapy.utils.signal")):
            self._world.log(f"{record.levelname} {record.getMessage()}")
            if "are deleted, and the filter with them" in record.getMessage():
                self._world.deleted_at = self._world.hub.now
            is_planned = any(repr(datum) in record.getMessage() for datum in self._world.plan.unusable)
            if record.exc_info and record.exc_info[1] is not None and not is_planned:
                self._world.found("exception", f"logged: {record.getMessage()[:200]}", record.exc_info[1])


def _undelivered(directory: str) -> list[str]:
    return [path.name for path in Path(directory).iterdir() if path.suffix == ".jsonl"]


def _without_callback(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "callback": None, "errback": None}
