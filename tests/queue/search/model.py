"""Servers and processes by number, and one state under change."""

from typing import Any

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.partitioned import PartitionedWorker
from scrapy_bloom.queue.values import Call, Offer
from scrapy_bloom.queue.worker import Worker
from tests.queue.search.normal import normalize
from tests.queue.search.world import LEASE, Packet, Process, Scenario, Source, State, key, mask_of, pages_of, union
from tests.support.running import AnyWorker
from tests.support.script_server import ScriptServer

Scripts = dict[str, str]


class Model:
    """Servers and processes by number, and the scripts.

    Args:
        scenario: the crawl and its faults.
        scripts: the text of each script, libraries included.
        worker: the worker, or one with a mistake.
    """

    def __init__(self, scenario: Scenario, scripts: Scripts, worker: type[AnyWorker] = Worker) -> None:
        self.scenario, self.scripts = scenario, scripts
        self.worker = worker if issubclass(worker, Worker) else Worker
        self.whole = worker if issubclass(worker, PartitionedWorker) else PartitionedWorker
        self._numbers: dict[Any, int] = {}
        self._things: list[Any] = []
        self._packets: dict[Any, int] = {}
        self.executed: dict[Any, tuple[ScriptServer, Any]] = {}
        self._calls: list[Packet] = []

    def server(self, number: int) -> ScriptServer:
        server: ScriptServer = self._things[number]
        return server

    def process(self, number: int) -> Process:
        process: Process = self._things[number]
        return process

    def packet(self, number: int) -> Packet:
        return self._calls[number]

    def number(self, thing: ScriptServer | Process) -> int:
        """Return the number of a thing, which must not change any more."""
        key = thing.freeze()
        number = self._numbers.setdefault(key, len(self._things))
        if number == len(self._things):
            self._things.append(thing)
        return number

    def number_of_packet(self, packet: Packet | None) -> int | None:
        if packet is None:
            return None
        number = self._packets.setdefault(packet, len(self._calls))
        if number == len(self._calls):
            self._calls.append(packet)
        return number

    def new_worker(self, w: int, *, flush: bool = False) -> AnyWorker:
        parts = [self._new_part(w, flush=flush) for _ in range(self.scenario.partitions)]
        return parts[0] if len(parts) == 1 else self.whole(parts)

    def _new_part(self, w: int, *, flush: bool) -> Worker:
        s = self.scenario
        return self.worker(
            f"w{w}",
            LEASE / 1e6,
            "spider",
            Source(),
            self.fingerprint_of,
            batch=s.batch,
            max_deliveries=s.max_deliveries,
            flush=flush,
            is_shared=bool(s.spider),
        )

    def fingerprint_of(self, member: bytes) -> bytes | None:
        return None if self.scenario.unfiltered >> int(member) & 1 else member

    def offer(self, worker: AnyWorker, page: int, *, is_start: bool = False) -> None:
        member = b"%d" % page
        offer = Offer(0.0, member, self.fingerprint_of(member))
        if self.scenario.local >> page & 1:
            while any(offer.member in part.local or offer.member in part.running for part in worker.parts):
                offer = offer._replace(member=b"0" + offer.member)
            offer = offer._replace(request=page)
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
        self.packet = None if state.packet is None else model.packet(state.packet)
        self._snapshot = state.snapshot
        self._server: ScriptServer | None = None
        self._processes: dict[int, Process] = {}

    @property
    def server(self) -> ScriptServer:
        """The server, to be changed."""
        if self._server is None:
            self._server = self.model.server(self.state.server).copy()
        return self._server

    def use_snapshot(self, patterns: tuple[str, ...]) -> None:
        """Put the keys of these patterns back."""
        assert self._snapshot is not None
        snapshot, server = self.model.server(self._snapshot).copy(), self.server
        for keys in ("_values", "_expiries"):
            others = {name: value for name, value in getattr(server, keys).items() if not is_one_of(name, patterns)}
            back = {name: value for name, value in getattr(snapshot, keys).items() if is_one_of(name, patterns)}
            setattr(server, keys, others | back)
        self._snapshot = None

    def take_snapshot(self) -> None:
        """Keep the server as it is."""
        self._snapshot = self.state.server

    def drop_snapshot(self) -> None:
        """No rollback crosses the end of a crawl."""
        self._snapshot = None

    def process(self, w: int) -> Process:
        """Return a process, to be changed."""
        if w not in self._processes:
            self._processes[w] = self.model.process(self.state.processes[w]).copy()
        return self._processes[w]

    def set_process(self, w: int, process: Process) -> None:
        self._processes[w] = process

    def worker(self, w: int) -> AnyWorker:
        worker = self.process(w).worker
        assert worker
        return worker

    def see(self, w: int) -> Process:
        """Return a process, not to be changed."""
        return self._processes.get(w) or self.model.process(self.state.processes[w])

    def seen_worker(self, w: int) -> AnyWorker:
        """Return the worker of a living process, not to be changed."""
        worker = self.see(w).worker
        assert worker
        return worker

    def seen_servers(self) -> list[ScriptServer]:
        """Return the server, and the one of the snapshot."""
        return [self.seen_server(), *([] if self._snapshot is None else [self.model.server(self._snapshot)])]

    def set_server(self, server: ScriptServer) -> None:
        """Replace the server."""
        self._server = server

    def fail(self, w: int, index: int, call: Call) -> None:
        """Lose the reply to a call, which is a fault."""
        worker = self.worker(w)
        worker.parts[index]._under_way = call
        worker.lose(index)
        self.put(faults=self.oracle.faults - 1)

    def is_work_left(self) -> bool:
        """Return whether there is work for another worker."""
        lives = [self.see(w).life for w in range(len(self.state.processes))]
        return "crashed" in lives or self.oracle.is_lost or bool(self.waiting() | self.kept())

    def is_changed(self, w: int) -> bool:
        """Return whether a process may have changed."""
        return w in self._processes

    def is_server_changed(self) -> bool:
        return self._server is not None

    def seen_server(self) -> ScriptServer:
        """Return the server, not to be changed."""
        return self._server or self.model.server(self.state.server)

    def put(self, **changes: Any) -> None:
        """Change the oracle."""
        self.oracle = self.oracle._replace(**changes)

    def freeze(self) -> State:
        """Return the state."""
        servers = [self.server]
        if self._snapshot is not None:
            servers.append(self.model.server(self._snapshot).copy())
        packet = normalize(servers, self)
        number = self.model.number
        return State(
            number(servers[0]),
            tuple(
                number(self._processes[w]) if w in self._processes else before
                for w, before in enumerate(self.state.processes)
            ),
            self.oracle,
            self.model.number_of_packet(packet),
            number(servers[1]) if len(servers) > 1 else None,
        )

    # The places of pages, as masks.

    def alive(self) -> list[int]:
        return [w for w in range(len(self.state.processes)) if self.see(w).life == "alive"]

    def waiting(self, queue: str | None = None) -> int:
        server = self.seen_server()
        queues = [queue] if queue else self.scenario.queues
        return union(mask_of(server.call("ZRANGE", name, 0, -1)) for name in queues)

    def leased(self, w: int, queues: tuple[str, ...] = ()) -> int:
        server, queues = self.seen_server(), queues or self.scenario.queues_of(w)
        keys = (key(queue, f"{name}:w{w}") for queue in queues for name in ("leases", "taken"))
        return union(mask_of(server.call("ZRANGE", name, 0, -1)) for name in keys)

    def all_leased(self, but: int | None = None) -> int:
        return union(self.leased(w) for w in range(len(self.state.processes)) if w != but)

    def kept(self) -> int:
        server, queues = self.seen_server(), self.scenario.queues
        failed = union(mask_of(server.call("HKEYS", key(queue, "failed"))) for queue in queues)
        return failed | union(mask_of(server.call("ZRANGE", key(queue, "dead-letter"), 0, -1)) for queue in queues)

    def stored(self) -> int:
        return self.waiting() | self.all_leased() | self.kept()

    def fetched(self) -> int:
        return sum(1 << page for page, times in enumerate(self.oracle.fetched) if times)

    def is_marked(self, page: int) -> bool:
        """Return whether the filter knows a page."""
        name = self.scenario.filter_of(page)
        if self.scenario.unfiltered >> page & 1 or not self.seen_server().call("EXISTS", name):
            return False
        item = FilterParameters(fingerprint="scrapy-redis").hasher(b"secret")(b"%d" % page)
        return bool(self.seen_server().eval(self.model.scripts["has"], [name], [item]))

    def held(self, w: int) -> int:
        """The pages of a worker, but for links that the filter knows."""
        return union(self._held_in(part) for part in self.seen_worker(w).parts)

    def _held_in(self, worker: Worker) -> int:
        mask = mask_of(e.member for e in worker.ready) | mask_of(worker.finished)
        mask |= mask_of(e.member for e in worker._returns) | mask_of(o.member for o in worker._kept)
        mask |= mask_of(m for m, page in worker.running.items() if not page.is_tainted)
        mask |= mask_of(e.member for e in worker.local_ready)
        return mask | sum(
            1 << p
            for p in pages_of(mask_of(o.member for o in worker.outbox))
            if not mask >> p & 1 and not self.is_marked(p)
        )

    def held_by_all(self, but: int | None = None) -> int:
        mask = 0
        for w in self.alive():
            if w != but:
                mask |= self.held(w)
        return mask
