"""Make equal situations equal states: growing numbers become small again."""

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy_bloom.filter.steps import Steps
from scrapy_bloom.queue.messages import Call, Others
from scrapy_bloom.queue.queue import MAX_BYTES, Queue
from scrapy_bloom.queue.worker import SETTLING, Worker, _Rounds
from tests.queue.search.world import NOW, Packet, key, registrations
from tests.support.script_server import ScriptServer

if TYPE_CHECKING:
    from tests.queue.search.model import Now

_LATER = 10**15
# What may stand before the record of a worker that was presumed dead.
_FATE = b"abcdefghijklmnopqrstuvwxyz "


def normalize(servers: list[ScriptServer], now: "Now") -> Packet | None:
    """Change servers and processes, and return the late packet."""
    workers = [w for w in range(len(now.state.processes)) if now.see(w).worker]
    for w in range(len(now.state.processes)):
        for index, queue in enumerate(now.scenario.queues_of(w)):
            _Steps(servers, now, w, index, queue).renumber()
    for queue in now.scenario.queues:
        owners = [(w, now.scenario.queues_of(w).index(queue)) for w in workers if queue in now.scenario.queues_of(w)]
        _rank_times(servers, now, queue, owners)
    for w in workers:
        if now.is_changed(w):
            _rank_offers(now.worker(w))
    for server in servers:
        server._expiries = dict.fromkeys(server._expiries, _LATER)
    return now.packet


class _Steps:
    """The numbers of a worker's joins and of its syncs in one queue, wherever they are."""

    def __init__(self, servers: list[ScriptServer], now: "Now", w: int, index: int, queue: str) -> None:
        self._servers, self._now, self._w, self._index = servers, now, w, index
        self._keys, self._field = (key(queue, "crawl"), key(queue, "ended")), f"@w{w}"

    def renumber(self) -> None:
        """Replace the numbers by their ranks. A join is number 0, and the next number of all follows the last one."""
        now, w, index = self._now, self._w, self._index
        pairs = [(s, name) for s in self._servers for name in self._keys]
        records = [(s, name, r) for s, name in pairs if (r := s.call("HGET", name, self._field))]
        seen = now.see(w).worker
        mine, pending = seen and seen.queues[index], now.see(w).pending
        late = [now.packet] if now.packet and now.packet[:2] == (w, index) else []
        calls = [call for i, call in pending if i == index] + [call for *_, call in late]
        found = {(mine._opened, 0), (mine._opened + 1, 0)} if mine else set()
        found |= {_parsed(record) for *_, record in records}
        for call in calls:
            if call.script == "sync":
                found |= {_parsed(argument) for argument in call.arguments[:2]}
            elif call.script == "join":
                found |= {(call.arguments[0], 0), _parsed(call.arguments[1])}
        if mine:
            opened, number = _parsed(mine._steps.record)
            found |= {(opened, number), *((opened, each) for each in mine._sent)}
        joins = {opened: i for i, opened in enumerate(sorted({opened for opened, _ in found}))}
        numbers = {o: sorted({0, *(number for opened, number in found if opened == o)}) for o in joins}

        def ranked(record: bytes) -> bytes:
            opened, number = _parsed(record)
            rest = record.lstrip(_FATE)
            dead = record.removesuffix(rest)
            return b"%b%d %d %b" % (dead, joins[opened], numbers[opened].index(number), rest.split(b" ", 2)[2])

        def ranked_call(call: Call) -> Call:
            if call.script == "sync":
                return call._replace(arguments=(*map(ranked, call.arguments[:2]), *call.arguments[2:]))
            if call.script == "join":
                opened, record, *others = call.arguments
                return call._replace(arguments=(joins[opened], ranked(record), *others))
            return call

        for server, name, record in records:
            server.call("HSET", name, self._field, ranked(record))
        if late:
            now.packet = w, index, ranked_call(late[0][2])
        is_moved = any(i != opened for opened, i in joins.items())
        is_moved |= any(i != number for each in numbers.values() for i, number in enumerate(each))
        if mine and (is_moved or now.is_changed(w)):
            process = now.process(w)
            process.pending = tuple((i, ranked_call(call) if i == index else call) for i, call in pending)
            self._renumber(now.worker(w).queues[index], joins, numbers)

    def _renumber(self, queue: Queue, joins: dict[int, int], numbers: dict[int, list[int]]) -> None:
        opened, number = _parsed(queue._steps.record)
        rank = numbers[opened].index
        queue._steps = Steps(record=b"%d %d " % (joins[opened], rank(number)))
        queue._sent = {rank(each): load for each, load in queue._sent.items()}
        queue._opened = joins[queue._opened]
        queue._max_bytes = MAX_BYTES


def _parsed(record: bytes) -> tuple[int, int]:
    opened, number, _ = record.lstrip(_FATE).split(b" ", 2)
    return int(opened), int(number)


def _rank_times(servers: list[ScriptServer], now: "Now", queue: str, owners: list[tuple[int, int]]) -> None:
    """The time of a sync matters to workers that have found the queue quiet before. A lease may pass at any time."""
    seen = [(w, index, now.seen_worker(w)._rounds.quiet[index]) for w, index in owners if _is_quiet(now, w, index)]
    times = sorted({others.now for *_, others in seen})
    departures = sorted({others.departures for *_, others in seen})
    for server in servers:
        for name, values in registrations(server, queue).items():
            held, idle, _, synced, lease, _ = values
            rank = 2 * bisect_left(times, synced) + 1 if synced else 0
            text = b"%d %d %d %d %d 0" % (held, idle, NOW, rank, lease)
            server.call("HSET", key(queue, "workers"), name, text)
        if count := server.call("HGET", key(queue, "crawl"), "departures"):
            server.call("HSET", key(queue, "crawl"), "departures", _rank(departures, int(count)))
    for w, index, others in seen:
        ranked = Others(True, 0, 0, 2 * times.index(others.now) + 2, _rank(departures, others.departures))
        if ranked != others:
            now.worker(w)._rounds.quiet[index] = ranked


def _rank(times: list[int], time: int) -> int:
    """Return the rank of a number among those that are compared with it, odd if it is between two of them."""
    place = bisect_left(times, time)
    return 2 * place + int(place == len(times) or times[place] != time)


def _is_quiet(now: "Now", w: int, index: int) -> bool:
    return index in now.seen_worker(w)._rounds.quiet


def _rank_offers(worker: Worker) -> None:
    """Rank the numbers of offers, and all that are executed and settled are the first one."""
    rounds = worker._rounds
    least = worker._executed if rounds.settled is None else max(0, rounds.settled)
    found = {worker._sequence, *(number for queue in worker.queues for number, _ in queue.outbox)}
    found |= {page.end for queue in worker.queues for page in queue.finished.values()}
    found |= {rounds._executed} if rounds._awaited is not None else set()
    found |= {rounds._following[1]} if rounds._following else set()
    rank = {number: i for i, number in enumerate(sorted({least, *(each for each in found if each > least)}))}

    def ranked(number: int) -> int:
        return rank[max(least, number)] if number >= 0 else -1

    worker._sequence = ranked(worker._sequence)
    for queue in worker.queues:
        for i, (number, offer) in enumerate(queue.outbox):
            queue.outbox[i] = ranked(number), offer
        for member, page in queue.finished.items():
            queue.finished[member] = page._replace(end=ranked(page.end))
    if rounds.settled is not None:
        rounds.settled = ranked(int(rounds.settled))
        rounds._executed = ranked(rounds._executed) if rounds._awaited is not None else 0
        _rank_round_times(rounds, ranked)


def _rank_round_times(rounds: _Rounds, ranked: Callable[[int], int]) -> None:
    """Let times be 0, now, or some time ago. All differ by `SETTLING` or more, or not at all."""
    before, rounds._began = rounds._began, max(rounds._began, -SETTLING)
    if rounds._following:
        time, number = rounds._following
        earlier = rounds._began - (SETTLING if time < before else 0)
        rounds._following = max(time, -SETTLING) if time > before else earlier, ranked(number)
