"""Workers on the scripts in memory, which execute them as Redis and Valkey do: a replay compares every reply."""

import random
import uuid

import pytest

from scrapy_bloom.queue.values import Call, Outcome, Phase
from scrapy_bloom.queue.worker import Worker
from tests.queue.search.model import Model
from tests.queue.search.scenarios import scripts
from tests.queue.search.world import KEYS, Scenario, Source
from tests.support.script_replay import replay
from tests.support.script_server import ScriptServer
from tests.support.servers import Server

STEPS = 400
PAGES = 40
LEASE = 3_000_000


def crawl(seed: int) -> ScriptServer:
    """Run three workers in a random order, with lost replies and deaths, and return the server that recorded them."""
    draw = random.Random(seed)
    model = Model(Scenario(tuple(() for _ in range(PAGES)), (), unfiltered=2, batch=3, max_deliveries=2), scripts())
    server = ScriptServer(is_recording=True)
    workers: dict[str, Worker] = {}
    for step in range(STEPS):
        server.time += draw.randrange(1, 200_000)
        if len(workers) < 3:
            name = f"w{step}"
            workers[name] = new_worker(model, name, step, flush=draw.random() < 0.05)
            model.offer(workers[name], 0)
        name = draw.choice([*workers])
        worker, chance = workers[name], draw.random()
        if chance < 0.02 or worker.phase is Phase.LEFT:
            del workers[name]  # a crash, or the end
        elif chance < 0.1:
            evaluate(server, model, name, Call("heartbeat", (2,)))
        elif chance < 0.3 and worker.running:
            outcome = draw.choice([Outcome.DONE, Outcome.DONE, Outcome.FAILED, Outcome.UNREADABLE])
            worker.finish(draw.choice([*worker.running]), outcome)
        elif chance < 0.5 and worker.running:
            model.offer(worker, draw.randrange(PAGES))
        elif chance < 0.52:
            worker.stop()
            worker.leave(draw.choice(["finished", "stopped", "keep"]))
        if name in workers and (call := worker.next_call(draw.randrange(4))):
            reply = evaluate(server, model, name, call)
            if draw.random() < 0.1:
                worker.lose()
                continue
            worker.receive(reply)
            while worker.take():
                pass
    return server


def new_worker(model: Model, name: str, number: int, *, flush: bool) -> Worker:
    """Return a worker with a filter of its own to create, if there is none."""
    (worker,) = model.new_worker(0, flush=flush).parts
    worker.name, worker._source, worker._lease = name, Source(number), LEASE / 1e6
    return worker


def evaluate(server: ScriptServer, model: Model, name: str, call: Call) -> object:
    """Execute a call's script."""
    me = [] if call.script == "allocate" else [name]
    return server.eval(model.scripts[call.script], ("{q}:dupefilter", *KEYS["q"][1:]), [*me, *call.arguments])


@pytest.mark.parametrize("seed", range(10))
def test_replay(server: Server, seed: int) -> None:
    """Each script has the same reply and leaves the same data on a server."""
    recorded = crawl(seed).recorded
    assert len({evaluation.reply[0] for evaluation in recorded if isinstance(evaluation.reply, list)}) > 2
    with server.client() as client:
        assert list(replay(client, recorded, f"test:{uuid.uuid4().hex}:".encode())) == []
