"""A worker of a queue with its scripts, without an engine."""

from collections.abc import Callable
from itertools import count
from typing import Any

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.queue.values import Call, Offer, Phase
from scrapy_bloom.queue.worker import Worker
from scrapy_bloom.transport.scripts import FILTER, Script
from tests.support.script_server import ScriptServer

Send = Callable[[str, Call], Any]
SMALL = FilterParameters(1000, 1e-12)


class Source:
    """Filters to create, each with an id of its own."""

    def __init__(self, parameters: FilterParameters) -> None:
        self._parameters = parameters
        self._numbers = count()

    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        """Return a filter."""
        text = "".join("{} {} {} {};".format(*size) for size in self._parameters.sizes()) if sizes else ""
        return self._parameters.to_json(), f"{next(self._numbers)}f", "secret", 0, text

    def hasher(self, secret: bytes) -> Callable[[bytes], bytes]:
        """Return the function from a fingerprint to its bytes in a filter."""
        return self._parameters.hasher(secret)


class Driven:
    """A worker whose calls a test sends.

    Args:
        name: its name.
        send: executes a call.
        lease: its lease in seconds.
        parameters: of the filter; small, and without false positives by default.
        **options: of `Worker`.
    """

    def __init__(
        self, name: str, send: Send, lease: float = 60, parameters: FilterParameters = SMALL, **options: Any
    ) -> None:
        self.worker = Worker(name, lease, "project.Shop", Source(parameters), lambda member: member, **options)
        self._send = send

    @classmethod
    def on_server(cls, client: Any, queue: str, name: str, **options: Any) -> "Driven":
        """Return a worker of a queue on a server."""
        return cls(name, RequestQueue(client, queue, f"{{{queue}}}:dupefilter").send, **options)

    def step(self, want: int = 0) -> Call | None:
        """Execute the next call, if there is one."""
        call = self.worker.next_call(want)
        if call is not None:
            self.worker.receive(self._send(self.worker.name, call))
        return call

    def work_off(self) -> list[Call]:
        """Execute calls until there is no news, and return them."""
        return list(iter(self.step, None))

    def offer(self, *members: bytes, score: float = 0) -> None:
        """Offer requests."""
        for member in members:
            self.worker.offer(Offer(score, member, member))

    def take(self, want: int = 1) -> list[Any]:
        """Lease requests, and begin them; return their bytes."""
        self.work_off()
        self.step(want)
        self.work_off()
        entries = iter(self.worker.take, None)
        return [entry.member for entry in entries]

    def leave(self, mode: str = "finished") -> None:
        """Leave the queue."""
        self.work_off()
        self.worker.leave(mode)
        while self.worker.phase is not Phase.LEFT:
            self.step()


def in_memory(server: ScriptServer, queue: str = "queue") -> Send:
    """Return a function that executes calls on a server in memory."""
    keys = QueueKeys(queue)
    names = keys.of_scripts(keys.dupefilter)

    def send(worker: str, call: Call) -> Any:
        server.time += 1
        if call.script == "allocate":
            return server.eval(Script("allocate", *FILTER).text, names[:1], call.arguments)
        return server.eval(Script(call.script, *FILTER, "queue").text, names, (worker, *call.arguments))

    return send
