"""SCHEDULER_FLUSH_ON_START beside active workers, or with a crash half-way."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from scrapy import Request, Spider

from devtools.waiting import until
from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler
from scrapy_bloom.queue.worker_state import Phase
from tests.support import crawling
from tests.support.clusters import running_cluster
from tests.support.in_process import start
from tests.support.servers import Server

PAGES = range(1, 21)
PLACES = ("one server", "a cluster", "a cluster, in other slots")
Opening = Callable[..., BloomScheduler]


@pytest.fixture(scope="module")
def node() -> Iterator[Server]:
    """A node of a cluster of two."""
    with running_cluster(2) as nodes:
        yield nodes[0]


@pytest.fixture(params=PLACES)
def open_one(
    request: pytest.FixtureRequest, valkey: Server, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Opening]:
    """Opens workers of one crawl, on one server or in one or two cluster slots."""
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "REDIS_URL": valkey.url,
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
        "BLOOMFILTER_CAPACITY": 1000,
        "BLOOMFILTER_ERROR_RATE": 1e-12,
        "BLOOMFILTER_LEASE": 1,
    }
    if request.param != PLACES[0]:
        settings["REDIS_URL"] = request.getfixturevalue("node").url
        settings["REDIS_PARAMS"] = {"redis_cls": "redis.RedisCluster"}
    if request.param != PLACES[1]:
        settings["SCHEDULER_DUPEFILTER_KEY"] = f"{key}:filter"
    opened = []

    def open_another(**further: object) -> BloomScheduler:
        crawler = start({**settings, **further})
        scheduler: BloomScheduler = BloomScheduler.from_crawler(crawler)
        opened.append(scheduler)
        assert crawler.spider is not None
        scheduler.open(crawler.spider)
        return scheduler

    yield open_another
    for scheduler in opened:
        scheduler.close("finished")
    kind: Any = redis.Redis if request.param == PLACES[0] else redis.RedisCluster
    with kind(host="127.0.0.1", port=urlsplit(settings["REDIS_URL"]).port) as client:
        assert list(client.scan_iter(match=f"*{key}*", count=10_000)) == []


def enqueue(scheduler: BloomScheduler) -> None:
    """Yield all pages."""
    for number in PAGES:
        scheduler.enqueue_request(Request(f"https://example.com/{number}"))


def fetched_by(scheduler: BloomScheduler) -> list[int]:
    """Take all waiting requests, once this worker has joined and delivered its own."""

    def has_delivered() -> bool:
        scheduler.has_pending_requests()
        return scheduler._worker.phase is Phase.WORKING and not scheduler._worker.has_news

    until(has_delivered)
    return sorted(int(request.url.rpartition("/")[2]) for request in iter(scheduler.next_request, None))


def before_the_filter_is_deleted(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Call a function once, between the deletion of the queue and that of the filter."""
    clear = BloomRFPDupeFilter.clear

    def clear_later(dupefilter: BloomRFPDupeFilter) -> None:
        monkeypatch.setattr(BloomRFPDupeFilter, "clear", clear)
        happens()
        clear(dupefilter)

    monkeypatch.setattr(BloomRFPDupeFilter, "clear", clear_later)


def test_links_that_are_found_meanwhile(open_one: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links queued before the old filter is deleted are fetched once in the new crawl."""
    old = open_one()
    enqueue(old)
    assert fetched_by(old) == [*PAGES]

    def go_on() -> None:
        for _ in range(10):
            # The worker learns that it has expired, and joins again when it may.
            assert old.next_request() is None
        enqueue(old)
        old._tick()

    # The old crawl has continued since the filter was first emptied.
    with monkeypatch.context() as patched:
        patched.setattr(BloomRFPDupeFilter, "_open_at", keeping(BloomRFPDupeFilter._open_at))
        before_the_filter_is_deleted(monkeypatch, go_on)
        new = open_one(SCHEDULER_FLUSH_ON_START=True)
    enqueue(old)
    assert sorted([*fetched_by(old), *fetched_by(new)]) == [*PAGES]


def keeping(open_at: Any) -> Any:
    """Return a function that opens a filter without flushing it."""
    return lambda dupefilter, key, flush: open_at(dupefilter, key, flush=False)  # noqa: ARG005


def is_closing(scheduler: BloomScheduler) -> bool:
    """Return whether a worker closes its queue."""
    workers: Any = scheduler.server.hgetall(scheduler.queue_keys.workers)
    return b"closing" in workers.get(scheduler.worker_name.encode(), b"")


@pytest.mark.parametrize(
    "who",
    [
        "a later start",
        "a worker at work",
        "a worker at work beside another spider",
        "an ending worker beside another spider",
    ],
)
def test_half_a_flush(open_one: Opening, key: str, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """If a worker dies between deleting queue and filter, another deletes the filter, even if two spiders use it."""
    if who.endswith("beside another spider"):
        open_one = partial(open_one, SCHEDULER_DUPEFILTER_KEY=f"{{{key}:queue}}:filter")
        open_one(SCHEDULER_QUEUE_KEY=f"{{{key}:queue}}:other")
    old = open_one(SCHEDULER_PERSIST=who == "a later start")
    enqueue(old)
    assert fetched_by(old) == [*PAGES]
    if who == "a later start":
        old.close("shutdown")

    def die() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BloomRFPDupeFilter, "_open_at", keeping(BloomRFPDupeFilter._open_at))
        before_the_filter_is_deleted(monkeypatch, die)
        with pytest.raises(KeyboardInterrupt):
            open_one(SCHEDULER_FLUSH_ON_START=True)
    if who == "an ending worker beside another spider":
        until(lambda: is_closing(old))
        old.close("finished")
    following = old if who in ("a worker at work", "a worker at work beside another spider") else open_one()
    assert fetched_by(following) == []
    enqueue(following)
    assert fetched_by(following) == [*PAGES]


def test_flush_is_no_loss(open_one: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An old worker that joins before the starter does reports no loss, nor does the starter."""
    old = open_one()
    enqueue(old)
    assert fetched_by(old) == [*PAGES]
    set_up = BloomScheduler._set_up_delivery

    def let_old_join(scheduler: BloomScheduler, spider: Spider) -> None:
        monkeypatch.setattr(BloomScheduler, "_set_up_delivery", set_up)
        assert old.next_request() is None
        assert fetched_by(old) == []
        set_up(scheduler, spider)

    monkeypatch.setattr(BloomScheduler, "_set_up_delivery", let_old_join)
    new = open_one(SCHEDULER_FLUSH_ON_START=True)
    assert old._watch.losses == new._watch.losses == 0
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "lost" not in told
    assert "or they started over" in told
    enqueue(new)
    assert fetched_by(new) == [*PAGES]


def test_flush_of_a_shared_filter(open_one: Opening, key: str) -> None:
    """A spider that starts over and finishes does not delete the filter that another spider goes on using."""
    shared = {"SCHEDULER_DUPEFILTER_KEY": f"{{{key}:queue}}:filter"}
    beside = {**shared, "SCHEDULER_QUEUE_KEY": f"{{{key}:queue}}:other"}
    other = open_one(**beside)
    enqueue(other)
    assert fetched_by(other) == [*PAGES]
    new = open_one(**shared, SCHEDULER_FLUSH_ON_START=True)
    other.df.filter.forget_cached()
    enqueue(other)
    assert fetched_by(other) == [*PAGES]
    new.close("finished")
    another = open_one(**beside)
    enqueue(another)
    assert fetched_by(another) == []


def test_flush_in_the_middle(open_one: Opening) -> None:
    """After a flush by an active worker no worker closes the queue, and all start afresh at once."""
    one, other = open_one(), open_one()
    enqueue(one)
    fetched = [*fetched_by(one), *fetched_by(other)]
    assert sorted(fetched) == [*PAGES]
    one.flush()
    assert one.server.hgetall(one.queue_keys.workers) == {}
    assert (one.next_request(), other.next_request()) == (None, None)
    enqueue(one)
    enqueue(other)
    assert sorted([*fetched_by(one), *fetched_by(other)]) == [*PAGES]
