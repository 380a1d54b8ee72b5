"""Make equal situations equal states: growing numbers become small again."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scrapy_bloom.queue.partitioned import PartitionedWorker
from scrapy_bloom.queue.values import Call
from scrapy_bloom.queue.worker import Worker
from tests.queue.search.world import LEASE, Packet, key
from tests.support.running import AnyWorker
from tests.support.script_server import ScriptServer

if TYPE_CHECKING:
    from tests.queue.search.model import Now

_BASE = ("join", "held", "took", "busy", "works", "suspect", "contact", "lease", "stamp", "prior", "since")
FIELDS = (*_BASE, "offered", "returned", "replaced", "marked", "known", "relied")
_STAMPS = tuple(map(FIELDS.index, ("stamp", "prior", "marked", "known")))
_CONTACT, _STAMP, _PRIOR, _SINCE = map(FIELDS.index, ("contact", "stamp", "prior", "since"))
_REPLACED, _RELIED_FIELD = map(FIELDS.index, ("replaced", "relied"))
# Places among the arguments of an exchange.
_RELIED, _CLAIMS = 16, 17
_NOTHING = [0, 0, 0]
_LATER = 10**15
_STAMPED = ("exchange", "join")
Tables = dict[tuple[int, str, str], dict[bytes, list[Any]]]


def registrations(server: ScriptServer, hash_key: str) -> dict[bytes, list[Any]]:
    """Return the registrations in a hash by worker: numbers, and the reliance last."""
    raw = server.call("HGETALL", hash_key)
    fields = zip(raw[::2], raw[1::2], strict=True)
    found = {name[1:]: text.split() for name, text in fields if name.startswith(b"@")}
    return {name: [*map(int, values[:-1]), values[-1]] for name, values in found.items()}


def store(server: ScriptServer, hash_key: str, name: bytes, values: Iterable[Any]) -> None:
    """Write a registration."""
    texts = (value if isinstance(value, bytes) else b"%d" % value for value in values)
    server.call("HSET", hash_key, b"@" + name, b" ".join(texts))


class _Stamps:
    """The stamps of each worker in each partition, wherever they are; then their ranks.

    If a partition has settled losses, the stamps of all workers there are compared with one another.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[int, int], set[int]] = {}
        self.settled: dict[int, set[int]] = {}
        self.ids: set[bytes] = set()  # of crawls: reliances on others are ignored
        self._ranks: dict[tuple[int, int], dict[int, int]] = {}

    def add(self, w: int, index: int, stamps: Iterable[int]) -> None:
        self.found.setdefault((w, index), set()).update(stamps)

    def add_relied(self, w: int, relied: bytes) -> None:
        crawl, *stamps = relied.split(b",")
        for index, stamp in enumerate(stamps if crawl in self.ids else ()):
            self.add(w, index, [int(stamp)])

    def add_claims(self, index: int, claims: bytes) -> None:
        for worker, stamp in _pairs(claims):
            self.add(int(worker[1:]), index, [stamp])

    def ranks(self, w: int, index: int) -> dict[int, int]:
        if (w, index) not in self._ranks:
            mine = self.found.get((w, index), set())
            if settled := self.settled.get(index):
                mine = settled.union(*(stamps for (_, i), stamps in self.found.items() if i == index))
            self._ranks[w, index] = {stamp: i for i, stamp in enumerate(sorted(mine - {0}), 1)} | {0: 0}
        return self._ranks[w, index]

    def ranked_relied(self, w: int, relied: bytes) -> bytes:
        crawl, *stamps = relied.split(b",")
        if crawl not in self.ids:
            return relied and b"-"
        ranks = (self.ranks(w, index)[int(stamp)] for index, stamp in enumerate(stamps))
        return b",".join((crawl, *(b"%d" % rank for rank in ranks)))

    def ranked_claims(self, index: int, claims: bytes) -> bytes:
        pairs = ((worker, self.ranks(int(worker[1:]), index)[stamp]) for worker, stamp in _pairs(claims))
        return b" ".join(b"%s %d" % pair for pair in pairs)

    def ranked_call(self, w: int, index: int, call: Call) -> Call:
        arguments = list(call.arguments)
        arguments[_place(call)] = self.ranks(w, index)[arguments[_place(call)]]
        if call.script == "exchange":
            arguments[_RELIED] = self.ranked_relied(w, arguments[_RELIED])
            arguments[_CLAIMS] = self.ranked_claims(index, arguments[_CLAIMS])
        return call._replace(arguments=tuple(arguments))


def _pairs(claims: bytes) -> list[tuple[bytes, int]]:
    words = claims.split()
    return list(zip(words[::2], map(int, words[1::2]), strict=True))


def normalize(servers: list[ScriptServer], now: "Now") -> Packet | None:
    """Change servers and processes, and return the late packet."""
    queues = now.scenario.queues
    tables = {
        (i, queue, name): registrations(server, key(queue, name))
        for i, server in enumerate(servers)
        for queue in queues
        for name in ("crawl", "departed")
    }
    stamps = _stamps_of_all(servers, tables, now)
    for (_, queue, _), table in tables.items():
        for owner, values in table.items():
            w = int(owner[1:])
            if queue in now.scenario.queues_of(w):
                rank = stamps.ranks(w, now.scenario.queues_of(w).index(queue))
                for i in _STAMPS:
                    values[i] = rank[values[i]]
            values[_RELIED_FIELD] = stamps.ranked_relied(w, values[_RELIED_FIELD])
    for w in range(len(now.state.processes)):
        _renumber_worker(stamps, now, w)
    for queue in queues:
        _rank_contacts([table for (_, name, _), table in tables.items() if name == queue], now, queue)
    for (i, queue, name), table in tables.items():
        for owner, values in table.items():
            store(servers[i], key(queue, name), owner, values)
    _rank_settled(servers, stamps, now)
    _rank_changes(servers, now)
    for server in servers:
        server._expiries = dict.fromkeys(server._expiries, _LATER)
    packet = now.packet
    if packet and packet[2].script in _STAMPED:
        packet = (*packet[:2], stamps.ranked_call(*packet))
    return packet


def _rank_settled(servers: list[ScriptServer], stamps: _Stamps, now: "Now") -> None:
    for index, queue in enumerate(now.scenario.queues):
        for server in servers:
            if settled := server.call("HGET", key(queue, "departed"), "settled"):
                server.call("HSET", key(queue, "departed"), "settled", stamps.ranks(-1, index)[int(settled)])


def _stamps_of_all(servers: list[ScriptServer], tables: "Tables", now: "Now") -> _Stamps:
    stamps, everyone = _Stamps(), range(len(now.state.processes))
    workers = {w: worker for w in everyone if (worker := now.see(w).worker)}
    calls = [(w, index, call) for w in workers for index, call in now.see(w).pending] + (
        [now.packet] if now.packet else []
    )
    calls = [each for each in calls if each[2].script in _STAMPED]
    ids = {server.call("HGET", key(queue, "crawl"), "id") for server in servers for queue in now.scenario.queues}
    ids |= {part.crawl for worker in workers.values() for part in worker.parts}
    stamps.ids = {each for each in ids if each} | {
        call.arguments[1] for _, _, call in calls if call.script == "exchange"
    }
    for (_, queue, _), table in tables.items():
        for owner, values in table.items():
            w = int(owner[1:])
            if values[_STAMP] != values[_PRIOR]:  # only a repeated join reads the replaced registration
                values[_REPLACED:_RELIED_FIELD] = _NOTHING
            if queue in now.scenario.queues_of(w):
                stamps.add(w, now.scenario.queues_of(w).index(queue), (values[i] for i in _STAMPS))
            stamps.add_relied(w, values[_RELIED_FIELD])
    for w, worker in workers.items():
        for index, part in enumerate(worker.parts):
            stamps.add(w, index, _stamps_of(part))
            stamps.add_claims(index, part.claims)
            for owner, relied in zip(part.relied[::2], part.relied[1::2], strict=True):
                stamps.add_relied(int(owner[1:]), relied)
    for w, index, call in calls:
        stamps.add(w, index, [call.arguments[_place(call)]])
        if call.script == "exchange":
            stamps.add_relied(w, call.arguments[_RELIED])
            stamps.add_claims(index, call.arguments[_CLAIMS])
    for index, queue in enumerate(now.scenario.queues):
        found = [server.call("HGET", key(queue, "departed"), "settled") for server in servers]
        stamps.settled[index] = {int(each) for each in found if each}
    return stamps


def _renumber_worker(stamps: _Stamps, now: "Now", w: int) -> None:
    """Make the stamps of a worker small."""
    whole = now.see(w).worker
    for index, worker in enumerate(whole.parts if whole else ()):
        rank = stamps.ranks(w, index)
        relied = [*worker.relied]
        relied[1::2] = (
            stamps.ranked_relied(int(o[1:]), text) for o, text in zip(relied[::2], relied[1::2], strict=True)
        )
        claims = stamps.ranked_claims(index, worker.claims)
        is_moved = (relied, claims) != (worker.relied, worker.claims)
        if is_moved or any(rank[stamp] != stamp for stamp in _stamps_of(worker)) or now.is_changed(w):
            part = now.worker(w).parts[index]
            part.relied, part.claims = relied, claims
            _renumber(part, rank, now.worker(w), index)
    pending = now.see(w).pending
    if any(call.script in _STAMPED for _, call in pending):
        now.process(w).pending = tuple(
            (index, stamps.ranked_call(w, index, call) if call.script in _STAMPED else call) for index, call in pending
        )


def quiet_times(worker: AnyWorker) -> set[int]:
    """Return the times of the last change that a worker has found in quiet partitions, behind the first one."""
    found = {part.quiet for part in worker.parts} | set(getattr(worker, "_quiet", ()))
    return {time for time in found if time is not None}


def _rank_changes(servers: list[ScriptServer], now: "Now") -> None:
    """The time of a change matters only to workers that have found the crawl quiet, in several partitions."""
    everyone = range(len(now.state.processes))
    workers = [(w, worker) for w in everyone if (worker := now.see(w).worker)]
    known = {time for _, worker in workers for time in quiet_times(worker)} if now.scenario.partitions > 1 else set()
    rank = {time: i for i, time in enumerate(sorted(known), 1)}
    for server in servers:
        for queue in now.scenario.queues:
            changed = server.call("HGET", key(queue, "crawl"), "changed")
            if changed is not None:
                server.call("HSET", key(queue, "crawl"), "changed", rank.get(int(changed), 0))
    for w, worker in workers:
        if any(rank.get(time) != time for time in quiet_times(worker)):
            whole = now.worker(w)
            for part in whole.parts:
                part.quiet = None if part.quiet is None else rank.get(part.quiet, 0)
            if isinstance(whole, PartitionedWorker):
                whole._quiet = [None if time is None else rank[time] for time in whole._quiet]


def _place(call: Call) -> int:
    """Return the place of the stamp among the arguments."""
    return 0 if call.script == "exchange" else 1


def _stamps_of(worker: Worker) -> set[int]:
    return {worker._stamp, *(stamp for stamp, _ in worker._started)}


def _renumber(worker: Worker, rank: dict[int, int], whole: AnyWorker, index: int) -> None:
    worker._stamp = rank[worker._stamp]
    worker._started = deque((rank[stamp], offer) for stamp, offer in worker._started)
    worker._starting = deque((number - worker._base, offer) for number, offer in worker._starting)
    if worker._under_way and worker._under_way.script == "join":  # its reply was lost
        number, _, *others = worker._under_way.arguments
        worker._under_way = worker._under_way._replace(arguments=(number, worker._stamp, *others))
    for pages in (worker.running, worker.finished):
        for member, page in pages.items():
            pages[member] = replace(
                page,
                pushes=int(page.pushes == worker._pushes),
                drops=int(page.drops == worker._drops) if page.behind == math.inf else 0,
                behind=max(0, page.behind - worker._base),
            )
    worker.unmarked = {page: max(0, behind - worker._base) for page, behind in worker.unmarked.items()}
    if isinstance(whole, PartitionedWorker):
        held = {member for part in whole.parts for member in (*part.running, *part.finished)}
        whole._began = {
            member: [
                (int(pushes == worker._pushes), int(drops == worker._drops)) if i == index else (pushes, drops)
                for i, (pushes, drops) in enumerate(counts)
            ]
            for member, counts in sorted(whole._began.items())
            if member in held
        }
        whole._waiting = deque(
            ([max(0, end - worker._base) if i == index else end for i, end in enumerate(ends)], waiting)
            for ends, waiting in whole._waiting
        )
        if whole._ends:
            whole._ends[index] = max(0, whole._ends[index] - worker._base)
    worker._pushes = worker._drops = 1
    worker._base = 0


def _rank_contacts(tables: Iterable[dict[bytes, list[int]]], now: "Now", queue: str) -> None:
    """Contacts matter only to workers that have found the crawl quiet."""
    quiet = {}
    for w in range(len(now.state.processes)):
        worker, queues = now.see(w).worker, now.scenario.queues_of(w)
        if worker and queue in queues and (since := worker.parts[queues.index(queue)]._quiet_since) is not None:
            quiet[w] = since
    times = {*quiet.values(), *(r[_CONTACT] for table in tables for r in table.values())}
    rank = {time: i if quiet else 1 for i, time in enumerate(sorted(times), 1)}
    for table in tables:
        for values in table.values():
            values[_CONTACT] = rank[values[_CONTACT]]
            values[_SINCE] = -LEASE  # a lease may pass at any time
    for w, time in quiet.items():
        if rank[time] != time:
            now.worker(w).parts[now.scenario.queues_of(w).index(queue)]._quiet_since = rank[time]
