"""Make equal situations equal states: growing numbers become small again."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_bloom.queue.partitioned import PartitionedWorker
from scrapy_bloom.queue.values import Call
from scrapy_bloom.queue.worker import Worker
from tests.queue.search.world import LEASE, Packet, key
from tests.support.running import AnyWorker
from tests.support.script_server import ScriptServer

if TYPE_CHECKING:
    from tests.queue.search.model import Now

_BASE = ("join", "held", "took", "busy", "works", "suspect", "contact", "lease", "stamp", "prior", "since")
FIELDS = (*_BASE, "offered", "returned", "replaced", "marked", "known")
_STAMPS = tuple(map(FIELDS.index, ("stamp", "prior", "marked", "known")))
_CONTACT, _STAMP, _PRIOR, _SINCE, _REPLACED = map(FIELDS.index, ("contact", "stamp", "prior", "since", "replaced"))
_NOTHING = [0, 0, 0]
_LATER = 10**15
_STAMPED = ("exchange", "join")


def registrations(server: ScriptServer, hash_key: str) -> dict[bytes, list[int]]:
    """Return the registrations in a hash by worker."""
    raw = server.call("HGETALL", hash_key)
    fields = zip(raw[::2], raw[1::2], strict=True)
    return {name[1:]: list(map(int, text.split())) for name, text in fields if name.startswith(b"@")}


def store(server: ScriptServer, hash_key: str, name: bytes, values: Iterable[int]) -> None:
    """Write a registration."""
    server.call("HSET", hash_key, b"@" + name, " ".join(map(str, values)))


def normalize(servers: list[ScriptServer], now: "Now") -> Packet | None:
    """Change servers and processes, and return the late packet."""
    packet = now.packet
    for index, queue in enumerate(now.scenario.queues):
        names = [key(queue, name) for name in ("crawl", "departed")]
        tables = {(i, name): registrations(server, name) for i, server in enumerate(servers) for name in names}
        for w in range(len(now.state.processes)):
            if queue in now.scenario.queues_of(w):
                of_worker = index if now.scenario.partitions > 1 else 0
                packet = _normalize_worker(tables.values(), now, w, of_worker, packet)
        _rank_contacts(tables.values(), now, queue)
        for (i, name), table in tables.items():
            for owner, values in table.items():
                store(servers[i], name, owner, values)
    _rank_changes(servers, now)
    for server in servers:
        server._expiries = dict.fromkeys(server._expiries, _LATER)
    return packet


def _normalize_worker(
    tables: Iterable[dict[bytes, list[int]]], now: "Now", w: int, index: int, packet: Packet | None
) -> Packet | None:
    """Make the stamps of a worker in a partition small, and return the late packet."""
    mine = [table[b"w%d" % w] for table in tables if b"w%d" % w in table]
    late = packet[2] if packet and packet[:2] == (w, index) and packet[2].script in _STAMPED else None
    whole = now.see(w).worker
    worker = None if whole is None else whole.parts[index]
    pending = next((call for i, call in now.see(w).pending if i == index and call.script in _STAMPED), None)
    rank = _ranks(mine, worker, [call for call in (late, pending) if call])
    for values in mine:
        for i in _STAMPS:
            values[i] = rank[values[i]]
    if late:
        packet = (w, index, _ranked(late, rank))
    if worker and (any(rank[stamp] != stamp for stamp in _stamps_of(worker)) or now.is_changed(w)):
        _renumber(now.worker(w).parts[index], rank, now.worker(w), index)
    if pending:
        process = now.process(w)
        process.pending = tuple((i, _ranked(call, rank) if i == index else call) for i, call in process.pending)
    return packet


def _ranked(call: Call, rank: dict[int, int]) -> Call:
    """Return a call with the rank of its stamp."""
    arguments = list(call.arguments)
    arguments[_place(call)] = rank[arguments[_place(call)]]
    return call._replace(arguments=tuple(arguments))


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


def _ranks(mine: list[list[int]], worker: Worker | None, calls: list[Call]) -> dict[int, int]:
    """Return the ranks of a worker's stamps."""
    for values in mine:
        if values[_STAMP] != values[_PRIOR]:  # only a repeated join reads the replaced registration
            values[_REPLACED:] = _NOTHING
    stamps = {values[i] for values in mine for i in _STAMPS}
    if worker:
        stamps |= _stamps_of(worker)
    stamps |= {call.arguments[_place(call)] for call in calls}
    return {stamp: i for i, stamp in enumerate(sorted(stamps - {0}), 1)} | {0: 0}


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
