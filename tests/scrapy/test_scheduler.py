"""BloomScheduler as Scrapy sees it: its refusals, and the order and fate of requests."""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler
from scrapy_bloom.queue.messages import DeadWorker, Others, Received
from tests.support.in_process import end
from tests.support.proxy.link import forwarding
from tests.support.scenario import keys_of
from tests.support.selection import long_unless
from tests.support.servers import Server
from tests.support.waiting import until

SERIALIZERS = ("scrapy_redis.picklecompat", "scrapy_bloom.serializer")
Opened = Callable[..., BloomScheduler]

every_kind = pytest.mark.parametrize(
    "place", long_unless("redis+sentinel".__ne__, ["redis", "redis+cluster", "redis+sentinel"]), indirect=True
)


class Picky(BloomRFPDupeFilter):
    """A dupefilter that has no fingerprint of some requests."""

    def request_fingerprint(self, request: Request) -> str:
        if request.url.endswith("odd"):
            raise ValueError("odd")
        return super().request_fingerprint(request)


def page(name: object = "", **attributes: Any) -> Request:
    """A page of the shop."""
    return Request(f"http://shop.test/{name}", **attributes)


def names(requests: list[Request]) -> list[str]:
    """The names of pages."""
    return [request.url.removeprefix("http://shop.test/") for request in requests]


# The contract of a Scrapy scheduler.


def taken_from(scheduler: Scheduler, most: int | None = None) -> list[Request]:
    """Take all requests, or the first ones, in their order."""
    return list(islice(iter(scheduler.next_request, None), most))


@every_kind
def test_priority_over_what_was_taken_ahead(opened: Opened) -> None:
    """A request of higher priority precedes all waiting requests."""
    scheduler = opened()
    for number in range(40):
        scheduler.enqueue_request(page(number, priority=number % 3))
    assert [request.priority for request in taken_from(scheduler, 5)] == [2] * 5
    scheduler.enqueue_request(page("last", priority=-1))
    scheduler.enqueue_request(page("first", priority=3))
    rest = names(taken_from(scheduler))
    assert (rest[0], rest[-1], len(rest)) == ("first", "last", 37)


@every_kind
def test_dont_filter(opened: Opened) -> None:
    """A request with `dont_filter` is always fetched and never added to the filter."""
    scheduler = opened()
    assert scheduler.enqueue_request(page("seen"))
    assert names(taken_from(scheduler)) == ["seen"]
    assert not scheduler.enqueue_request(page("seen"))
    for _ in range(2):
        assert scheduler.enqueue_request(page("seen", dont_filter=True))
        assert [request.dont_filter for request in taken_from(scheduler)] == [True]
    assert scheduler.enqueue_request(page("login", dont_filter=True))
    assert scheduler.enqueue_request(page("login"))
    assert [request.dont_filter for request in taken_from(scheduler)].count(False) == 1


@every_kind
def test_always(opened: Opened) -> None:
    """A request of BLOOMFILTER_ALWAYS is new once in each run, to any of its workers."""
    patterns = [r"/sitemap\.xml$", "^http://shop.test/$"]
    for expected in (["page", "sitemap.xml"], ["sitemap.xml"]):
        scheduler, other = (opened(BLOOMFILTER_ALWAYS=patterns, SCHEDULER_PERSIST=True) for _ in range(2))
        for name in ("sitemap.xml", "page") * 2:
            scheduler.enqueue_request(page(name))
        assert sorted(names(taken_from(scheduler))) == expected
        other.enqueue_request(page("sitemap.xml"))
        assert taken_from(other) == []
        scheduler.close("finished")
        other.close("finished")


@every_kind
def test_repeat_of_another_worker_is_dropped_as_any(opened: Opened) -> None:
    """A repeat found by a batch's check is logged and counted once, like an immediate repeat."""
    one, other = opened(), opened()
    dropped: list[tuple[str, str]] = []

    def tell(request: Request, spider: Spider) -> None:
        dropped.append((request.url, spider.name))

    other.spider.crawler.signals.connect(tell, signals.request_dropped)
    assert one.enqueue_request(page())
    assert names(taken_from(one)) == [""]
    assert other.enqueue_request(page())
    assert other.enqueue_request(page("further"))
    assert names(taken_from(other)) == ["further"]
    assert dropped == [(page().url, "shop")]
    assert not other.enqueue_request(page())
    # The engine reports a request that is refused at once.
    assert dropped == [(page().url, "shop")]
    end(other.spider.crawler)
    assert other.stats.get_value("dupefilter/filtered") == 2


def test_lost_reply_at_the_end(valkey: Server, key: str, opened: Opened) -> None:
    """A worker whose leave was executed without a reply ends, and no key of the crawl stays."""
    with forwarding(valkey.port) as link, valkey.client() as client:
        scheduler = opened(REDIS_URL=link.url)
        assert scheduler.enqueue_request(page())
        assert len(taken_from(scheduler)) == 1
        # The engine has no request in progress: the crawl is finished.
        assert taken_from(scheduler) == []
        until(lambda: not scheduler.has_pending_requests())
        link.link.lost_replies = 1
        scheduler.close("finished")
        assert link.link.lost_replies == 0
        assert keys_of(client, key) == set()


@pytest.mark.parametrize("scheduler_class", [Scheduler, BloomScheduler])
def test_stats_of_the_queue(scheduler_class: type[Scheduler], opened: Opened) -> None:
    """Requests queued and taken are counted as by scrapy-redis's Scheduler; repeats are not."""
    other, scheduler = opened(scheduler_class), opened(scheduler_class)
    assert other.enqueue_request(page())
    assert len(taken_from(other)) == 1
    for request in (page(), page("further", dont_filter=True), page("further")):
        scheduler.enqueue_request(request)
    assert len(taken_from(scheduler)) == 2
    # The worker learns only at its end that this is a repeat.
    scheduler.enqueue_request(page(priority=1))
    scheduler.enqueue_request(page("last"))
    scheduler.close("finished")
    assert scheduler.stats.get_value("scheduler/enqueued/redis") == 3
    assert scheduler.stats.get_value("scheduler/dequeued/redis") == 2


def test_priorities_beyond_what_a_server_stores(opened: Opened) -> None:
    """A request of any priority is queued in its right place."""
    scheduler = opened()
    for name, priority in (("last", -(10**400)), ("first", 10**400), ("second", 1)):
        scheduler.enqueue_request(page(name, dont_filter=True, priority=priority))
    scheduler._sync()
    assert names(taken_from(scheduler)) == ["first", "second", "last"]


NO_PRIORITIES = (math.nan, math.inf, -math.inf, 0.5, 1.0, Decimal(3), Fraction(1, 3), "7", None)


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_priority_that_is_no_whole_number(serializer: str, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A request whose priority Redis cannot sort by is crawled by its own process, with one warning a callback."""
    scheduler = opened(SCHEDULER_SERIALIZER=serializer)
    requests = [Request(f"http://shop.test/{number}") for number in range(len(NO_PRIORITIES))]
    for request, priority in zip(requests, NO_PRIORITIES, strict=True):
        request.priority = priority  # type: ignore[assignment]  # the point of the test
        assert scheduler.enqueue_request(request)
    assert {*taken_from(scheduler)} == {*requests}
    assert scheduler.stats.get_value("scheduler/unserializable") == len(NO_PRIORITIES)
    (told,) = [line for line in caplog.messages if "cannot be serialized" in line]
    assert f"{requests[0]} cannot be serialized: TypeError: 'float' object cannot be interpreted as an integer" in told
    assert "an int as the priority" in told
    # A priority that stands for a whole number is stored as that number.
    assert scheduler.enqueue_request(page(dont_filter=True, priority=True))
    (taken,) = taken_from(scheduler)
    assert (type(taken.priority), taken.priority) == (int, 1)


def test_one_request_twice(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Request object that was yielded twice, and cannot be serialized, is crawled twice, as under Scrapy."""
    scheduler = opened()
    # An engine that is done with none yet.
    monkeypatch.setattr("scrapy_bloom.scheduler.engine.in_progress", lambda _: scheduler._taken)
    request = page(dont_filter=True, callback=lambda _: None)
    for _ in range(2):
        assert scheduler.enqueue_request(request)
    first, second = taken_from(scheduler)
    assert first is not second
    assert (first.url, first.callback) == (second.url, second.callback) == (request.url, request.callback)


def test_request_of_a_producer_at_the_end(opened: Opened, valkey: Server, key: str) -> None:
    """A request queued while the last worker ends stays, and so does the filter."""
    scheduler = opened()
    assert scheduler.enqueue_request(page())
    assert len(taken_from(scheduler)) == 1
    assert taken_from(scheduler) == []
    member = scheduler.queue._encode_request(page("late"))
    scheduler.server.zadd(scheduler.queue_keys.queue, {member: 0})
    scheduler.close("finished")
    with valkey.client() as client:
        assert client.zrange(scheduler.queue_keys.queue, 0, -1) == [member]
        assert client.exists(f"{{{key}}}:shop")
    assert names(taken_from(opened())) == ["late"]


@every_kind
def test_request_of_another_spider(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A request whose callback the spider lacks is logged with the setting to blame."""
    scheduler = opened()
    other = {**page().to_dict(), "callback": "parse_item"}
    scheduler.server.zadd(scheduler.queue_keys.queue, {scheduler.queue.serializer.dumps(other): 0})
    assert taken_from(scheduler) == []
    assert "the spider 'shop' has no method 'parse_item'" in caplog.text
    assert f"A request of the queue {scheduler.queue_keys.queue!r} cannot be read" in caplog.text
    assert "SCHEDULER_QUEUE_KEY must" in caplog.text


def test_news_wait(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick sends the news if there was no call for a while."""
    scheduler = opened(BLOOMFILTER_PARTITIONS=2)
    for number in range(20):
        scheduler.enqueue_request(page(number))
    for seconds, is_left in ((3600, True), (0, False)):
        monkeypatch.setattr("scrapy_bloom.scheduler._REST_SECONDS", seconds)
        scheduler._tick()
        assert any(line.outbox for line in scheduler._worker.queues) == is_left


def test_a_dead_worker_is_told(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """The leases that it had in each partition are in one line, and counted."""
    scheduler = opened(BLOOMFILTER_PARTITIONS=2)
    for index, requests in enumerate((3, 4)):
        others = Others(
            is_quiet=False, number=0, earliest=0, now=0, departures=0, dead=(DeadWorker("dead", 60, requests),)
        )
        scheduler._note_reply(index, Received(others=others))
    assert [caplog.text.count(f"requeued {requests} requests of its leases") for requests in (3, 4)] == [1, 1]
    assert scheduler.stats.get_value("bloomfilter/recovered") == 7


def test_settings_without_effect(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A project that sets another scheduler's setting is told that it has no effect; Scrapy's defaults are no such."""
    opened()
    assert "no effect" not in caplog.text
    opened(SCHEDULER_IDLE_BEFORE_CLOSE=10, SCHEDULER_PRIORITY_QUEUE="queues.Own")
    for name in ("SCHEDULER_IDLE_BEFORE_CLOSE = 10", "SCHEDULER_PRIORITY_QUEUE = 'queues.Own'"):
        assert f"{name} has no effect under BloomScheduler" in caplog.text


def test_item_key_without_its_pipeline(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A project that names the key of items, and has no pipeline that reads it, is told so."""
    opened()
    assert "BLOOMFILTER_ITEM_KEY" not in caplog.text
    opened(BLOOMFILTER_ITEM_KEY="url")
    assert "BLOOMFILTER_ITEM_KEY has no effect: ITEM_PIPELINES lacks UniqueItemsPipeline" in caplog.text


def test_without_deduplication(opened: Opened) -> None:
    """Under Scrapy's BaseDupeFilter no request is a repeat, to this worker or to another one, and none is marked."""
    one, other = (opened(DUPEFILTER_CLASS="scrapy.dupefilters.BaseDupeFilter") for _ in range(2))
    for number, scheduler in enumerate((one, one, other)):
        assert scheduler.enqueue_request(page(meta={"number": number}))
        assert [request.meta["number"] for request in taken_from(scheduler)] == [number]
    assert one.df.filter.info().count == 0


def test_request_without_a_fingerprint(opened: Opened) -> None:
    """An error of the user's fingerprint is that of its request alone, and the crawl goes on."""
    scheduler = opened(DUPEFILTER_CLASS=f"{__name__}.Picky")
    with pytest.raises(ValueError, match="odd"):
        scheduler.enqueue_request(page("odd"))
    assert scheduler.enqueue_request(page("even"))
    assert names(taken_from(scheduler)) == ["even"]
