"""A simulated process: a real worker with its heartbeat, and a small engine that crawls the site."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.heartbeat import Heartbeat
from scrapy_bloom.queue.keys import partition_keys
from scrapy_bloom.queue.messages import Entry, Offer, Outcome, Received, Terms
from scrapy_bloom.queue.queue import Queue
from scrapy_bloom.queue.request_queue import Sender
from scrapy_bloom.queue.worker import Worker
from scrapy_bloom.transport.failures import FAULTS
from tests.simulation.clock import once
from tests.simulation.server import Client, SimulatedQueue

FILTER = "filter"
QUEUES = ("queue", "other-queue")
# Reasons of a rejoin that tell of a loss.
_TELLING = ("gone", "new", "behind", "filter", "leases")
# Seconds until an idle worker asks again, and after a lost reply.
_PAUSES = (0.1, 1.0)
# Seconds between two syncs at most.
_TICK_SECONDS = 0.25
# Seconds in which a closing process tries to leave.
_LAST_TRY_SECONDS = 3.0
_sizes: dict[int, str] = {}
T = TypeVar("T")


def keys_of(spider: int, partitions: int) -> list[tuple[str, str]]:
    """Return the keys of a spider's queue and its filter in each partition."""
    return partition_keys(QUEUES[spider], FILTER, partitions)


def page_of(member: bytes) -> int:
    """Return the page of a request; a local one has a number behind it."""
    return int(member.split(b" ")[0])


class Process:
    """A process of a world's crawl.

    Attributes:
        slot: its place among the processes, which its replacement takes.
        how: the end: finished, stopped, gave up, killed, or crashed.
        answers: the records and the taken pages in the replies on their way, by their queues.
        requeued: pages that it has queued again.
        links_of_local: pages that local ones of this process led to.
    """

    def __init__(self, world: Any, slot: int, *, flush: bool = False, is_last: bool = False) -> None:
        plan, chance = world.plan, world.chance
        self.world, self.slot = world, slot
        self.spider = slot // plan.workers
        self.name = f"w{len(world.processes)}"
        self.is_dead = False
        self.stopped_until = 0.0
        self.how = ""
        self.answers: dict[str, tuple[bytes, set[int]]] = {}
        self.requeued: set[int] = set()
        self.links_of_local: set[int] = set()
        self._begun: set[bytes] = set()
        self._given_back: set[bytes] = set()
        self._mode = "finished" if is_last or not plan.persists else "keep"
        self._slowness = chance.choice([1.0, plan.spread])
        self._inbox: deque[Callable[[], object]] = deque()
        self._is_waiting = False
        self._due: float | None = None
        self._next_poll, self._pause = 0.0, _PAUSES[0]
        self._closes_until = 0.0
        self._number = 0
        self._losses = [0] * plan.partitions
        terms = Terms(
            plan.lease,
            f"spider {self.spider}",
            self,
            self.fingerprint_of,
            queues=plan.partitions,
            batch=plan.batch,
            max_deaths=plan.max_deaths,
            is_shared=plan.spiders > 1,
        )
        lines = [Queue(terms, flush=flush) for _ in range(plan.partitions)]
        for line in lines:
            line._max_bytes = plan.max_bytes
        self.worker = Worker(lines, plan.cache)
        self._queues = self._connect()
        self._sender = Sender(self.name, self.worker, self._queues, self._note, world.runtime)
        self._heartbeat = Heartbeat(self._connect(), self.name, plan.lease, plan.max_deaths, world.runtime)
        world.hub.spawn(self, self._main)

    def _connect(self) -> list[SimulatedQueue]:
        world = self.world
        keys = keys_of(self.spider, world.plan.partitions)
        return [SimulatedQueue(Client(world.server, self._slowness, world.executed), *each) for each in keys]

    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        """Return a filter whose first layer is small, as a worker's source."""
        plan, bits = self.world.plan, self.world.chance.getrandbits
        text = ""
        if sizes:
            parameters = FilterParameters(plan.capacity, 1e-12, 2)
            text = _sizes.get(plan.capacity) or "".join("{} {} {} {};".format(*size) for size in parameters.sizes())
            _sizes[plan.capacity] = text
        return str(plan.capacity), f"{bits(64):016x}", f"{bits(128):032x}", round(plan.ttl * 1000), text

    hasher = FilterParameters(fingerprint="scrapy-redis").hasher

    def fingerprint_of(self, member: bytes) -> bytes | None:
        """Return the fingerprint of a request."""
        return None if page_of(member) in self.world.site.unfiltered else member

    # A process.

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Have the reactor call a function."""
        hub = self.world.hub

        def fire() -> None:
            if self.is_dead:
                return
            if hub.now < self.stopped_until:
                hub.at(self.stopped_until, fire)
                return
            self._inbox.append(call)
            if self._is_waiting:
                self._is_waiting = False
                self._wake()

        hub.after(seconds, fire)

    def crash(self, error: Exception) -> None:
        """End by an uncaught error."""
        self.world.found("exception", f"{self.name}: {type(error).__name__}: {error}", error)
        self.exit("crashed")

    def exit(self, how: str) -> None:
        """End the process: no code of it runs any more."""
        if self.is_dead:
            return
        self.world.log(f"ends: {how}", self.name)
        self.how, self.is_dead = how, True
        if how in ("killed", "gave up", "crashed"):
            self.world.note_death(self)

    def stop(self, seconds: float) -> None:
        """Stop as by SIGSTOP, or as by a callback that holds the GIL."""
        self.stopped_until = max(self.stopped_until, self.world.hub.now + seconds)

    def terminate(self) -> None:
        """End as by SIGTERM."""
        if self._mode == "finished":
            self._mode = "keep" if self.world.plan.spiders > 1 else "stopped"
        self.call_later(0, self._close)

    def _main(self) -> None:
        for page in self.world.site.roots[self.slot]:
            self._offer(page, 0.0, is_start=True)
        self.world.found_pages.update(self.world.site.roots[self.slot])
        while not self.worker.is_joined:
            self._retry(self._sender.step)
        self._heartbeat.start()
        self._take_up_failed()
        self.call_later(0, self._work)
        while not self.is_dead:
            while self._inbox and not self.is_dead:
                self._inbox.popleft()()
            self._wake = once(self.world.hub)
            self._is_waiting = True
            self.world.hub.block()

    def _retry(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except FAULTS as error:
                self._note_fault(error)
                self.world.hub.after(self.world.chance.uniform(*_PAUSES), once(self.world.hub))
                self.world.hub.block()

    def _note_fault(self, error: Exception) -> None:
        self.world.log(f"{error}", self.name)
        if not isinstance(error, self.world.expected_errors):
            raise error

    def _take_up_failed(self) -> None:
        for line, queue in zip(self.worker.queues, self._queues, strict=True):
            _, kept = self._retry(queue.read_failed)
            again = [
                (line.item_of(self.fingerprint_of(each.member)), each.member)
                for run, each in kept
                if run != line.crawl.run
            ]
            self._retry(partial(queue.requeue, line.crawl.filter_id, again))

    # The scheduler.

    def _work(self) -> None:
        """Execute calls until there are none, or one fails."""
        plan, hub, worker = self.world.plan, self.world.hub, self.worker
        self._heartbeat.tick()
        while not worker.has_left:
            while len(worker.running) < plan.concurrency and (entry := worker.take()) is not None:
                self._begin(entry)
            needs_more = len(worker.running) < plan.concurrency and not worker.ready
            want = plan.prefetch if needs_more and (worker.urgency < 1e9 or hub.now >= self._next_poll) else 0
            if worker._must_rejoin:
                self.world.note_requeue(self)
            try:
                has_called = self._sender.step(want)
            except FAULTS as error:
                self._note_fault(error)
                self._work_later(self.world.chance.uniform(*_PAUSES))
                if self._closes_until and hub.now > self._closes_until:
                    self.exit("gave up")
                return
            if not has_called:
                if not (worker.is_idle and (worker.may_finish or worker.is_stopping)):
                    break
                self._heartbeat.stop()
                worker.leave(self._mode)
            elif want and worker.is_joined:
                self._pause = _PAUSES[0] if worker.ready else min(2 * self._pause, _PAUSES[1])
                self._next_poll = hub.now + self._pause
        if worker.has_left:
            self.exit("stopped" if worker.is_stopping else "finished")
        else:
            self._work_later(min(_TICK_SECONDS, self._next_poll - hub.now if needs_more else _TICK_SECONDS))

    def _work_later(self, seconds: float) -> None:
        """Have the reactor work after some seconds, unless it will do so before."""
        due = self.world.hub.now + max(seconds, 0.001)
        if self._due is None or due < self._due:
            self._due = due
            self.call_later(due - self.world.hub.now, lambda: self._work_if(due))

    def _work_if(self, due: float) -> None:
        if self._due == due:
            self._due = None
            self._work()

    def _note(self, index: int, received: Received) -> None:
        self.answers.pop(self._queues[index].keys.queue, None)
        losses = self.worker.queues[index].news.losses
        if received.rejoin:
            self.world.note_rejoin(self, received.rejoin, is_telling=received.rejoin in _TELLING)
        if losses > self._losses[index]:
            self.world.note_report(self, f"{losses} losses")
        self._losses[index] = losses

    def _close(self) -> None:
        self.world.excuse_local(self)
        self.worker.stop()
        # Some of the pages on their way wait for their turn, as with a long delay.
        waiting = {each for each in self.worker.running if page_of(each) % 2} - self._begun - self.worker.local.keys()
        for member in waiting:
            self.worker.give_back(member)
        self._given_back |= waiting
        self._closes_until = self.world.hub.now + 4 * self.world.plan.download + _LAST_TRY_SECONDS
        self._work()

    # The engine.

    def _offer(self, page: int, score: float, *, is_start: bool = False) -> None:
        member = b"%d" % page
        offer = Offer(score, member, self.fingerprint_of(member))
        if offer.fingerprint and self.worker.is_repeat(offer.fingerprint):
            return
        if page in self.world.site.local:
            self._number += 1
            offer = offer._replace(member=b"%d %d" % (page, self._number), request=page)
        self.worker.offer(offer, is_start=is_start)
        if self.worker.is_stopping:
            self.world.excuse_local(self)

    def _begin(self, entry: Entry) -> None:
        self.world.log(f"fetch {page_of(entry.member)}", self.name)
        seconds = self.world.chance.expovariate(1 / self.world.plan.download)
        self.call_later(seconds, lambda: self._parse(entry.member, 0))

    def _parse(self, member: bytes, done: int) -> None:
        """Yield some links, and later the rest."""
        world, page = self.world, page_of(member)
        if member in self._given_back:
            self.worker.finish(member)
            self._work_later(0)
            return
        self._begun.add(member)
        if page in world.site.poison:
            self.exit("killed")
            world.hub.after(1.0, lambda: world.start(self.slot))
            return
        links = world.site.links[page]
        upto = done + world.chance.choice([1, 1, 3, 100])
        for target, score in links[done:upto]:
            world.note_link(target)
            self.links_of_local |= {target} if member in self.worker.local else set()
            self._offer(target, score)
        if upto < len(links):
            self.call_later(world.chance.expovariate(1 / world.plan.callback), lambda: self._parse(member, upto))
        else:
            has_failed = page in world.site.failing and page not in world.failed
            (world.note_failure if has_failed else world.note_fetch)(self, page)
            self.worker.finish(member, Outcome.FAILED if has_failed else Outcome.DONE)
            self._begun.discard(member)
        self._work_later(0)
