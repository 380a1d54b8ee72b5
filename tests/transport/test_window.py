"""The window of a queue worker in an outage: only a reply that may be lost or late says something about the link."""

from contextlib import closing

import pytest

from scrapy_bloom import BloomFilter, UnavailableError
from scrapy_bloom._runtime import TUNING
from scrapy_bloom.delivery.executor import Executor
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.operations import RequestQueue
from scrapy_bloom.queue.worker import QueueWorker
from tests.support.holder import Holder
from tests.support.servers import running

ATTEMPTS = 20


def test_an_outage_leaves_the_window() -> None:
    """Checks that find no server halve the window once at most: for the connection that broke."""
    with running("valkey") as server, closing(server.client()) as client:
        bloom = BloomFilter(client, "filter", retry_timeout=0)
        worker = QueueWorker("one", "60", 100)
        executor = Executor(worker, RequestQueue(client, "requests"), Holder(bloom))
        worker.offer(OutboxEntry(b"request", 0, b"item"))
        while not worker.state.to_check:
            executor.execute_next()
        server.kill()
        for _ in range(ATTEMPTS):
            with pytest.raises(UnavailableError):
                executor.execute_next()
    assert worker.state.window.max_bytes >= TUNING.sync_bytes // 2
