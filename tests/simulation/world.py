"""A simulated crawl by its plan, and its expected outcome.

Pages are numbers. A page is *found* when a callback yields a link to it, and *fetched* when its callback has yielded
all links. A found page must be fetched, unless it is *exempt*: only the server had it, and lost it. Then a worker that
was alive must report a loss. A flush, or the deletion of a finished crawl, begins a new *generation*.
"""

import math
import re
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

from redis import exceptions

from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Call, Others
from scrapy_bloom.queue.worker import SETTLING
from tests.simulation import checks
from tests.simulation.clock import BusyLoopError, Hub, SimulatedRuntime
from tests.simulation.mistakes import Mistake
from tests.simulation.places import Places, pages_of
from tests.simulation.plan import EVICTIONS, Fault, Plan, Site, plan_for
from tests.simulation.process import QUEUES, Process, keys_of
from tests.simulation.server import Server
from tests.support.script_server import ScriptServer

# Virtual seconds after which a crawl counts as endless.
_LIMIT_SECONDS = 600.0
# The server's clock counts milliseconds.
_ROUNDED = 0.002
# Workers started one after another at the end, for the remaining requests.
_MAX_LATE_STARTS = 6
# Losses that leave the requests of the queue, and its filter.
_HARMLESS = ("filter", "shard:", "workers", "deaths", "crawl")


@dataclass
class Outcome:
    """The outcome of a crawl.

    Attributes:
        log: lines with their moments, processes and texts.
        once, again: fetches of pages, and further ones of a page in the same crawl.
    """

    plan: Plan
    problems: list[str] = field(default_factory=list)
    log: list[tuple[float, str, str]] = field(default_factory=list)
    once: int = 0
    again: int = 0

    def __str__(self) -> str:
        lines = [f"{at:8.3f} {who:>5} {text}" for at, who, text in self.log]
        return "\n".join([f"{self.plan}", *lines, *self.problems])


class World:
    """The processes of a crawl, their server, and the observations of both.

    Attributes:
        found_pages, exempt, failed: pages, see above; `failed` ones have failed once.
        excused: pages that a process ran from its memory when it ended, and what it had found by these.
        fetched: how often each page was fetched in this generation.
        hits: faults that may cost a fetch of any page.
        again: how often a page was in the hands of a worker that died, or joined again.
        interrupted: how often a process was killed or taken for dead while it had leased a page.
    """

    expected_errors = (exceptions.ConnectionError, exceptions.TimeoutError)

    def __init__(self, plan: Plan, wrong: dict[str, str]) -> None:
        self.plan = plan
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
        self.excused: set[int] = set()
        self.failed: set[int] = set()
        self.fetched: Counter[int] = Counter()
        self.hits = 0
        self.again: Counter[int] = Counter()
        self.interrupted: Counter[int] = Counter()
        # Processes that were alive when the server lost requests, and whether one has reported a loss since.
        self.witnesses: list[Process] = []
        self.is_reported = False
        self.has_lost = self.has_evicted = self._is_found_later = False
        self._linked: Counter[int] = Counter()
        # The queue and the crawl of each join.
        self._crawls: set[tuple[str, bytes]] = set()
        # The further queues of a crawl that was deleted in the first one.
        self._ended: set[str] = set()
        # The crawls of workers that have synced, and are not presumed dead.
        self._works: dict[str, bytes] = {}
        # When each worker was executed last, and when it came back after more than its lease.
        self._heard: dict[tuple[str, str], float] = {}
        self._returned: dict[tuple[str, str], float] = {}
        # When a sync was executed last, and one of a stopping worker.
        self._synced = self._stopped = -math.inf
        self._amid: list[Fault] = []
        self._snapshots: dict[int, tuple[float, ScriptServer]] = {}
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
        self.is_reported = True
        self.log(f"reports: {text}", process.name)

    def note_rejoin(self, process: Process, reason: str, *, is_telling: bool) -> None:
        """Note that a worker must join again."""
        self.log(f"joins again: {reason}", process.name)
        self.is_reported |= is_telling

    def note_requeue(self, process: Process) -> None:
        """Note that a worker is about to queue all again that it holds."""
        held, local = _held_by(process), {page for page in self.site.local if b"%d" % page in process.worker._offered}
        process.requeued |= held
        # Its leases wait again with the join, and may be taken before it queues them once more.
        self.again.update([*held, *held, *local])

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
        times, hits = self.fetched[page], self.hits + self.again[page]
        self.log(f"fetched {page}", process.name)
        self.outcome.once += times == 1
        self.outcome.again += times > 1
        if page in self.site.unfiltered and times > self._linked[page] + hits:
            self.found("fetched again", f"{page} bypasses the filter and was fetched {times} times")
        if page in self.site.unfiltered or self.plan.ttl:
            return
        if times > 1 + hits + (page in self.failed):
            self.found("fetched again", f"{page} was fetched {times} times, with {self.hits} faults, and {hits} in all")

    def executed(self, worker: str, call: Call, queue: str, reply: Any, arrives: bool) -> None:
        """Note a call that the server has executed."""
        name = call.script
        self.log(f"{queue} {name} {_shown(call.arguments)}: {_shown(reply)}", f"{worker} >")
        process = next(each for each in self.processes if each.name == worker)
        match name, reply:
            case "join", [b"OK", crawl, _, origin, *_, news]:
                self._note_contact(worker, queue)
                if call.arguments[5]:  # a new registration
                    self._returned.pop((worker, queue), None)
                self._note_join(queue, crawl, origin)
                self._note_emptied(queue, *map(int, news[2:4]))
            case "sync", [b"OK", record, taken, _, _, _, found]:
                if arrives:
                    process.answers[queue] = record, pages_of(taken[1::2])
                self._note_contact(worker, queue)
                self._note_sync(process, call, queue, taken)
                self._note_others(worker, queue, Others.of(found))
                while (taken or any(call.arguments[11:16])) and self._amid and not process.is_dead:
                    self._happen(self._amid.pop(), process)
            case "heartbeat", [*found] if found:
                self._note_contact(worker, queue)
                self._note_others(worker, queue, Others.of(found))
            case "leave", [is_gone, _, _, found] if found:
                self._note_contact(worker, queue)
                self._works.pop(worker, None)
                self._note_others(worker, queue, Others.of(found))
                if is_gone:
                    self._note_deletion(process, queue, *call.arguments[:2])

    def _note_contact(self, worker: str, queue: str) -> None:
        at = worker, queue
        if self.hub.now - self._heard.get(at, self.hub.now) > self.plan.lease + _ROUNDED:
            self._returned[at] = self.hub.now
        self._heard[at] = self.hub.now

    def _note_sync(self, process: Process, call: Call, queue: str, taken: list[bytes]) -> None:
        self._synced = self.hub.now
        if process.worker.is_stopping:
            self._stopped = self.hub.now
        if process.is_dead:  # a late call
            self.interrupted.update(pages_of(taken[1::2]))
        # A join of the first partition alone makes no worker that others wait for.
        if queue in QUEUES:
            self._works[process.name] = call.arguments[2]

    def _note_others(self, worker: str, queue: str, others: Others | None) -> None:
        for dead in others.dead if others else ():
            self._works.pop(dead.name, None)
            if self.hub.now - self._returned.get((worker, queue), -math.inf) < self.plan.lease - _ROUNDED:
                self.found("away", f"{worker} was away, and presumes {dead.name} dead")
            for alive in (each for each in self.alive if each.name == dead.name):
                pages = _held_by(alive).union(*(taken for _, taken in alive.answers.values()))
                self.again.update(pages)
                self.interrupted.update(pages)
                self.log(f"presumes {alive.name} dead, which is alive", worker)

    def _keys_of(self, process: Process) -> list[tuple[str, str]]:
        return keys_of(process.spider, self.plan.partitions)

    # Where requests are.

    @property
    def alive(self) -> list[Process]:
        """The running processes."""
        return [process for process in self.processes if not process.is_dead]

    # The effects of the faults.

    def _note_loss(
        self, kind: str, emptied: Collection[str] = (), *, leads_on: bool = False, is_told: bool = True
    ) -> None:
        """Exempt the pages of the server alone, which has just lost something.

        Args:
            kind: what it has lost.
            emptied: the queues that the workers will empty.
            leads_on: what is left leads to all that it had led to before.
            is_told: a worker must report this.
        """
        keeps = self.places.held_by_all() | self.places.stored(emptied)
        if kind in ("flushall", "rollback"):  # the workers offer forgotten start requests again
            starts = (each.worker._starts for each in self.alive if not each.worker.is_stopping)
            keeps |= pages_of(offer.member for offers in starts for offer in offers)
        if kind in _HARMLESS and not emptied:
            keeps |= self.found_pages - self.site.closure(self.places.orphaned())
        keeps = self.site.closure(keeps) if leads_on else keeps
        gone = self.found_pages - set(self.fetched) - keeps - self.exempt
        self.exempt |= gone
        self.log(f"lost: {sorted(gone)}" if gone else "lost no page of its own")
        if gone and is_told:
            self.witnesses += self.alive
            self.is_reported = False
        elif gone:
            self.excused |= gone
        self.has_lost = True
        self._is_found_later |= kind == "crawl"
        self.hits += 1
        self._returned.clear()

    def excuse_local(self, process: Process) -> None:
        """Excuse pages that a process runs from its memory, and that it drops when it stops."""
        worker = process.worker
        self.excused |= pages_of(entry.member for entry, _ in worker.ready if entry.member in worker.local)
        self.excused |= pages_of(o.member for line in worker.queues for _, o in line.outbox if o.request is not None)

    def note_death(self, process: Process) -> None:
        """Note the death of a process: its start pages wait for another start."""
        keys, lines = self._keys_of(process), process.worker.queues
        self.excuse_local(process)
        outbox = pages_of(offer.member for line in lines for _, offer in line.outbox)
        self.excused |= pages_of(process.worker.local) | outbox & process.links_of_local
        self.again.update(_held_by(process))
        self.interrupted.update(page for queue, _ in keys for page in self.places.leased(queue, process.name))
        gone = self.found_pages - set(self.fetched) - self.places.stored() - self.places.held_by_all()
        roots = gone & outbox & set(self.site.roots[process.slot])
        roots -= {page for page in roots if self.places.is_known(b"%d" % page)}
        self.found_pages -= roots
        if self.has_lost:  # some may be the links of pages that it had fetched, and would have fetched again
            self.exempt |= gone - roots

    def _note_join(self, queue: str, crawl: bytes, origin: bytes) -> None:
        """Note a flush, and the end of a crawl in a partition whose leave comes too late to delete it."""
        if (queue, crawl) not in self._crawls and (origin == b"flush" or queue in self._ended):
            self.log(f"{'FLUSHED' if origin == b'flush' else 'REPLACED'} {queue}")
            self.hits += origin == b"flush"
            self._begin_generation(queue)
        self._ended.discard(queue)
        self._crawls.add((queue, crawl))

    def _note_emptied(self, queue: str, lost: int, is_new: int) -> None:
        """Exempt the pages of a queue of an older crawl, which a join has emptied, and counted as lost.

        Workers queue there until they know of the loss, also what others would offer again.
        """
        if not is_new:
            return
        known = self.places.stored() | self.places.held_by_all()
        gone = (self.found_pages & self.places.in_partition(queue)) - set(self.fetched) - known - self.exempt
        if 0 < len(gone) <= lost:
            self.log(f"emptied: {sorted(gone)}")
            self.exempt |= gone

    def _note_deletion(self, process: Process, queue: str, crawl: bytes, mode: str) -> None:
        """Check the deletion of a crawl in a partition, of which the first one's comes first."""
        others = [other for other, _ in self._keys_of(process)][1:]
        self._ended = self._ended.union(others) if queue in QUEUES else self._ended - {queue}
        held = self.places.held_by_all(but=process) | self.places.stored()
        self.log(f"DELETED {queue}, held elsewhere: {sorted(held)}")
        working = [
            each.name
            for each in self.alive
            if each is not process and each.spider == process.spider and self._works.get(each.name) == crawl
        ]
        if working and not self.has_lost:
            self.found("deleted", f"{process.name} deletes {queue} although {', '.join(working)} work")
        left = self.found_pages - set(self.fetched) - self.exempt - self.excused - self.site.closure(held)
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
            and each.worker.is_joined
            and each.worker.queues[0].crawl.filter_id == process.worker.queues[0].crawl.filter_id  # it was not flushed
            and self.places.registrations(QUEUES[each.spider]).get(each.name)
        ]
        if using and not self.has_lost:
            self.found("filter deleted", f"{process.name} deletes the filter, which {', '.join(using)} use")
        self._begin_generation(queue, process)

    def _begin_generation(self, queue: str, deleting: Process | None = None) -> None:
        """Begin anew with those pages of a partition that the workers hold. No rollback crosses this moment."""
        checks.check_report(self, deleting)
        pages, held = self.places.in_partition(queue), self.places.held_by_all() | self.places.stored()
        self.found_pages -= pages - held - self._forget_fetches(pages)
        self.exempt -= pages
        self._snapshots.clear()

    def _forget_fetches(self, pages: set[int]) -> set[int]:
        """Forget the fetches of pages, and return the unacknowledged pages."""
        ended = {page for process in self.alive for line in process.worker.queues for page in pages_of(line.finished)}
        others = {page: times for page, times in self.fetched.items() if page not in pages}
        self.fetched = Counter(ended & pages) + Counter(others)
        return ended

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
                alive = {each.name: [line.phase.value for line in each.worker.queues] for each in self.alive}
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
                is_left = is_used or self.places.call("EXISTS", keys.queue, keys.crawl)
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
            self._snapshots[fault.number] = self.hub.now, self.server.data.copy()
        elif fault.kind == "flush":
            self.start(0, flush=True)
        elif fault.kind == "absence":
            self._pending += 1
            processes, is_kill = self.alive, chance.random() < 0.5
            for each in processes:
                each.exit("killed") if is_kill else each.terminate()
            self._lose_one(processes, fault, chance)
        elif fault.kind in ("flushall", "rollback", "rollback and kill"):
            if fault.kind == "rollback and kill" and self.alive:
                (process or chance.choice(self.alive)).exit("killed")
            if fault.kind == "flushall" or fault.number in self._snapshots:
                self._lose(fault, is_one=fault.kind == "rollback and kill" or chance.random() < 0.7, chance=chance)
        elif fault.kind == "evict":
            self._evict(chance)
        elif self.alive:
            self._strike(process or chance.choice(self.alive), fault, chance)

    def _lose_one(self, processes: list[Process], fault: Fault, chance: Random) -> None:
        """When no process is left, have one partition lose its data or go back in time. Then start them again."""
        if self.alive:
            self.hub.after(0.1, lambda: self._lose_one(processes, fault, chance))
            return
        if chance.random() < 0.5:
            self._snapshots.pop(fault.number, None)
        self._lose(fault, is_one=True, chance=chance)
        self._pending += len(processes) - 1
        for each in processes:
            self.hub.after(chance.choice([0, 0.5, 5]), lambda each=each: self._replace(each))  # type: ignore[misc]

    def _lose(self, fault: Fault, *, is_one: bool, chance: Random) -> None:
        """Let the server, or one partition, lose all data since its snapshot, or all."""
        at, data = self._snapshots.get(fault.number, (-math.inf, ScriptServer()))
        data = data.copy()
        is_one = is_one and self.plan.partitions > 1 and fault.kind != "flushall"
        index = chance.randrange(self.plan.partitions)
        if is_one:
            self._keep_others(data, index)
        self.server.restart(data)
        self.log(f"{f'partition {index}' if is_one else 'the server'} is that of {at:.3f}")
        emptied = self._emptied() if is_one else []
        # One partition may lose what it has executed in the last seconds. A stopping worker does not wait for that.
        leads_on = not is_one or (self._synced - at <= SETTLING and self._stopped <= at and not emptied)
        kind = "flushall" if at < 0 else "rollback"
        is_told = not is_one or any(self._can_tell(process, index) for process in self.alive)
        self._note_loss(kind, emptied, leads_on=leads_on, is_told=is_told)

    def _can_tell(self, process: Process, index: int) -> bool:
        """Return whether a worker knows of a call that a partition has forgotten."""
        queue, _ = keys_of(process.spider, self.plan.partitions)[index]
        return self.places.records(queue).get(process.name) != process.worker.queues[index]._steps.record

    def _emptied(self) -> list[str]:
        """Return the queues of another crawl than the first ones': the workers empty them."""
        found = []
        for spider in range(self.plan.spiders):
            queues = [queue for queue, _ in keys_of(spider, self.plan.partitions)]
            first, *others = (self.places.call("HGET", QueueKeys(queue).crawl, "id") for queue in queues)
            found += [queue for queue, id_ in zip(queues[1:], others, strict=True) if id_ not in (None, first)]
        return found

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
            process.exit("killed")
        if fault.kind != "kill for good":
            self._pending += 1
            self.hub.after(chance.choice([1, 5, 20]), lambda: self._replace(process))

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
        self._note_loss(kind, self._emptied())


def _is_of(name: str, kind: str) -> bool:
    if kind == "shard:":
        return name.startswith("{filter")
    whole = re.sub(r":\d+$", "", name)  # without the number of a partition
    return f":{kind}" in name if kind.endswith(":") else whole.endswith(kind)


def _held_by(process: Process) -> set[int]:
    """Return the pages that a worker has leased, or runs."""
    worker, lines = process.worker, process.worker.queues
    held = pages_of(entry.member for entry, _ in worker.ready) | pages_of(worker.running)
    return held.union(*(pages_of([*line.finished, *(entry.member for entry in line.requeued)]) for line in lines))


def _shown(value: Any) -> str:
    """Return arguments or a reply in short."""
    if isinstance(value, bytes):
        return value.decode() if value.isascii() and len(value) < 40 else f"<{len(value)}>"
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(map(_shown, value))}]"
    return str(value) if len(str(value)) < 40 else "..."


def simulate(plan: Plan, mistake: Mistake | None = None) -> Outcome:
    """Run a crawl and return its outcome, perhaps with a mistake."""
    with ExitStack() as stack:
        for name, value in mistake.patches.items() if mistake else ():
            stack.enter_context(patch(f"scrapy_bloom.queue.worker.{name}", value))
        return World(plan, mistake.wrong if mistake else {}).run()


def finders(mistake: Mistake, seeds: Iterable[int]) -> Iterator[int]:
    """Yield the seeds whose crawls have a problem with a mistake, and none without."""
    for seed in seeds:
        plan = plan_for(mistake.kind, seed)
        if simulate(plan, mistake).problems and not simulate(plan).problems:
            yield seed
