"""A worker of a queue on a real server, which runs when the test says so."""

from typing import Any

import redis

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.messages import Entry, Outcome
from scrapy_bloom.queue.request_queue import RequestQueue
from tests.support.driven import Driven, in_queues

PARAMETERS = FilterParameters(100, 1e-3)


class LiveWorker(Driven):
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
        super().__init__(name, in_queues([self.queue]), lease, PARAMETERS)
        self.join()

    def join(self) -> None:
        """Call until the worker works."""
        while not self.worker.is_joined:
            self.step()

    call = Driven.step

    def push(self, *members: bytes) -> None:
        """Offer requests, and have them queued."""
        self.offer(*members)
        self.step()

    def take(self, want: int = 1) -> list[Any]:
        """Take requests, which run from now on; return their entries."""
        taken: list[Entry] = []
        while len(taken) < want:
            self.step(1)  # a worker takes no more than its share
            if (entry := self.worker.take()) is None:
                break
            taken.append(entry)
        return taken

    def end(self, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
        """End a running request, and acknowledge it."""
        self.worker.finish(member, outcome)
        self.step()

    def leave(self, mode: str = "keep") -> None:
        """Leave the crawl."""
        self.worker.leave(mode)
        self.step()
