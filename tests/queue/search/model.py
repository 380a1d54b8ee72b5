"""Servers and processes by number, and one state under change."""

from typing import Any

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.messages import Offer, Terms
from scrapy_bloom.queue.queue import Queue
from scrapy_bloom.queue.worker import Worker
from tests.queue.search.normal import normalize
from tests.queue.search.world import (
    LEASE,
    Packet,
    Process,
    Scenario,
    Source,
    State,
    fingerprint,
    key,
    mask_of,
    pages_of,
    union,
)
from tests.support.script_server import ScriptServer


class Model:
    """Servers and processes by number, and the scripts.

    Args:
        scenario: the crawl and its faults.
        scripts: the text of each script, libraries included.
        worker, queue: the classes, or some with a mistake.
    """

    def __init__(
        self, scenario: Scenario, scripts: dict[str, str], worker: type[Worker] = Worker, queue: type[Queue] = Queue
    ) -> None:
        self.scenario, self.scripts = scenario, scripts
        self.source = Source()
        self.executed: dict[Any, tuple[ScriptServer, Any]] = {}
        self._worker, self._queue = worker, queue
        self._numbers: dict[Any, int] = {}
        self._things: list[Any] = []

    def server(self, number: int) -> ScriptServer:
        server: ScriptServer = self._things[number]
        return server

    def process(self, number: int) -> Process:
        process: Process = self._things[number]
        return process

    def packet(self, number: int | None) -> Packet | None:
        packet: Packet | None = None if number is None else self._things[number]
        return packet

    def number(self, thing: ScriptServer | Process | Packet) -> int:
        """Return the number of a thing, which must not change any more."""
        number = self._numbers.setdefault(thing if isinstance(thing, tuple) else thing.freeze(), len(self._things))
        if number == len(self._things):
            self._things.append(thing)
        return number

    def new_worker(self, *, flush: bool = False) -> Worker:
        s = self.scenario
        terms = Terms(
            LEASE / 1000,
            "spider",
            self.source,
            self.fingerprint_of,
            queues=s.parts,
            batch=s.batch,
            max_deaths=s.max_deaths,
            is_shared=bool(s.spider),
        )
        return self._worker([self._queue(terms, flush=flush) for _ in range(s.parts)])

    def fingerprint_of(self, member: bytes) -> bytes | None:
        return None if self.scenario.unfiltered >> int(member) & 1 else fingerprint(int(member))

    def offer(self, worker: Worker, page: int, *, is_start: bool = False) -> None:
        member = b"%d" % page
        offer = Offer(0.0, member, self.fingerprint_of(member))
        if self.scenario.local >> page & 1:
            names = {other.member for queue in worker.queues for _, other in queue.outbox} | set(worker.local)
            while offer.member in names:
                offer = offer._replace(member=b"0" + offer.member)
            offer = offer._replace(request=page)
        if offer.fingerprint is None or not worker.is_repeat(offer.fingerprint):
            worker.offer(offer, is_start=is_start)


def is_one_of(name: bytes, patterns: tuple[str, ...]) -> bool:
    """Return whether a key matches a pattern: a key, or a beginning and an asterisk."""
    text = name.decode()
    return any(text.startswith(each[:-1]) if each.endswith("*") else text == each for each in patterns)


class Now:
    """A state under change; each object read for a change is a copy."""

    def __init__(self, model: Model, state: State) -> None:
        self.model, self.scenario = model, model.scenario
        self.state = state
        self.oracle = state.oracle
        self.packet = model.packet(state.packet)
        self.snapshot = state.snapshot
        self._server: ScriptServer | None = None
        self._processes: dict[int, Process] = {}

    @property
    def server(self) -> ScriptServer:
        """The server, to be changed."""
        if self._server is None:
            self._server = self.model.server(self.state.server).copy()
        return self._server

    @server.setter
    def server(self, server: ScriptServer) -> None:
        self._server = server

    def use_snapshot(self, patterns: tuple[str, ...]) -> None:
        """Put the keys of these patterns back."""
        assert self.snapshot is not None
        snapshot, server = self.model.server(self.snapshot).copy(), self.server
        for keys in ("_values", "_expiries"):
            others = {name: value for name, value in getattr(server, keys).items() if not is_one_of(name, patterns)}
            back = {name: value for name, value in getattr(snapshot, keys).items() if is_one_of(name, patterns)}
            setattr(server, keys, others | back)
        self.snapshot = None

    def process(self, w: int) -> Process:
        """Return a process, to be changed."""
        if w not in self._processes:
            self._processes[w] = self.model.process(self.state.processes[w]).copy()
        return self._processes[w]

    def set_process(self, w: int, process: Process) -> None:
        self._processes[w] = process

    def worker(self, w: int) -> Worker:
        worker = self.process(w).worker
        assert worker
        return worker

    def see(self, w: int) -> Process:
        """Return a process, not to be changed."""
        return self._processes.get(w) or self.model.process(self.state.processes[w])

    def seen_worker(self, w: int) -> Worker:
        """Return the worker of a living process, not to be changed."""
        worker = self.see(w).worker
        assert worker
        return worker

    def seen_server(self) -> ScriptServer:
        """Return the server, not to be changed."""
        return self._server or self.model.server(self.state.server)

    def seen_servers(self) -> list[ScriptServer]:
        """Return the server, and the one of the snapshot."""
        return [self.seen_server(), *([] if self.snapshot is None else [self.model.server(self.snapshot)])]

    def is_changed(self, w: int) -> bool:
        """Return whether a process may have changed."""
        return w in self._processes

    def is_server_changed(self) -> bool:
        return self._server is not None

    def put(self, **changes: Any) -> None:
        """Change the oracle."""
        self.oracle = self.oracle._replace(**changes)

    def note_fault(self, *, again: int = 0, is_rejoin: bool = False) -> None:
        """Count a fault, and how often a page may be fetched again because of it, see S5."""
        again += (2 if self.scenario.parts == 1 else 3) if is_rejoin else 0
        self.put(faults=self.oracle.faults - 1, again=self.oracle.again + again)

    def freeze(self) -> State:
        """Return the state."""
        servers = [self.server]
        if self.snapshot is not None:
            servers.append(self.model.server(self.snapshot).copy())
        packet = normalize(servers, self)
        number, before = self.model.number, self.state.processes
        processes = (number(self._processes[w]) if w in self._processes else before[w] for w in range(len(before)))
        return State(
            number(servers[0]),
            tuple(processes),
            self.oracle,
            None if packet is None else number(packet),
            number(servers[1]) if len(servers) > 1 else None,
        )

    # The places of pages, as masks.

    def alive(self) -> list[int]:
        return [w for w in range(len(self.state.processes)) if self.see(w).life == "alive"]

    def is_work_left(self) -> bool:
        """Return whether there is work for another worker."""
        lives = [self.see(w).life for w in range(len(self.state.processes))]
        return "crashed" in lives or self.oracle.is_lost or bool(self.waiting() | self.kept())

    def waiting(self, queues: tuple[str, ...] = ()) -> int:
        server = self.seen_server()
        return union(mask_of(server.call("ZRANGE", name, 0, -1)) for name in queues or self.scenario.queues)

    def leased(self, w: int, queues: tuple[str, ...] = ()) -> int:
        server, queues = self.seen_server(), queues or self.scenario.queues_of(w)
        keys = (key(queue, f"{name}:w{w}") for queue in queues for name in ("leases", "taken"))
        return union(mask_of(server.call("ZRANGE", name, 0, -1)) for name in keys)

    def dead_letters(self) -> int:
        return self.waiting(tuple(key(queue, "dead-letter") for queue in self.scenario.queues))

    def kept(self) -> int:
        failed = (self.seen_server().call("HKEYS", key(queue, "failed")) for queue in self.scenario.queues)
        return self.dead_letters() | union(map(mask_of, failed))

    def starts(self) -> int:
        """The start pages that workers offer again if they join again."""
        workers = (self.seen_worker(w) for w in self.alive())
        return union(mask_of(offer.member for offer in worker._starts) for worker in workers if not worker._mode)

    def stored(self) -> int:
        return self.waiting() | self.kept() | union(map(self.leased, range(len(self.state.processes))))

    def fetched(self) -> int:
        return sum(1 << page for page, times in enumerate(self.oracle.fetched) if times)

    def is_marked(self, page: int) -> bool:
        """Return whether the filter knows a page."""
        name = self.scenario.filter_of(page)
        if self.scenario.unfiltered >> page & 1 or not self.seen_server().call("EXISTS", name):
            return False
        item = FilterParameters(fingerprint="scrapy-redis").hasher(b"secret")(fingerprint(page))
        return bool(self.seen_server().eval(self.model.scripts["has"], [name], [item]))

    def held(self, w: int) -> int:
        """The pages of a worker, but for links that the filter knows."""
        worker = self.seen_worker(w)
        mask = mask_of(entry.member for entry, _ in worker.ready)
        mask |= mask_of(member for member, page in worker.running.items() if not page.is_requeued)
        for queue in worker.queues:
            mask |= mask_of(queue.finished) | mask_of(entry.member for entry in queue.requeued)
        return mask | sum(1 << page for page in pages_of(self.outbox(w) & ~mask) if not self.is_marked(page))

    def outbox(self, w: int) -> int:
        return union(mask_of(offer.member for _, offer in queue.outbox) for queue in self.seen_worker(w).queues)

    def held_by_all(self, but: int | None = None) -> int:
        return union(self.held(w) for w in self.alive() if w != but)
