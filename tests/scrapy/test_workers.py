"""Workers of one crawl, without an engine: their `len`, flushes beside active workers, and losses of data."""

from collections.abc import Callable, Iterator

import pytest
from scrapy import Request

from scrapy_bloom import BloomScheduler
from scrapy_bloom.transport.connect import disconnect
from tests.support.dupefilters import keys_of, said
from tests.support.in_process import end as end_crawl
from tests.support.kinds import Place
from tests.support.servers import Server
from tests.support.waiting import until

Opened = Callable[..., BloomScheduler]
PAGES = range(1, 21)
# Enough for a worker to take several at once.
MANY = 40
LOSSES = 20


@pytest.fixture(autouse=True)
def nothing_is_left(place: Place, key: str) -> Iterator[None]:
    """Assert that the workers of a test leave nothing behind."""
    yield
    client = place.client()
    assert keys_of(client, key) == []
    disconnect(client)


def enqueue(scheduler: BloomScheduler, numbers: range = PAGES) -> None:
    """Yield pages."""
    for number in numbers:
        scheduler.enqueue_request(Request(f"https://example.com/{number}"))


def fetched_by(scheduler: BloomScheduler) -> list[int]:
    """Take all waiting requests."""
    fetched: list[Request] = []

    def has_drained() -> bool:
        scheduler.has_pending_requests()
        fetched.extend(iter(scheduler.next_request, None))
        return not scheduler.has_pending_requests()

    until(has_drained)
    return sorted(int(request.url.rpartition("/")[2]) for request in fetched)


# The length: every waiting request, in Redis or in the worker.


def test_length(opened: Opened) -> None:
    """Undelivered requests count, as do those taken ahead, until the engine gets them."""
    scheduler = opened()
    enqueue(scheduler, range(MANY))
    assert len(scheduler) == MANY
    for left in reversed(range(MANY)):
        assert scheduler.next_request() is not None
        assert len(scheduler) == left
    assert scheduler.next_request() is None


def test_length_beside_another(opened: Opened) -> None:
    """Requests queued by one worker wait for all, as soon as they ask."""
    one, other = opened(), opened()
    enqueue(one, range(3))
    one.has_pending_requests()
    assert (len(one), len(other)) == (3, 0)
    enqueue(other, range(3, 5))
    assert other.next_request() is not None
    assert (len(one), len(other)) == (3, 4)
    fetched_by(one)
    fetched_by(other)


# Flushes. One script deletes queue and filter and registers the starter.

every_place = pytest.mark.parametrize("place", ["redis", "redis+cluster"], indirect=True)


@every_place
def test_flush_is_no_loss(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """After a flush beside an active worker both crawl each page again once, and no loss is reported."""
    old = opened()
    enqueue(old)
    assert fetched_by(old) == [*PAGES]
    new = opened(SCHEDULER_FLUSH_ON_START=True)
    enqueue(old, range(100, 101))  # so it learns about the flush
    assert [*fetched_by(old), *fetched_by(new)] == [100]
    enqueue(old)
    enqueue(new)
    assert sorted([*fetched_by(old), *fetched_by(new)]) == [*PAGES]
    assert [line.news.losses for each in (old, new) for line in each._worker.queues] == [0, 0]
    assert "lost" not in caplog.text
    (told,) = said(caplog)
    assert "or another worker started over" in told


@pytest.mark.parametrize("call", ["flush", "request_seen", "push", "pop", "clear"])
def test_calls_beside_the_script_are_refused(opened: Opened, call: str) -> None:
    """A subclass that changes queue or filter itself ends its crawl with an error that says what to do."""
    scheduler = opened()
    request = Request("https://example.com/")
    calls: dict[str, Callable[[], object]] = {
        "flush": scheduler.flush,
        "request_seen": lambda: scheduler.df.request_seen(request),
        "push": lambda: scheduler.queue.push(request),
        "pop": scheduler.queue.pop,
        "clear": scheduler.queue.clear,
    }
    with pytest.raises(Exception, match=rf"calls (\w+\.)?{call}, beside the script .*SCHEDULER_FLUSH_ON_START"):
        calls[call]()
    assert scheduler._has_ended
    scheduler.server.delete(*keys_of(scheduler.server, scheduler.queue_keys.queue.partition(":queue")[0]))


# Losses of the crawl's data.


def crawl(scheduler: BloomScheduler, number: int) -> None:
    """Crawl one page."""
    enqueue(scheduler, range(number, number + 1))
    assert fetched_by(scheduler) == [number]


def end(scheduler: BloomScheduler) -> None:
    """Close a scheduler, and end its crawl, as the engine does then."""
    scheduler.close("finished")
    end_crawl(scheduler.spider.crawler)


def test_eviction_that_goes_on(opened: Opened, valkey: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loss is logged once at once, and once at the end with the number of the others."""
    scheduler = opened()
    with valkey.client() as client:
        for number in range(LOSSES):
            crawl(scheduler, number)
            client.unlink(*keys_of(client, key))
        crawl(scheduler, LOSSES)
        text = "Redis has lost the crawl of the queue"
        assert [text in line for line in said(caplog)] == [True]
        assert scheduler.stats.get_value("bloomfilter/queue_losses") == LOSSES
        end(scheduler)
    told = [line for line in said(caplog) if text in line]
    assert ["x since the last such line" in line for line in told] == [False, True]


def test_worker_that_has_ended(opened: Opened, valkey: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that leaves before the last one, which deletes the filter, logs no loss."""
    first, last = opened(), opened()
    for number in range(5):
        crawl(first, number)
        crawl(last, 10 + number)
    caplog.set_level("INFO")
    end(first)
    end(last)
    assert said(caplog) == []
    assert ["It holds 10 requests" in line for line in caplog.messages if "It holds" in line] == [True, True]
    with valkey.client() as client:
        assert keys_of(client, key) == []
