"""Make equal situations equal states: growing numbers become small again."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_bloom.queue.values import Call
from scrapy_bloom.queue.worker import Worker
from tests.queue.search.world import LEASE, key
from tests.support.script_server import ScriptServer

if TYPE_CHECKING:
    from tests.queue.search.model import Now

_BASE = ("join", "held", "took", "busy", "works", "suspect", "contact", "lease", "stamp", "prior", "since")
FIELDS = (*_BASE, "offered", "returned", "replaced", "marked", "known")
_STAMPS = tuple(map(FIELDS.index, ("stamp", "prior", "marked", "known")))
_CONTACT, _STAMP, _PRIOR, _SINCE, _REPLACED = map(FIELDS.index, ("contact", "stamp", "prior", "since", "replaced"))
_NOTHING = [0, 0, 0]
_LATER = 10**15


def registrations(server: ScriptServer, hash_key: str) -> dict[bytes, list[int]]:
    """Return the registrations in a hash by worker."""
    raw = server.call("HGETALL", hash_key)
    fields = zip(raw[::2], raw[1::2], strict=True)
    return {name[1:]: list(map(int, text.split())) for name, text in fields if name.startswith(b"@")}


def store(server: ScriptServer, hash_key: str, name: bytes, values: Iterable[int]) -> None:
    """Write a registration."""
    server.call("HSET", hash_key, b"@" + name, " ".join(map(str, values)))


def normalize(servers: list[ScriptServer], now: "Now") -> tuple[int, Call] | None:
    """Change servers and processes, and return the late packet."""
    packet = now.packet
    names = [key(queue, name) for queue in now.scenario.queues for name in ("crawl", "departed")]
    tables = {(i, name): registrations(server, name) for i, server in enumerate(servers) for name in names}
    for w in range(len(now.state.processes)):
        mine = [table[b"w%d" % w] for table in tables.values() if b"w%d" % w in table]
        late = packet[1] if packet and packet[0] == w and packet[1].script in ("exchange", "join") else None
        rank = _ranks(mine, now.see(w).worker, late)
        for values in mine:
            for i in _STAMPS:
                values[i] = rank[values[i]]
        if late:
            arguments = list(late.arguments)
            arguments[_place(late)] = rank[arguments[_place(late)]]
            packet = (w, late._replace(arguments=tuple(arguments)))
        worker = now.see(w).worker
        if worker and (any(rank[stamp] != stamp for stamp in _stamps_of(worker)) or now.is_changed(w)):
            _renumber(now.worker(w), rank)
    _rank_contacts(tables.values(), now)
    for (i, name), table in tables.items():
        for owner, values in table.items():
            store(servers[i], name, owner, values)
    for server in servers:
        server._expiries = dict.fromkeys(server._expiries, _LATER)
    return packet


def _place(call: Call) -> int:
    """Return the place of the stamp among the arguments."""
    return 0 if call.script == "exchange" else 1


def _ranks(mine: list[list[int]], worker: Worker | None, late: Call | None) -> dict[int, int]:
    """Return the ranks of a worker's stamps."""
    for values in mine:
        if values[_STAMP] != values[_PRIOR]:  # only a repeated join reads the replaced registration
            values[_REPLACED:] = _NOTHING
    stamps = {values[i] for values in mine for i in _STAMPS}
    if worker:
        stamps |= _stamps_of(worker)
    if late:
        stamps.add(late.arguments[_place(late)])
    return {stamp: i for i, stamp in enumerate(sorted(stamps - {0}), 1)} | {0: 0}


def _stamps_of(worker: Worker) -> set[int]:
    return {worker._stamp, *(stamp for stamp, _ in worker._started)}


def _renumber(worker: Worker, rank: dict[int, int]) -> None:
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
    worker._pushes = worker._drops = 1
    worker._base = 0


def _rank_contacts(tables: Iterable[dict[bytes, list[int]]], now: "Now") -> None:
    """Contacts matter only to workers that have found the crawl quiet."""
    everyone = range(len(now.state.processes))
    quiet = {
        w: worker._quiet_since for w in everyone if (worker := now.see(w).worker) and worker._quiet_since is not None
    }
    times = {*quiet.values(), *(r[_CONTACT] for table in tables for r in table.values())}
    rank = {time: i if quiet else 1 for i, time in enumerate(sorted(times), 1)}
    for table in tables:
        for values in table.values():
            values[_CONTACT] = rank[values[_CONTACT]]
            values[_SINCE] = -LEASE  # a lease may pass at any time
    for w, time in quiet.items():
        if rank[time] != time:
            now.worker(w)._quiet_since = rank[time]
