"""A worker of a queue with its scripts, without an engine."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Call, Offer, Received, Terms
from scrapy_bloom.queue.queue import Queue
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.queue.worker import Worker
from scrapy_bloom.transport.scripts import FILTER, Script
from tests.support.script_server import ScriptServer

Send = Callable[[str, int, Call], Any]
SMALL = FilterParameters(1000, 1e-12)


class Source:
    """Filters to create, each with an id of its own."""

    def __init__(self, parameters: FilterParameters) -> None:
        self._parameters = parameters
        self._numbers = count()

    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        """Return a filter."""
        text = "".join("{} {} {} {};".format(*size) for size in self._parameters.sizes()) if sizes else ""
        return (
            self._parameters.to_json(),
            f"{next(self._numbers)}f",
            "secret",
            round((self._parameters.ttl or 0) * 1000),
            text,
        )

    def hasher(self, secret: bytes) -> Callable[[bytes], bytes]:
        """Return the function from a fingerprint to its bytes in a filter."""
        return self._parameters.hasher(secret)


class Driven:
    """A worker whose calls a test sends.

    Args:
        name: its name.
        send: executes a call in the queue of an index.
        lease: its lease in seconds.
        parameters: of the filter; small, and without false positives by default.
        flush: delete the crawl at the first join.
        **terms: of `Terms`.

    Attributes:
        now: its clock, in seconds.
    """

    def __init__(
        self,
        name: str,
        send: Send,
        lease: float = 60,
        parameters: FilterParameters = SMALL,
        *,
        flush: bool = False,
        **terms: Any,
    ) -> None:
        spider = terms.pop("spider", "project.Shop")
        agreed = Terms(lease, spider, Source(parameters), lambda member: member, **terms)
        self.name, self.now = name, 0.0
        self.queues = [Queue(agreed, flush=flush) for _ in range(agreed.queues)]
        self.worker = Worker(self.queues)
        self._send = send

    @classmethod
    def on_server(cls, client: Any, queue: str, name: str, **options: Any) -> "Driven":
        """Return a worker of a queue on a server."""
        return cls(name, in_queues([RequestQueue(client, queue, f"{{{queue}}}:dupefilter")]), **options)

    def step(self, want: int = 0) -> list[Received]:
        """Execute the next calls, and return what their replies say."""
        calls = self.worker.next_calls(want, self.now)
        return [self.worker.receive(index, call, self._send(self.name, index, call)) for index, call in calls]

    def lose(self, want: int = 0, *, is_executed: bool) -> list[tuple[int, Call]]:
        """Lose the replies to the next calls, or the calls themselves, and return them."""
        calls = self.worker.next_calls(want, self.now)
        for index, call in calls:
            if is_executed:
                self._send(self.name, index, call)
            self.worker.lose(index)
        return calls

    def work_off(self) -> list[Received]:
        """Execute calls until there is no news, and return what their replies say."""
        return [received for replies in iter(self.step, []) for received in replies]

    def offer(self, *members: bytes, score: float = 0) -> None:
        """Offer requests."""
        for member in members:
            self.worker.offer(Offer(score, member, member))

    def take(self, want: int = 1) -> list[bytes]:
        """Lease requests, and begin them; return their bytes."""
        self.work_off()
        self.step(want)
        self.work_off()
        return [entry.member for entry in iter(self.worker.take, None)]

    def leave(self, mode: str = "finished") -> None:
        """Leave the queue."""
        self.work_off()
        self.worker.leave(mode)
        while not self.worker.has_left:
            self.step()


def in_queues(queues: Sequence[RequestQueue]) -> Send:
    """Return a function that executes calls in these queues."""
    return lambda worker, index, call: queues[index].send(worker, call)


def in_memory(server: ScriptServer, queue: str = "queue") -> Send:
    """Return a function that executes calls on a server in memory; queues behind the first one have a number."""

    def send(worker: str, index: int, call: Call) -> Any:
        server.time += 1000
        keys = QueueKeys(f"{queue}{index or ''}")
        names = keys.of_scripts(keys.dupefilter)
        text = Script(call.script, *FILTER, "steps", "queue").text
        return server.eval(text, names, (worker, *call.arguments))

    return send
