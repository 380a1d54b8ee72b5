"""BloomScheduler as Scrapy sees it: its refusals, and the order and fate of requests."""

import contextlib
import math
import operator
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.settings import Settings
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomScheduler
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.values import Reaped
from scrapy_bloom.transport.retry import RedisUnreachableError
from tests.support import crawling
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


def page(name: object = "", **attributes: Any) -> Request:
    """A page of the shop."""
    return Request(f"http://shop.test/{name}", **attributes)


def names(requests: list[Request]) -> list[str]:
    """The names of pages."""
    return [request.url.removeprefix("http://shop.test/") for request in requests]


@pytest.mark.parametrize(
    ("setting", "value", "instead"),
    [
        ("SCHEDULER_QUEUE_CLASS", "scrapy_redis.queue.FifoQueue", "scrapy_redis.queue.PriorityQueue"),
        ("SCHEDULER_QUEUE_CLASS", "scrapy_redis.queue.LifoQueue", "scrapy_redis.queue.PriorityQueue"),
        ("DUPEFILTER_CLASS", "scrapy_redis.dupefilter.RFPDupeFilter", "scrapy_bloom.BloomRFPDupeFilter"),
        ("DUPEFILTER_CLASS", "scrapy.dupefilters.RFPDupeFilter", "scrapy_bloom.BloomRFPDupeFilter"),
    ],
)
def test_unfit_parts_are_refused(setting: str, value: str, instead: str) -> None:
    """An unsuitable queue or filter is refused with the setting to change, before any connection."""
    settings = Settings({"DUPEFILTER_CLASS": crawling.BLOOM, "REDIS_URL": "redis://127.0.0.1:1", setting: value})
    with pytest.raises(ConfigError) as raised:
        BloomScheduler.from_settings(settings)
    assert f"{setting} = {value!r}" in str(raised.value)
    assert instead in str(raised.value)


@pytest.mark.parametrize("queue", [None, "scrapy_redis.queue.PriorityQueue", "scrapy_redis.queue.SpiderPriorityQueue"])
def test_fit_parts(valkey: Server, queue: str | None) -> None:
    """Its own filter and scrapy-redis's queue, by either name or by default, are accepted."""
    settings = {"DUPEFILTER_CLASS": crawling.BLOOM, "REDIS_URL": valkey.url, "SCHEDULER_QUEUE_CLASS": queue}
    with contextlib.closing(BloomScheduler.from_settings(Settings(settings)).server) as server:
        assert server.ping()


# The contract of a Scrapy scheduler.


def taken_from(scheduler: Scheduler, most: int | None = None) -> list[Request]:
    """Take all requests, or the first ones, in their order."""
    return list(islice(iter(scheduler.next_request, None), most))


@pytest.mark.parametrize("scheduler_class", [Scheduler, BloomScheduler])
def test_priorities(scheduler_class: type[Scheduler], opened: Opened) -> None:
    """Requests come by priority, highest first, as from scrapy-redis's Scheduler."""
    scheduler = opened(scheduler_class)
    given = [0, 5, -3, 10, 5, -20, 1, 0, 7, 3, 2, 4, 6, 8, 9, -1, -2, -5, 11, 12]
    for number, priority in enumerate(given):
        assert scheduler.enqueue_request(page(number, priority=priority))
    assert [request.priority for request in taken_from(scheduler)] == sorted(given, reverse=True)


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


@pytest.mark.parametrize(("max_deliveries", "leased"), [(2, 1), (3, 2), (0, 2)])
def test_request_on_its_last_delivery(max_deliveries: int, leased: int, valkey: Server, opened: Opened) -> None:
    """A request on its last delivery is taken alone; earlier deliveries run beside others."""
    scheduler = opened(BLOOMFILTER_MAX_DELIVERIES=max_deliveries)
    for number in range(6):
        scheduler.enqueue_request(page(number, priority=-number))
    scheduler._delivery.deliver()
    keys = scheduler.queue_keys
    with valkey.client() as client:
        first = client.zrange(keys.queue, 0, 0)[0]
        client.hset(keys.deliveries, first, "1")
        client.zremrangebyrank(keys.queue, 2, -1)
        assert names(taken_from(scheduler, 1)) == ["0"]
        assert client.hget(keys.suspects, scheduler.worker_name) == first
        assert sum(map(client.zcard, keys.of_worker(scheduler.worker_name))) == leased
    assert names(taken_from(scheduler)) == ["1"]


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


@every_kind
def test_receipt_at_the_end(opened: Opened) -> None:
    """A request that is queued at the worker's end is reported then, and not before."""
    scheduler = opened(SCHEDULER_PERSIST=True)
    queued: list[int] = []
    scheduler.enqueue_request(page())
    scheduler.when_queued(lambda: queued.append(scheduler.server.zcard(scheduler.queue_keys.queue)))
    assert queued == []
    scheduler.close("shutdown")
    assert queued == [1]


def taken_in_time(scheduler: Scheduler, number: int) -> list[str]:
    """Take so many requests, some of which may still be on their way; return their names."""
    taken: list[str] = []

    def has_taken() -> bool:
        taken.extend(names(taken_from(scheduler)))
        return len(taken) >= number

    until(has_taken)
    return taken


def test_priorities_beyond_what_a_server_stores(opened: Opened) -> None:
    """A request of any priority is queued in its right place."""
    scheduler = opened()
    for name, priority in (("last", -(10**400)), ("first", 10**400), ("second", 1)):
        scheduler.enqueue_request(page(name, dont_filter=True, priority=priority))
    scheduler._delivery.deliver()
    assert taken_in_time(scheduler, 3) == ["first", "second", "last"]


class Score:
    """A user's whole number, like numpy's."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


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
    assert f"{requests[0]} cannot be serialized: priority = nan: must be a whole" in told
    # A priority that stands for a whole number is stored as that number.
    for given in (Score(4), True):
        taken = page(dont_filter=True)
        taken.priority = given  # type: ignore[assignment]  # as above
        assert scheduler.enqueue_request(taken)
        (taken,) = taken_from(scheduler)
        assert (type(taken.priority), taken.priority) == (int, operator.index(given))


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


def test_lost_reply_in_the_middle(valkey: Server, opened: Opened) -> None:
    """Requests before and after a sync without a reply are queued once."""
    with forwarding(valkey.port) as link:
        scheduler = opened(REDIS_URL=link.url)
        scheduler.enqueue_request(page("first", dont_filter=True))
        scheduler._heartbeat.stop()  # or the lost reply may be that of a heartbeat
        link.link.lost_replies = 1
        with pytest.raises(RedisUnreachableError):
            scheduler._delivery.deliver()
        scheduler.enqueue_request(page("second", dont_filter=True))
        assert sorted(taken_in_time(scheduler, 2)) == ["first", "second"]
        scheduler.close("finished")


@pytest.mark.parametrize("setting", ["SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_KEY"])
@pytest.mark.parametrize("template", ["%(spidr)s:x", "%(spider):x", "100%"])
def test_percent_signs_that_mean_nothing(setting: str, template: str, opened: Opened) -> None:
    """The error names the setting and the placeholders that it may have."""
    with pytest.raises(ConfigError, match=f"^{setting} = .*may have %\\(spider\\)s in it"):
        opened(**{setting: template})


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
def test_crawl_that_goes_on(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A resumed crawl logs it, and calls no deprecated API of Scrapy."""
    caplog.set_level("INFO")
    first = opened(SCHEDULER_PERSIST=True)
    first.enqueue_request(page())
    first.close("shutdown")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScrapyDeprecationWarning)
        second = opened(SCHEDULER_PERSIST=True)
    assert f"resumes with 1 request in the queue {second.queue_keys.queue!r}" in caplog.text


@every_kind
def test_dead_letter_is_told_once(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """An unreadable request is counted and logged once, however often the worker polls."""
    scheduler = opened()
    scheduler.server.zadd(scheduler.queue_keys.queue, {b"nothing that a worker reads": 0})
    for _ in range(5):
        assert taken_from(scheduler) == []
        scheduler.has_pending_requests()
    assert scheduler.stats.get_value("bloomfilter/dead_letters") == 1
    assert caplog.text.count("cannot be read") == 1


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


def test_news_of_partitions_wait(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick sends the news of the partitions that had no call for a while."""
    scheduler = opened(BLOOMFILTER_PARTITIONS=2)
    for number in range(20):
        scheduler.enqueue_request(page(number))
    for seconds, is_left in ((3600, True), (0, False)):
        monkeypatch.setattr("scrapy_bloom.scheduler._REST_SECONDS", seconds)
        scheduler._tick()
        assert any(part.outbox for part in scheduler._worker.parts) == is_left


def test_a_dead_worker_is_told_once(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """The leases that it had in all partitions are in one line."""
    scheduler = opened(BLOOMFILTER_PARTITIONS=2)
    for part, requests in zip(scheduler._worker.parts, (3, 4), strict=True):
        part.reaped.append(Reaped("dead", 60, requests))
    scheduler._delivery.report()
    scheduler._delivery.report()
    assert caplog.text.count("requeued") == caplog.text.count("requeued 7 requests of its leases") == 1
    assert scheduler.stats.get_value("bloomfilter/recovered") == 7
