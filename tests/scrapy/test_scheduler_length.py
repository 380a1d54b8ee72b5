"""`len(BloomScheduler)`: every waiting request, in Redis or in the worker."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scrapy import Request

from scrapy_bloom import BloomScheduler
from tests.support import crawling
from tests.support.in_process import start
from tests.support.servers import Server, running

Made = Callable[..., BloomScheduler]

# Enough for a worker to take several at once.
MANY = 40


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of this test's own."""
    with running("valkey") as server:
        yield server


@pytest.fixture
def made(server: Server, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Makes schedulers of one crawl."""
    monkeypatch.chdir(tmp_path)
    settings = {
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "REDIS_URL": server.url,
        "SCHEDULER_DUPEFILTER_KEY": key,
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
        "BLOOMFILTER_CAPACITY": 1000,
        "BLOOMFILTER_ERROR_RATE": 1e-12,
    }
    schedulers = []

    def make(is_open: bool = True) -> BloomScheduler:
        crawler = start(settings)
        scheduler: BloomScheduler = BloomScheduler.from_crawler(crawler)
        if is_open:
            assert crawler.spider is not None
            schedulers.append(scheduler)
            scheduler.open(crawler.spider)
        return scheduler

    yield make
    for scheduler in schedulers:
        scheduler.close("finished")


def enqueue(scheduler: BloomScheduler, *numbers: int) -> None:
    for number in numbers:
        assert scheduler.enqueue_request(Request(f"https://example.com/{number}"))


def test_before_open(made: Made) -> None:
    """The length of an unopened scheduler is 0."""
    scheduler = made(is_open=False)
    assert len(scheduler) == 0
    scheduler.server.close()


def test_in_the_outbox(made: Made) -> None:
    """An undelivered request waits."""
    scheduler = made()
    enqueue(scheduler, 1, 2, 3)
    assert len(scheduler) == 3


def test_in_the_queue(made: Made) -> None:
    """Requests queued by one worker wait for all workers."""
    one, other = made(), made()
    enqueue(one, 1, 2, 3)
    one.deliver()
    assert (len(one), len(other)) == (3, 3)
    enqueue(other, 4, 5)
    assert (len(one), len(other)) == (3, 5)


def test_taken_ahead(made: Made) -> None:
    """Requests taken ahead count until the engine gets them."""
    scheduler = made()
    enqueue(scheduler, *range(MANY))
    for left in reversed(range(MANY)):
        assert scheduler.next_request() is not None
        assert len(scheduler) == left
    assert scheduler.next_request() is None
    assert len(scheduler) == 0


def test_redis_away(made: Made, server: Server) -> None:
    """While Redis is unreachable a scheduler counts its own requests."""
    scheduler = made()
    enqueue(scheduler, *range(MANY))
    assert scheduler.next_request() is not None
    taken_ahead = len(scheduler) - int(server.client().zcard(scheduler.queue.key))
    assert taken_ahead > 0
    enqueue(scheduler, MANY, MANY + 1)
    server.kill()
    assert len(scheduler) == taken_ahead + 2
