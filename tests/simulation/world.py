"""A simulated crawl by its plan, and its expected outcome.

Pages are numbers. A page is *found* when a callback yields a link to it, and *fetched* when its callback has yielded
all links. A found page must be fetched, unless it is *exempt*: only the server had it, and lost it. Then a worker that
was alive must report a loss. A flush, or the deletion of a finished crawl, begins a new *generation*.
"""

import math
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from redis import exceptions

from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.partitioned import PartitionedWorker
from scrapy_bloom.queue.values import Call, Phase
from scrapy_bloom.queue.worker import Worker
from tests.queue.mistakes import Mistake
from tests.queue.search.moves import shown
from tests.simulation import checks
from tests.simulation.clock import BusyLoopError, Hub, SimulatedRuntime
from tests.simulation.places import Places, offered
from tests.simulation.plan import EVICTIONS, Fault, Plan, Site, plan_for
from tests.simulation.process import QUEUES, Process, keys_of
from tests.simulation.server import Server
from tests.support.running import AnyWorker, ended
from tests.support.script_server import ScriptServer

# Virtual seconds after which a crawl counts as endless.
_LIMIT_SECONDS = 600.0
# Workers started one after another at the end, for the remaining requests.
_MAX_LATE_STARTS = 6
# Losses that leave the requests of the queue, and its filter.
_HARMLESS = ("filter", "shard:", "departed", "deliveries", "suspects", "crawl")


@dataclass
class Outcome:
    """The outcome of a crawl.

    Attributes:
        log: lines with their moments, processes and texts.
    """

    plan: Plan
    problems: list[str] = field(default_factory=list)
    log: list[tuple[float, str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{at:8.3f} {who:>5} {text}" for at, who, text in self.log]
        return "\n".join([f"{self.plan}", *lines, *self.problems])


class World:
    """The processes of a crawl, their server, and the observations of both.

    Attributes:
        found_pages, exempt, failed: pages, see above; `failed` ones have failed once.
        fetched: how often each page was fetched in this generation.
        hits: faults that may cost a fetch.
    """

    expected_errors = (exceptions.ConnectionError, exceptions.TimeoutError)

    def __init__(self, plan: Plan, worker_type: type[AnyWorker], wrong: dict[str, str]) -> None:
        self.plan = plan
        self.worker_type = worker_type if issubclass(worker_type, Worker) else Worker
        self.whole_type = worker_type if issubclass(worker_type, PartitionedWorker) else PartitionedWorker
        self.chance = Random(f"run {plan.kind} {plan.seed} 0")
        self.hub = Hub()
        self.runtime = SimulatedRuntime(self.hub)
        self.site = Site(plan)
        self.server = Server(self.hub, plan, self.chance, wrong)
        self.outcome = Outcome(plan)
        self.processes: list[Process] = []
        self.places = Places(self.server, self.site, lambda: self.alive, plan.partitions)
        self.found_pages: set[int] = set()
        self.exempt: set[int] = set()
        self.failed: set[int] = set()
        self.fetched: Counter[int] = Counter()
        self.hits = 0
        # Processes that were alive when the server lost requests, and whether one has reported any loss.
        self.witnesses: list[Process] = []
        self._linked: Counter[int] = Counter()
        # How often a process was killed or taken for dead while it ran a page.
        self.interrupted: Counter[int] = Counter()
        self.is_reported = False
        self.has_lost = self.has_evicted = self._is_found_later = False
        # The queue and the crawl of each join.
        self._crawls: set[tuple[str, bytes]] = set()
        # The id of each filter after its last join.
        self._filters: dict[str, bytes] = {}
        # The crawls of workers that have exchanged, and are not presumed dead.
        self._works: dict[str, bytes] = {}
        # When each worker was executed last, and when it came back after more than its lease.
        self._heard: dict[str, float] = {}
        self._returned: dict[str, float] = {}
        self._amid: list[Fault] = []
        self._snapshots: dict[int, ScriptServer] = {}
        self._pending = self._late_starts = 0
        self._has_ended = False

    # Reports.

    def log(self, text: str, name: str = "") -> None:
        """Record a line."""
        self.outcome.log.append((self.hub.now, name, text))

    def found(self, kind: str, text: str, error: Exception | None = None) -> None:
        """Record a problem."""
        details = "\n" + "".join(traceback.format_exception(error)) if error is not None else ""
        self.log(f"PROBLEM {kind}: {text}")
        self.outcome.problems.append(f"{kind}: {text}{details}")

    def note_report(self, process: Process, text: str) -> None:
        """Note that a worker reports a loss."""
        self.is_reported |= text != "presumed dead"
        self.log(f"reports: {text}", process.name)

    def note_failure(self, process: Process, page: int) -> None:
        self.failed.add(page)
        self.log(f"{page} fails", process.name)

    def note_link(self, page: int) -> None:
        """Note a link that a page yields."""
        self.found_pages.add(page)
        self._linked[page] += 1

    def note_fetch(self, process: Process, page: int) -> None:
        """Note a fetch, and check their number."""
        self.fetched[page] += 1
        times = self.fetched[page]
        self.log(f"fetched {page}", process.name)
        if page in self.site.unfiltered and times > self._linked[page] + self.hits:
            self.found("fetched again", f"{page} bypasses the filter and was fetched {times} times")
        # Workers do not know which local requests the others crawl.
        if page in self.site.unfiltered | self.site.local or self.plan.ttl:
            return
        # A stop that forgets local requests returns the pages that may have led to them.
        hits = self.hits + sum(part.forgotten_local > 0 for process in self.processes for part in process.worker.parts)
        if times > 1 + hits + (page in self.failed):
            self.found("fetched again", f"{page} was fetched {times} times, with {hits} faults")

    def executed(self, worker: str, call: Call, queue: str, reply: Any) -> None:
        """Note a call that the server has executed."""
        name = call.script
        told = reply[-1] if name in ("exchange", "heartbeat", "leave") and reply[0] != b"EXPIRED" else None
        self.log(f"{name} {shown(call.arguments)}: {shown(reply)}", f"{worker} >")
        process = next(each for each in self.processes if each.name == worker)
        if isinstance(reply, list) and reply[0] in (b"OK", b"LEFT"):
            if self.hub.now - self._heard.get(worker, self.hub.now) > self.plan.lease:
                self._returned[worker] = self.hub.now
            self._heard[worker] = self.hub.now
        if name == "join" and reply[0] == b"OK" and not reply[8]:
            self._returned.pop(worker, None)  # Redis has lost its registration
        if name == "exchange" and reply[0] == b"OK":
            process.is_executed |= process.awaited is call
            # A join of the first partition alone makes no worker that others wait for.
            self._works |= {worker: call.arguments[1]} if queue in QUEUES else {}
        for dead in told[3][::3] if told else ():
            self._works.pop(dead.decode(), None)
            if self.hub.now - self._returned.get(worker, -math.inf) < self.plan.lease:
                self.found("away", f"{worker} was away, and presumes {dead.decode()} dead")
            for alive in (each for each in self.alive if each.name == dead.decode()):
                self.hits += 1
                self._note_interrupted(alive)
                self.log(f"presumes {alive.name} dead, which is alive", worker)
        if name == "join" and reply[0] == b"OK":
            self._note_join(queue, reply[2], reply[4], reply[5])
        if name == "leave" and reply[0] == b"LEFT":
            self._works.pop(worker, None)
        if name == "leave" and reply[0] == b"LEFT" and reply[2]:
            self._note_deletion(process, queue, *call.arguments[:2])
        changes = offered(call) or call.ended or (name == "exchange" and reply[0] == b"OK" and reply[4])
        while changes and self._amid and not process.is_dead:
            self._happen(self._amid.pop(), process)

    def _keys_of(self, process: Process) -> list[tuple[str, str]]:
        return keys_of(process.spider, self.plan.partitions)

    # Where requests are.

    @property
    def alive(self) -> list[Process]:
        """The running processes."""
        return [process for process in self.processes if not process.is_dead]

    # The effects of the faults.

    def _note_loss(self, kind: str) -> None:
        """Exempt the pages of the server alone, which has just lost something."""
        there = self.places.stored() | self.places.held_by_all()
        keeps = self.found_pages - self.places.orphaned() if kind in _HARMLESS else there
        if kind == "rollback":  # within a crawl each worker offers forgotten start requests again
            for each in self.alive:
                for part, (queue, _) in zip(each.worker.parts, self._keys_of(each), strict=True):
                    is_same = self.places.call("HGET", QueueKeys(queue).crawl, "id") == part.crawl
                    there |= {int(offer.member) for _, offer in part._started} if is_same else set()
        # After a rollback, a page that is done, or about to be, in another partition does not lead to its links again.
        is_whole = kind == "flushall" or (kind == "rollback" and self.plan.partitions == 1)
        keeps = self.site.closure(there) if is_whole else keeps
        gone = self.found_pages - set(self.fetched) - keeps - self.exempt
        self.exempt |= gone
        self.log(f"lost: {sorted(gone)}" if gone else "lost no page of its own")
        self.witnesses += self.alive if gone else []
        self.has_lost = True
        self._is_found_later |= kind == "crawl"
        self.hits += 2 * max(1, len(self.alive))

    def _note_interrupted(self, process: Process) -> None:
        self.interrupted.update(int(m) for part in process.worker.parts for m in (*part.running, *part.finished))

    def note_death(self, process: Process) -> None:
        """Note the death of a process that is alive still: its start pages wait for another start."""
        keys = self._keys_of(process)
        is_registered = all(process.name in self.places.registrations(queue) for queue, _ in keys)
        elsewhere = self.places.stored(but="" if is_registered else process.name) | self.places.held_by_all(but=process)
        gone = self.found_pages - set(self.fetched) - elsewhere
        outbox = {int(offer.member) for part in process.worker.parts for offer in part.outbox}
        roots = gone & outbox & set(self.site.roots[process.slot])
        roots -= {page for page in roots if self.places.is_known(b"%d" % page)}
        self.found_pages -= roots
        if self.has_lost:  # some may be the links of pages that it had fetched, and would have fetched again
            self.exempt |= gone - roots
        elif any(
            part.crawl not in (b"", self.places.call("HGET", QueueKeys(queue).crawl, "id"))
            for part, (queue, _) in zip(process.worker.parts, keys, strict=True)
        ):
            self.found_pages -= gone  # of a crawl that others have ended, who took this worker for dead
        self.hits += 1

    def _note_flush(self, queue: str) -> None:
        self.log(f"FLUSHED {queue}")
        self.hits += 1
        self._begin_generation(queue)

    def _note_join(self, queue: str, crawl: bytes, origin: bytes, filter_id: bytes) -> None:
        """Note a flush; and a filter that has replaced that of a crawl that ended, of which nothing was left."""
        name = self.places.filter_of(queue)
        before, self._filters[name] = self._filters.get(name, filter_id), filter_id
        if (queue, crawl) in self._crawls:
            return
        self._crawls.add((queue, crawl))
        if origin == b"flush":
            self._note_flush(queue)
        elif before != filter_id and not self.has_lost:
            self._forget_fetches(self.places.pages_of(queue))

    def _note_deletion(self, process: Process, queue: str, crawl: bytes, mode: str) -> None:
        """Check the deletion of a crawl in a partition."""
        held = self.places.held_by_all(but=process) | self.places.stored()
        self.log(f"DELETED {queue}, held elsewhere: {sorted(held)}")
        working = [each.name for each in self.alive if each is not process and self._works.get(each.name) == crawl]
        if working and not self.has_lost:
            self.found("deleted", f"{process.name} deletes {queue} although {', '.join(working)} work")
        left = self.found_pages - set(self.fetched) - self.exempt - self.site.closure(held)
        if mode == "finished" and left - self.site.closure(self.failed):
            self.found("missed", f"{process.name} deletes the crawl, but {sorted(left)} are left")
        if self.places.call("EXISTS", self.places.filter_of(queue)):
            self.found_pages -= left
            self.exempt -= left
            return
        using = [
            each.name
            for each in self.alive
            if each.spider != process.spider
            and each.worker.phase is Phase.WORK
            and each.worker.parts[0].filter_id == process.worker.parts[0].filter_id  # it was not flushed
            and self.places.registrations(QUEUES[each.spider]).get(each.name)
        ]
        if using and not self.has_lost:
            self.found("filter deleted", f"{process.name} deletes the filter, which {', '.join(using)} use")
        self._begin_generation(queue, process)

    def _begin_generation(self, queue: str, deleting: Process | None = None) -> None:
        """Begin anew with those pages of a partition that the workers hold. No rollback crosses this moment."""
        checks.check_report(self, deleting)
        self._filters.pop(self.places.filter_of(queue), None)
        pages, held = self.places.pages_of(queue), self.places.held_by_all() | self.places.stored()
        self.found_pages -= pages - held - self._forget_fetches(pages)
        self.exempt -= pages
        self._snapshots.clear()

    def _forget_fetches(self, pages: set[int]) -> set[int]:
        """Forget the fetches of pages, and return the unacknowledged pages."""
        ended_ones = [int(member) for process in self.alive for member in ended(process.worker)]
        others = {page: times for page, times in self.fetched.items() if page not in pages}
        self.fetched = Counter([page for page in ended_ones if page in pages]) + Counter(others)
        return {*ended_ones}

    # The crawl.

    def start(self, slot: int, *, flush: bool = False, is_last: bool = False) -> None:
        """Start a process."""
        process = Process(self, slot, flush=flush, is_last=is_last)
        self.log(f"starts{' and flushes' * flush}{' as the last one' * is_last}", process.name)
        self.processes.append(process)
        self.witnesses += [process] if self._is_found_later else []

    def run(self) -> Outcome:
        """Run the crawl to its end, and check it."""
        for slot in range(len(self.site.roots)):
            self.hub.at(self.chance.random() * self.plan.stagger, lambda slot=slot: self.start(slot))  # type: ignore[misc]
        for fault in self.plan.faults:
            self.hub.at(fault.at, lambda fault=fault: self._happen(fault))  # type: ignore[misc]
        self.hub.at(1.0, self._watch)
        try:
            if self.hub.run(_LIMIT_SECONDS, lambda: self._has_ended):
                checks.check_end(self)
            else:
                alive = ", ".join(f"{process.name} ({process.worker.phase.value})" for process in self.alive)
                self.found("endless", f"not ended; alive: {alive}; left: {self.places.left_keys()}")
        except BusyLoopError as error:
            self.found("busy loop", str(error))
        finally:
            for process in self.processes:
                process.is_dead = True
            self.hub.end()
        return self.outcome

    def _watch(self) -> None:
        """Check for the end; start one more worker for remaining requests."""
        checks.check_consistency(self)
        self._amid = self._amid if self.alive else []
        is_over = self.hub.now > max(self.plan.end_of_faults, self.plan.stagger) and not self._pending
        if is_over and not self.alive:
            spider = self._left_spider()
            if spider is None or self._late_starts >= _MAX_LATE_STARTS:
                self._has_ended = True
                return
            self._late_starts += 1
            self.start(spider * self.plan.workers + self.chance.randrange(self.plan.workers), is_last=True)
        self.hub.after(1.0, self._watch)

    def _left_spider(self) -> int | None:
        """Return the spider that has to start again, or None."""
        for spider in range(self.plan.spiders):
            last = [process.how for process in self.processes if process.spider == spider][-1]
            for queue, name in keys_of(spider, self.plan.partitions):
                keys = QueueKeys(queue)
                is_used = self.places.call("HEXISTS", name, f"queue:{keys.queue}")
                is_left = is_used or self.places.call("EXISTS", keys.queue, keys.crawl, keys.departed)
                if is_left or last in ("killed", "gave up"):
                    return spider
        return None

    # Faults.

    def _happen(self, fault: Fault, process: Process | None = None) -> None:
        if fault.is_amid and process is None:
            self._amid.append(fault)
            return
        self.log(f"FAULT {fault}")
        chance = Random(fault.number)
        if fault.kind in self.server.until:
            self.server.until[fault.kind] = max(self.server.until[fault.kind], self.hub.now + fault.seconds)
        elif fault.kind == "snapshot":
            self._snapshots[fault.number] = self.server.data.copy()
        elif fault.kind == "flush":
            self.start(0, flush=True)
        elif fault.kind == "absence":
            self._pending += 1
            processes, is_kill = self.alive, chance.random() < 0.5
            for each in processes:
                (self._kill if is_kill else Process.terminate)(each)
            self._lose_one(processes, fault, chance)
        elif fault.kind in ("flushall", "rollback", "rollback and kill"):
            if fault.kind == "rollback and kill" and self.alive:
                self._kill(process or chance.choice(self.alive))
            earlier = self._snapshots.get(fault.number)
            if fault.kind == "flushall" or earlier is not None:
                data = ScriptServer() if earlier is None else earlier.copy()
                is_one = fault.kind == "rollback and kill" or chance.random() < 0.5
                if earlier is not None and self.plan.partitions > 1 and is_one:
                    self._keep_others(data, chance.randrange(self.plan.partitions))
                self.server.restart(data)
                self._note_loss("flushall" if earlier is None else "rollback")
        elif fault.kind == "evict":
            self._evict(chance)
        elif self.alive:
            self._strike(process or chance.choice(self.alive), fault, chance)

    def _lose_one(self, processes: list[Process], fault: Fault, chance: Random) -> None:
        """When no process is left, have one partition lose its data or go back in time. Then start them again."""
        if self.alive:
            self.hub.after(0.1, lambda: self._lose_one(processes, fault, chance))
            return
        earlier = self._snapshots.get(fault.number) if chance.random() < 0.5 else None
        data = ScriptServer() if earlier is None else earlier.copy()
        if self.plan.partitions > 1:
            self._keep_others(data, chance.randrange(self.plan.partitions))
            self._is_found_later = True
        self.server.restart(data)
        self._note_loss("rollback" if self.plan.partitions > 1 else "flushall")
        self._pending += len(processes) - 1
        for each in processes:
            self.hub.after(chance.choice([0, 0.5, 5]), lambda each=each: self._replace(each))  # type: ignore[misc]

    def _keep_others(self, data: ScriptServer, index: int) -> None:
        """Change an earlier server so that only one partition goes back in time."""
        names = [name for keys in self.places.keys[index :: self.plan.partitions] for name in keys]
        beginnings = tuple(f"{{{name}}}".encode() for name in names)
        present = self.server.data.copy()
        for key in {*data._values, *present._values}:
            if key.decode() not in names and not key.startswith(beginnings):
                data.call("DEL", key)
                if key in present._values:
                    data._values[key] = present._values[key]
                if key in present._expiries:
                    data._expiries[key] = present._expiries[key]

    def _strike(self, process: Process, fault: Fault, chance: Random) -> None:
        self.log(f"{fault}", process.name)
        if fault.kind == "stop":
            process.stop(fault.seconds)
            return
        if fault.kind == "term":
            process.terminate()
        else:
            self._kill(process)
        if fault.kind != "kill for good":
            self._pending += 1
            self.hub.after(chance.choice([1, 5, 20]), lambda: self._replace(process))

    def _kill(self, process: Process) -> None:
        self._note_interrupted(process)
        process.exit("killed")

    def _replace(self, process: Process) -> None:
        self._pending -= 1
        self.start(process.slot)

    def _evict(self, chance: Random) -> None:
        """Delete one key of a kind that there is, or a queue with its crawl."""
        names = [key.decode() for key in self.server.data._values]
        groups = [[name for name in names if _is_of(name, kind)] for kind in EVICTIONS]
        kind, group = chance.choice([each for each in zip(EVICTIONS, groups, strict=True) if each[1]] or [("", [""])])
        name = chance.choice(group)
        self.log(f"evicted: {name}")
        self.places.call("DEL", name)
        self.has_evicted = True
        self._note_loss(kind)


def _is_of(name: str, kind: str) -> bool:
    if kind == "shard:":
        return name.startswith("{filter")
    whole = re.sub(r":\d+$", "", name)  # without the number of a partition
    return f":{kind}" in name if kind.endswith(":") else whole.endswith(kind)


def simulate(plan: Plan, worker_type: type[AnyWorker] = Worker, wrong: dict[str, str] | None = None) -> Outcome:
    """Run a crawl and return its outcome, perhaps with a wrong worker or wrong scripts."""
    return World(plan, worker_type, wrong or {}).run()


def finders(mistake: Mistake, seeds: Iterable[int]) -> Iterator[int]:
    """Yield the seeds whose crawls have a problem with a wrong design, and none with the right one."""
    assert mistake.crawl is not None
    for seed in seeds:
        plan = plan_for(mistake.crawl[0], seed)
        if simulate(plan, mistake.worker, mistake.wrong).problems and not simulate(plan).problems:
            yield seed
