"""Workers on the scripts in memory, which execute them as Redis and Valkey do: a replay compares every reply."""

import random
import uuid

import pytest

from scrapy_bloom.queue.messages import Call, Offer, Outcome
from tests.support.driven import Driven, in_memory
from tests.support.script_replay import replay
from tests.support.script_server import ScriptServer
from tests.support.servers import Server

STEPS = 400
PAGES = 40
# Pages that bypass the filter.
UNFILTERED = 2
LEASE = 2
# Microseconds between two crashes: scripts name workers that they presume dead in the order of the server's Lua.
PAUSE = 6_000_000


def crawl(seed: int) -> ScriptServer:
    """Run three workers in a random order, with lost replies and deaths, and return the server that recorded them."""
    draw = random.Random(seed)
    server = ScriptServer(is_recording=True)
    send = in_memory(server)
    count = 1 + seed % 2
    workers: dict[str, Driven] = {}
    crashed = server.time
    for step in range(STEPS):
        server.time += draw.randrange(1, 200_000)
        if len(workers) < 3:
            name, is_flush = f"w{step}", draw.random() < 0.05
            workers[name] = Driven(name, send, LEASE, flush=is_flush, queues=count, batch=3, max_deaths=2)
            offer(workers[name], 0)
        driven = workers[draw.choice([*workers])]
        driven.now = server.time / 1e6
        worker, chance = driven.worker, draw.random()
        is_crash = chance < 0.1 and server.time > crashed + PAUSE
        if is_crash or worker.has_left:
            del workers[driven.name]
            crashed = server.time if is_crash else crashed
            continue
        if chance < 0.2:
            send(driven.name, draw.randrange(count), Call("heartbeat", (2,)))
        elif chance < 0.35 and worker.running:
            outcome = draw.choice([Outcome.DONE, Outcome.DONE, Outcome.FAILED, Outcome.UNREADABLE])
            worker.finish(draw.choice([*worker.running]), outcome)
        elif chance < 0.5 and worker.running:
            offer(driven, draw.randrange(PAGES))
        elif chance < 0.505:
            worker.stop()
            worker.leave(draw.choice(["finished", "stopped", "keep"]))
        if draw.random() < 0.1:
            driven.lose(draw.randrange(4), is_executed=True)
        else:
            driven.step(draw.randrange(4))
        while worker.take():
            pass
    return server


def offer(driven: Driven, page: int) -> None:
    """Offer a page."""
    member = b"%d" % page
    driven.worker.offer(Offer(0, member, None if page >= PAGES - UNFILTERED else member))


@pytest.mark.parametrize("seed", range(10))
def test_replay(server: Server, seed: int) -> None:
    """Each script has the same reply and leaves the same data on a server."""
    recorded = crawl(seed).recorded
    assert len({each.reply[0] for each in recorded if isinstance(each.reply, list) and each.reply}) > 2
    with server.client() as client:
        assert list(replay(client, recorded, f"test:{uuid.uuid4().hex}:".encode())) == []
