"""A worker of a queue on a real server, which runs when the test says so."""

import secrets
from typing import Any

import redis

from scrapy_bloom.filter import hashing
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.queue.values import Entry, Offer, Outcome, Phase
from scrapy_bloom.queue.worker import Worker

PARAMETERS = FilterParameters(100, 1e-3)


class _Source:
    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        text = "".join("{} {} {} {};".format(*size) for size in PARAMETERS.sizes()) if sizes else ""
        return PARAMETERS.to_json(), secrets.token_hex(8), hashing.new_secret(), 0, text


class LiveWorker:
    """A registered worker. The fingerprint of each request is its bytes.

    Args:
        client: a client of the server.
        queue: the queue's key.
        filter_key: the filter's key.
        name: the worker's name.
        lease: its lease in seconds.
    """

    def __init__(
        self, client: redis.Redis, queue: str, filter_key: str, name: str = "worker", lease: float = 60.0
    ) -> None:
        self.queue = RequestQueue(client, queue, filter_key)
        self.worker = Worker(name, lease, "project.Shop", _Source(), lambda member: member)
        self.join()

    def join(self) -> None:
        """Call until the worker works."""
        while self.worker.phase is not Phase.WORK:
            self.call()

    def call(self, want: int = 0) -> None:
        """Execute the next call, if there is one."""
        if (call := self.worker.next_call(want)) is not None:
            self.worker.receive(self.queue.send(self.worker.name, call))

    def push(self, *members: bytes) -> None:
        """Offer requests, and have them queued."""
        for member in members:
            self.worker.offer(Offer(0.0, member, member))
        self.call()

    def take(self, number: int = 1) -> list[Entry]:
        """Take requests, which run from now on."""
        taken: list[Entry] = []
        while len(taken) < number:
            self.call(1)  # a worker takes no more than its share
            if (entry := self.worker.take()) is None:
                break
            taken.append(entry)
        return taken

    def end(self, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
        """End a running request, and acknowledge it."""
        self.worker.finish(member, outcome)
        self.call()

    def leave(self, mode: str = "keep") -> None:
        """Leave the crawl."""
        self.worker.leave(mode)
        self.call()
