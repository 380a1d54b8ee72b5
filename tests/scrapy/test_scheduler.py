"""BloomScheduler as Scrapy sees it: its refusals, and the order and fate of requests."""

import contextlib
import math
import operator
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import islice

import pytest
from scrapy import Request, Spider, signals
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.settings import Settings
from scrapy_redis.scheduler import Scheduler

from devtools.proxy.link import forwarding
from devtools.waiting import until
from scrapy_bloom import BloomScheduler
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.values import Call
from scrapy_bloom.transport.retry import RedisUnreachableError
from tests.support import crawling
from tests.support.scenario import keys_of
from tests.support.selection import long_unless
from tests.support.servers import Server


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
    settings = Settings({"DUPEFILTER_CLASS": crawling.BLOOM, "REDIS_URL": valkey.url})
    if queue is not None:
        settings.set("SCHEDULER_QUEUE_CLASS", queue)
    with contextlib.closing(BloomScheduler.from_settings(settings).server) as server:
        assert server.ping()


# The contract of a Scrapy scheduler.

SERIALIZERS = ("scrapy_redis.picklecompat", "scrapy_bloom.serializers.json")
Opened = Callable[..., BloomScheduler]


every_kind = pytest.mark.parametrize(
    "place", long_unless("redis+sentinel".__ne__, ["redis", "redis+cluster", "redis+sentinel"]), indirect=True
)


def taken_from(scheduler: Scheduler, most: int | None = None) -> list[Request]:
    """Take all requests, or the first ones, in their order."""
    return list(islice(iter(scheduler.next_request, None), most))


@pytest.mark.parametrize("scheduler_class", [Scheduler, BloomScheduler])
def test_priorities(scheduler_class: type[Scheduler], opened: Opened) -> None:
    """Requests come by priority, highest first, as from scrapy-redis's Scheduler."""
    scheduler = opened(scheduler_class)
    given = [0, 5, -3, 10, 5, -20, 1, 0, 7, 3, 2, 4, 6, 8, 9, -1, -2, -5, 11, 12]
    for number, priority in enumerate(given):
        assert scheduler.enqueue_request(Request(f"http://shop.test/{number}", priority=priority))
    assert [request.priority for request in taken_from(scheduler)] == sorted(given, reverse=True)


@every_kind
def test_priority_over_what_was_taken_ahead(opened: Opened) -> None:
    """A request of higher priority precedes all waiting requests."""
    scheduler = opened()
    for number in range(40):
        scheduler.enqueue_request(Request(f"http://shop.test/{number}", priority=number % 3))
    assert [request.priority for request in taken_from(scheduler, 5)] == [2] * 5
    scheduler.enqueue_request(Request("http://shop.test/last", priority=-1))
    scheduler.enqueue_request(Request("http://shop.test/first", priority=3))
    rest = taken_from(scheduler)
    assert rest[0].url == "http://shop.test/first"
    assert rest[-1].url == "http://shop.test/last"
    assert len(rest) == 37


@pytest.mark.parametrize(("max_deliveries", "leased"), [(2, 1), (3, 2), (0, 2)])
def test_request_on_its_last_delivery(max_deliveries: int, leased: int, valkey: Server, opened: Opened) -> None:
    """A request on its last delivery is taken alone; earlier deliveries run beside others."""
    scheduler = opened(BLOOMFILTER_MAX_DELIVERIES=max_deliveries)
    for number in range(6):
        scheduler.enqueue_request(Request(f"http://shop.test/{number}", priority=-number))
    scheduler._delivery.deliver()
    keys = scheduler.queue_keys
    with valkey.client() as client:
        first = client.zrange(keys.queue, 0, 0)[0]
        client.hset(keys.deliveries, first, "1")
        client.zremrangebyrank(keys.queue, 2, -1)
        assert [request.url for request in taken_from(scheduler, 1)] == ["http://shop.test/0"]
        assert client.hget(keys.suspects, scheduler.worker_name) == first
        assert sum(map(client.zcard, keys.of_worker(scheduler.worker_name))) == leased
    assert [request.url for request in taken_from(scheduler)] == ["http://shop.test/1"]


@every_kind
def test_dont_filter(opened: Opened) -> None:
    """A request with `dont_filter` is always fetched and never added to the filter."""
    scheduler = opened()
    seen, again = Request("http://shop.test/"), Request("http://shop.test/", dont_filter=True)
    assert scheduler.enqueue_request(seen)
    assert [request.url for request in taken_from(scheduler)] == [seen.url]
    assert not scheduler.enqueue_request(seen)
    for _ in range(2):
        assert scheduler.enqueue_request(again)
        assert [(request.url, request.dont_filter) for request in taken_from(scheduler)] == [(seen.url, True)]
    login = Request("http://shop.test/login", dont_filter=True)
    assert scheduler.enqueue_request(login)
    assert scheduler.enqueue_request(login.replace(dont_filter=False))
    assert [request.dont_filter for request in taken_from(scheduler)].count(False) == 1


@every_kind
def test_always(opened: Opened) -> None:
    """A request of BLOOMFILTER_ALWAYS is new once in each run, to any of its workers."""
    page, sitemap = Request("http://shop.test/page"), Request("http://shop.test/sitemap.xml")
    for expected in ([page.url, sitemap.url], [sitemap.url]):
        patterns = [r"/sitemap\.xml$", "^http://shop.test/$"]
        scheduler, other = (opened(BLOOMFILTER_ALWAYS=patterns, SCHEDULER_PERSIST=True) for _ in range(2))
        for request in (sitemap, page, sitemap, page):
            scheduler.enqueue_request(request)
        assert sorted(request.url for request in taken_from(scheduler)) == expected
        other.enqueue_request(sitemap)
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

    crawler = other.spider.crawler
    crawler.signals.connect(tell, signals.request_dropped)
    page, further = Request("http://shop.test/"), Request("http://shop.test/further")
    assert one.enqueue_request(page)
    assert [request.url for request in taken_from(one)] == [page.url]
    assert other.enqueue_request(page)
    assert other.enqueue_request(further)
    assert [request.url for request in taken_from(other)] == [further.url]
    assert dropped == [(page.url, "shop")]
    assert not other.enqueue_request(page)
    # The engine reports a request that is refused at once.
    assert dropped == [(page.url, "shop")]
    crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")
    assert crawler.stats.get_value("dupefilter/filtered") == 2


def test_lost_reply_at_the_end(valkey: Server, key: str, opened: Opened) -> None:
    """A worker whose leave was executed without a reply ends, and no key of the crawl stays."""
    with forwarding(valkey.port) as link, valkey.client() as client:
        scheduler = opened(REDIS_URL=link.url)
        assert scheduler.enqueue_request(Request("http://shop.test/"))
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
    shared, further = Request("http://shop.test/"), Request("http://shop.test/further")
    assert other.enqueue_request(shared)
    assert len(taken_from(other)) == 1
    for request in (shared, further, further.replace(dont_filter=True)):
        scheduler.enqueue_request(request)
    assert len(taken_from(scheduler)) == 2
    # The worker learns only at its end that this is a repeat.
    scheduler.enqueue_request(shared.replace(priority=1))
    scheduler.enqueue_request(Request("http://shop.test/last"))
    scheduler.close("finished")
    stats = scheduler.stats
    assert stats.get_value("scheduler/enqueued/redis") == 3
    assert stats.get_value("scheduler/dequeued/redis") == 2


@every_kind
def test_receipt_at_the_end(opened: Opened) -> None:
    """A request that is queued at the worker's end is reported then, and not before."""
    scheduler = opened(SCHEDULER_PERSIST=True)
    queued: list[int] = []
    scheduler.enqueue_request(Request("http://shop.test/"))
    scheduler.when_queued(lambda: queued.append(scheduler.server.zcard(scheduler.queue_keys.queue)))
    assert queued == []
    scheduler.close("shutdown")
    assert queued == [1]


def test_priorities_beyond_what_a_server_stores(valkey: Server, opened: Opened) -> None:
    """A request of any priority is queued in its right place."""
    scheduler = opened(REDIS_URL=valkey.url)
    for name, priority in (("last", -(10**400)), ("first", 10**400), ("second", 1)):
        scheduler.enqueue_request(Request(f"http://shop.test/{name}", dont_filter=True, priority=priority))
    scheduler._delivery.deliver()
    taken: list[str] = []

    def takes_all() -> bool:
        taken.extend(request.url.rpartition("/")[2] for request in taken_from(scheduler))
        return len(taken) > 2

    until(takes_all)
    assert taken == ["first", "second", "last"]


class Score:
    """A user's whole number, like numpy's."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


NO_PRIORITIES = (math.nan, math.inf, -math.inf, 0.5, 1.0, Decimal(3), Fraction(1, 3), "7", None)


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_priority_that_is_no_whole_number(serializer: str, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A request whose priority Redis cannot sort by is refused; the others are crawled."""
    scheduler = opened(SCHEDULER_SERIALIZER=serializer)
    refused, taken = Request("http://shop.test/refused"), Request("http://shop.test/taken")
    for number, priority in enumerate(NO_PRIORITIES, 1):
        refused.priority = priority  # type: ignore[assignment]  # the point of the test
        assert not scheduler.enqueue_request(refused)
        assert scheduler.stats.get_value("scheduler/unserializable") == number
    assert scheduler.enqueue_request(taken)
    assert [request.url for request in taken_from(scheduler)] == [taken.url]
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for line, priority in zip(told, NO_PRIORITIES, strict=True):
        assert f"{refused} cannot be serialized and is not crawled: priority = {priority!r}: must be a whole" in line


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_priority_that_is_like_an_int(serializer: str, opened: Opened) -> None:
    """A priority that stands for a whole number is stored as that number."""
    scheduler = opened(SCHEDULER_SERIALIZER=serializer)
    for priority in (Score(4), True):
        request = Request("http://shop.test/", dont_filter=True)
        request.priority = priority  # type: ignore[assignment]  # the point of the test
        assert scheduler.enqueue_request(request)
        (taken,) = taken_from(scheduler)
        assert (type(taken.priority), taken.priority) == (int, operator.index(priority))


def test_exchange_that_fails_behind_the_server(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync whose reply was lost by an error in this process is resolved."""
    scheduler = opened()
    send = scheduler._requests.send

    def fail(worker: str, call: Call) -> None:
        send(worker, call)
        raise MemoryError

    first, second = (Request(f"http://shop.test/{name}", dont_filter=True) for name in ("first", "second"))
    assert scheduler.enqueue_request(first)
    with monkeypatch.context() as patched:
        patched.setattr(scheduler._requests, "send", fail)
        with pytest.raises(MemoryError):
            scheduler._delivery.deliver()
    assert scheduler.enqueue_request(second)
    assert sorted(request.url for request in taken_from(scheduler)) == [first.url, second.url]


def test_lost_reply_in_the_middle(valkey: Server, opened: Opened) -> None:
    """Requests before and after a sync without a reply are queued once."""
    with forwarding(valkey.port) as link:
        scheduler = opened(REDIS_URL=link.url)
        first, second = (Request(f"http://shop.test/{name}", dont_filter=True) for name in ("first", "second"))
        scheduler.enqueue_request(first)
        scheduler._heartbeat.stop()  # or the lost reply may be that of a heartbeat
        link.link.lost_replies = 1
        with pytest.raises(RedisUnreachableError):
            scheduler._delivery.deliver()
        scheduler.enqueue_request(second)
        taken: list[str] = []

        def takes_both() -> bool:
            taken.extend(request.url for request in taken_from(scheduler))
            return len(taken) > 1

        until(takes_both)
        assert sorted(taken) == [first.url, second.url]
        scheduler.close("finished")


@pytest.mark.parametrize("setting", ["SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_KEY"])
@pytest.mark.parametrize("template", ["%(spidr)s:x", "%(spider):x", "100%"])
def test_percent_signs_that_mean_nothing(setting: str, template: str, opened: Opened) -> None:
    """The error names the setting and the placeholders that it may have."""
    with pytest.raises(ConfigError, match=f"^{setting} = .*may have %\\(spider\\)s in it"):
        opened(**{setting: template})


@pytest.mark.parametrize("left", ["nothing", "a worker", "a request"])
def test_nothing_fetched_beside_others(left: str, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """No advice to start afresh if other workers queued the start request.

    Nor for a worker that finds only unreadable requests of an earlier crawl.
    """
    first = opened(SCHEDULER_PERSIST=True)
    first.enqueue_request(Request("https://example.com/"))
    first._delivery.deliver()
    assert len(taken_from(first)) == 1
    if left == "a request":
        first.server.zadd(first.queue_keys.queue, {b"nothing that a worker reads": 0})
    if left != "a worker":
        first.close("finished")
    second = opened(SCHEDULER_PERSIST=True)
    if left == "a worker":
        first.close("finished")
    second.enqueue_request(Request("https://example.com/"))
    second._delivery.deliver()
    assert taken_from(second) == []
    second.close("finished")
    second.spider.crawler.signals.send_catch_log(signals.spider_closed, spider=second.spider, reason="finished")
    assert ("nothing was fetched" in caplog.text) == (left == "nothing")


def test_request_of_a_producer_at_the_end(opened: Opened, valkey: Server, key: str) -> None:
    """A request queued while the last worker ends stays, and so does the filter."""
    scheduler = opened()
    page = Request("http://shop.test/")
    assert scheduler.enqueue_request(page)
    assert len(taken_from(scheduler)) == 1
    assert taken_from(scheduler) == []
    member = scheduler.queue._encode_request(Request("http://shop.test/late"))
    scheduler.server.zadd(scheduler.queue_keys.queue, {member: 0})
    scheduler.close("finished")
    with valkey.client() as client:
        assert client.zrange(scheduler.queue_keys.queue, 0, -1) == [member]
        assert client.exists(f"{{{key}}}:filter")
    following = opened()
    assert [request.url for request in taken_from(following)] == ["http://shop.test/late"]


@every_kind
def test_crawl_that_goes_on(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A resumed crawl logs it, and calls no deprecated API of Scrapy."""
    caplog.set_level("INFO")
    first = opened(SCHEDULER_PERSIST=True)
    first.enqueue_request(Request("http://shop.test/"))
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
    other = {**Request("https://example.com/").to_dict(), "callback": "parse_item"}
    scheduler.server.zadd(scheduler.queue_keys.queue, {scheduler.queue.serializer.dumps(other): 0})
    assert taken_from(scheduler) == []
    assert "the spider 'shop' has no method 'parse_item'" in caplog.text
    assert f"A request of the queue {scheduler.queue_keys.queue!r} cannot be read" in caplog.text
    assert "SCHEDULER_QUEUE_KEY must" in caplog.text
