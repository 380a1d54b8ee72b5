"""A simulated process: a real worker with its heartbeat, and a small engine that crawls the site."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.heartbeat import Heartbeat
from scrapy_bloom.queue.keys import partition_keys
from scrapy_bloom.queue.values import Call, Entry, IndexedCall, Offer, Outcome, Phase
from scrapy_bloom.queue.worker import Worker
from scrapy_bloom.transport.failures import FAULTS
from tests.simulation.clock import once
from tests.simulation.server import Client, SimulatedQueue
from tests.support.running import running

FILTER = "filter"
QUEUES = ("queue", "other-queue")


def keys_of(spider: int, partitions: int) -> list[tuple[str, str]]:
    """Return the keys of a spider's queue and its filter in each partition."""
    return partition_keys(QUEUES[spider], FILTER, partitions)


# Seconds between two questions whether the queue is still empty, and after a lost reply.
_PAUSES = (0.1, 1.0)
# Seconds in which a closing process tries to leave.
_LAST_TRY_SECONDS = 3.0
_sizes: dict[int, str] = {}


class Process:
    """A process of a world's crawl.

    Attributes:
        slot: its place among the processes, which its replacement takes.
        how: the end: finished, stopped, gave up, killed, or crashed.
        awaited, is_executed: the call whose reply it awaits, and whether the server has executed that.
        partition: the partition of that call.
    """

    def __init__(self, world: Any, slot: int, *, flush: bool = False, is_last: bool = False) -> None:
        plan, chance = world.plan, world.chance
        self.world, self.slot = world, slot
        self.spider = slot // plan.workers
        self.name = f"w{len(world.processes)}"
        self.is_dead = False
        self.stopped_until = 0.0
        self.how = ""
        self._mode = "finished" if is_last or not plan.persists else "keep"
        self._slowness = chance.choice([1.0, plan.spread])
        self._inbox: deque[Callable[[], object]] = deque()
        self._is_waiting = False
        self._due: float | None = None
        self._next_poll, self._pause = 0.0, _PAUSES[0]
        self._closes_until = 0.0
        self.awaited: Call | None = None
        self.is_executed, self.partition = False, 0
        parts = [self._new_part(flush) for _ in range(plan.partitions)]
        self.worker = parts[0] if len(parts) == 1 else world.whole_type(parts)
        self._queues, beating = self._connect(), self._connect()
        self._heartbeat = Heartbeat(beating, self.name, plan.lease, plan.max_deliveries, world.runtime)
        world.hub.spawn(self, self._main)

    def _new_part(self, flush: bool) -> Worker:
        plan, world = self.world.plan, self.world
        part: Worker = world.worker_type(
            self.name,
            plan.lease,
            f"spider {self.spider}",
            self,
            self.fingerprint_of,
            cache_size=plan.cache,
            batch=plan.batch,
            max_deliveries=plan.max_deliveries,
            flush=flush,
            is_shared=plan.spiders > 1,
        )
        part._max_bytes = plan.max_bytes
        return part

    def _connect(self) -> list[SimulatedQueue]:
        client = Client(self.world.server, self._slowness, self.world.executed)
        return [SimulatedQueue(client, *keys) for keys in keys_of(self.spider, self.world.plan.partitions)]

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
        return None if int(member) in self.world.site.unfiltered else member

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
        if how in ("killed", "gave up", "crashed"):
            self.world.note_death(self)
        self.how, self.is_dead = how, True

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
        while self.worker.phase is not Phase.WORK:
            if not self._execute(self.worker.next_calls(0)):
                self._sleep(self.world.chance.uniform(*_PAUSES))
        self._heartbeat.start()
        self._take_up_failed()
        self.call_later(0, self._work)
        while not self.is_dead:
            while self._inbox and not self.is_dead:
                self._inbox.popleft()()
            self._wake = once(self.world.hub)
            self._is_waiting = True
            self.world.hub.block()

    def _sleep(self, seconds: float) -> None:
        self.world.hub.after(seconds, once(self.world.hub))
        self.world.hub.block()

    def _take_up_failed(self) -> None:
        for index, queue in enumerate(self._queues):
            while True:
                try:
                    _, kept = queue.read_failed()
                    break
                except FAULTS:
                    self._sleep(_PAUSES[1])
            self.worker.queue_again((offer for run, offer in kept if run != self.worker.run), index)

    # The scheduler.

    def _work(self) -> None:
        """Execute calls until there are none, or one fails."""
        hub, worker = self.world.hub, self.worker
        for index, others in self._heartbeat.take_others():
            worker.parts[index].note_others(others)
        while worker.phase is not Phase.LEFT:
            while len(running(worker)) < self.world.plan.concurrency and (entry := worker.take()) is not None:
                self._begin(entry)
            has_unsent = any(part.outbox for part in worker.parts)
            needs_more = len(running(worker)) < self.world.plan.concurrency and worker.next_score == math.inf
            want = self.world.plan.prefetch if needs_more and (has_unsent or hub.now >= self._next_poll) else 0
            calls = worker.next_calls(want)
            if not calls:
                if not self._may_leave():
                    break
                self._heartbeat.stop()
                worker.leave(self._mode)
            elif not self._execute(calls):
                self._work_later(self.world.chance.uniform(*_PAUSES))
                if self._closes_until and hub.now > self._closes_until:
                    self.exit("gave up")
                return
            elif calls[0][1].script == "exchange" and want:
                self._pause = _PAUSES[0] if worker.next_score < math.inf else min(2 * self._pause, _PAUSES[1])
                self._next_poll = hub.now + self._pause
        if worker.phase is Phase.LEFT:
            self.exit("stopped" if worker.is_stopping else "finished")
        else:
            self._work_later(self._next_poll - hub.now if needs_more else _PAUSES[1])

    def _may_leave(self) -> bool:
        worker = self.worker
        return worker.is_idle and (worker.may_finish or worker.is_stopping)

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

    def _execute(self, calls: list[IndexedCall]) -> bool:
        """Execute calls, one after another; return whether there is a reply to each."""
        has_all = True
        for index, call in calls:
            self.awaited, self.is_executed, self.partition = call, False, index
            try:
                reply = self._queues[index].send(self.name, call)
            except FAULTS as error:
                self.world.log(f"{call.script}: {error}", self.name)
                if not isinstance(error, self.world.expected_errors):
                    raise
                self.worker.lose(index)
                has_all = False
            else:
                self._receive(reply, index)
            self.awaited = None
        return has_all

    def _receive(self, reply: Any, index: int) -> None:
        self.worker.receive(reply, index)
        part = self.worker.parts[index]
        for trouble in part.troubles:
            self.world.note_report(self, trouble.value)
        part.troubles.clear()
        if part.losses:
            self.world.note_report(self, f"{part.losses} losses")

    def _close(self) -> None:
        self.worker.stop()
        self._closes_until = self.world.hub.now + 4 * self.world.plan.download + _LAST_TRY_SECONDS
        self._work()

    # The engine.

    def _offer(self, page: int, score: float, *, is_start: bool = False) -> None:
        member = b"%d" % page
        offer = Offer(score, member, self.fingerprint_of(member))
        if page in self.world.site.local:
            while any(offer.member in part.local or offer.member in part.running for part in self.worker.parts):
                offer = offer._replace(member=b"0" + offer.member)
            offer = offer._replace(request=page)
        self.worker.offer(offer, is_start=is_start)

    def _begin(self, entry: Entry) -> None:
        self.world.log(f"fetch {int(entry.member)}", self.name)
        seconds = self.world.chance.expovariate(1 / self.world.plan.download)
        self.call_later(seconds, lambda: self._parse(entry.member, 0))

    def _parse(self, member: bytes, done: int) -> None:
        """Yield some links, and later the rest."""
        world, page = self.world, int(member)
        if page in world.site.poison:
            self.exit("killed")
            world.hub.after(1.0, lambda: world.start(self.slot))
            return
        links = world.site.links[page]
        upto = done + world.chance.choice([1, 1, 3, 100])
        for target, score in links[done:upto]:
            world.note_link(target)
            self._offer(target, score)
        if upto < len(links):
            self.call_later(world.chance.expovariate(1 / world.plan.callback), lambda: self._parse(member, upto))
        else:
            has_failed = page in world.site.failing and page not in world.failed
            (world.note_failure if has_failed else world.note_fetch)(self, page)
            self.worker.finish(member, Outcome.FAILED if has_failed else Outcome.DONE)
        self._work_later(0)
