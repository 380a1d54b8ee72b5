"""Each key of a crawl is lost alone, by DEL or an eviction, while its worker runs and after that was killed.

Each request is then left in the queue, held by a worker, done, or told as lost with the number of these.
"""

from typing import NamedTuple

import pytest

from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Call, Outcome
from tests.support.driven import Driven, in_memory
from tests.support.script_server import ScriptServer

KEYS = QueueKeys("queue")
LEASES, TAKEN = KEYS.of_worker("one")
REQUESTS = [b"%02d" % number for number in range(12)]
FAILED, LETTER = REQUESTS[:2]


class Row(NamedTuple):
    """What the loss of a key means.

    Attributes:
        rejoin: why its worker joins again, if it runs; empty: it does not.
        loses: the requests that are gone, by the key that has them, if the worker runs, and if it was killed.
    """

    rejoin: str = ""
    loses: tuple[str, ...] = ()
    loses_of_dead: tuple[str, ...] = ()


ROWS = {
    "queue": Row("", ("queue",), ("queue",)),
    "crawl": Row("gone"),
    "workers": Row("behind"),
    "leases": Row("leases", (), ("leases",)),
    "taken": Row("leases", (), ("taken",)),
    "filter": Row("filter"),
    # These hold nothing of the crawl: what has failed, or killed its workers, is told when that happens. Without the
    # deaths a worker that starts tries the dead letters again.
    "dead letters": Row(),
    "failed": Row(),
    "deaths": Row(),
}
NAMES = {
    "queue": KEYS.queue,
    "crawl": KEYS.crawl,
    "workers": KEYS.workers,
    "leases": LEASES,
    "taken": TAKEN,
    "filter": KEYS.dupefilter,
    "dead letters": KEYS.dead_letters,
    "failed": KEYS.failed,
    "deaths": KEYS.deaths,
}


def crawl(server: ScriptServer) -> Driven:
    """Bring about every key of a queue, and return the worker, which has leased some requests and just taken others."""
    driven = Driven("one", in_memory(server), lease=1000)
    driven.offer(*REQUESTS)
    driven.work_off()
    for want in (4, 2):
        driven.step(want)
    assert {*iter(driven.worker.take, None)}
    driven.worker.finish(FAILED, Outcome.FAILED)
    driven.worker.finish(LETTER, Outcome.UNREADABLE)
    driven.step(2)
    server.call("HSET", KEYS.deaths, LETTER, 1)
    assert all(server.call("EXISTS", name) for name in NAMES.values())
    return driven


def members(server: ScriptServer, *names: str) -> set[bytes]:
    """Return the requests at keys."""
    return {member for name in names for member in server.call("ZRANGE", NAMES[name], 0, -1)}


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "killed"])
@pytest.mark.parametrize("name", ROWS)
def test_a_key_is_lost(name: str, is_running: bool) -> None:
    """A worker that runs requeues what it holds, one that joins recovers it; what is gone is told with its number."""
    server = ScriptServer()
    driven, row = crawl(server), ROWS[name]
    there = members(server, "queue", "leases", "taken")
    gone = members(server, *(row.loses if is_running else row.loses_of_dead))
    server.call("DEL", NAMES[name])
    if not is_running:
        driven = Driven("two", in_memory(server), lease=10_000)
        driven.work_off()
        server.time += 1001 * 1_000_000
        in_memory(server)("two", 0, Call("heartbeat", (0,)))
    told = [received.rejoin for received in [*driven.step(1), *driven.work_off()] if received.rejoin]
    driven.step(len(REQUESTS))
    assert told == [row.rejoin] * bool(is_running and row.rejoin)
    held = {entry.member for entry, _ in driven.worker.ready} | {*driven.worker.running}
    again = members(server, "dead letters") ^ {LETTER} if name == "deaths" else set()
    assert held | members(server, "queue", "leases", "taken") == there - gone | again
    assert driven.queues[0].news.lost == len(gone)
    assert bool(driven.queues[0].news.losses) == bool(gone)


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "none runs"])
def test_all_keys_are_lost(is_running: bool) -> None:
    """After a FLUSHDB a running worker tells that the crawl is gone; a later one finds nothing, and begins anew."""
    server = ScriptServer()
    driven = crawl(server)
    held = {entry.member for entry, _ in driven.worker.ready} | {*driven.worker.running}
    empty = ScriptServer(server.time)
    if is_running:
        driven._send = in_memory(empty)
        driven.offer(b"link")
        assert [received.rejoin for received in driven.work_off() if received.rejoin] == ["gone"]
        assert members(empty, "queue") == {*held, b"link"}
    else:
        driven = Driven("two", in_memory(empty))
        driven.work_off()
        assert driven.queues[0].news.losses == 0
