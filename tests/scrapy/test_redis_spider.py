"""Spiders of scrapy-redis under BloomScheduler, without an engine: what becomes of each start URL."""

import time
from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any, Self

import pytest
import redis
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import DontCloseSpider
from scrapy_redis import spiders

from devtools.round_trips import counting
from scrapy_bloom import RedisCrawlSpider, RedisSpider
from scrapy_bloom.runtime import RUNTIME
from scrapy_bloom.start_data import data_of
from scrapy_bloom.transport.retry import RedisUnreachableError
from tests.support.outcomes import number_kept
from tests.support.servers import Server
from tests.support.vendored import CopiedSpider


class MixedSpider(spiders.RedisMixin, Spider):  # type: ignore[misc]  # scrapy-redis has no types
    """A spider that is neither a RedisSpider nor a RedisCrawlSpider."""

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Connect as these do."""
        spider: Self = super().from_crawler(crawler, *args, **kwargs)
        spider.setup_redis(crawler)
        return spider


BASES: list[Any] = [RedisSpider, RedisCrawlSpider, spiders.RedisSpider, spiders.RedisCrawlSpider, MixedSpider]


class Crawled:
    """A crawl by one scheduler, fed by a key."""

    def __init__(self, client: Any, key: str, opened: Callable[..., Any]) -> None:
        self.client, self.start = client, f"{key}:start"
        self._opened = opened
        self.scheduler: Any = None

    def open(self, base: Any, **body: Any) -> Any:
        """Open the scheduler of a spider of this class, with these attributes and SETTINGS; return the spider."""
        settings = {"REDIS_START_URLS_KEY": self.start, **body.pop("SETTINGS", {})}
        kind = type("OwnSpider", (base,), {"name": "own", **body})
        self.scheduler = self._opened(spidercls=kind, spider_name="own", **settings)
        return self.scheduler.spider

    def urls(self) -> list[str]:
        """Crawl until nothing is left, and return what was fetched."""
        return [request.url for request in self.requests()]

    def requests(self) -> Iterator[Request]:
        """Yield each request, as the engine would fetch it."""
        while (request := self.scheduler.next_request()) or self.scheduler.has_pending_requests():
            if request:
                yield request

    @property
    def waiting(self) -> list[bytes]:
        """The start URLs that wait in the list."""
        return list(self.client.lrange(self.start, 0, -1))

    def left(self) -> tuple[list[bytes], int, list[bytes]]:
        """The waiting start URLs, the number of leased or queued entries, and the dead letters."""
        keys = self.scheduler.queue_keys
        dead = [data_of(member)[1] for member in self.client.zrange(keys.dead_letters, 0, -1)]
        return self.waiting, number_kept(self.client, keys.queue), dead


@pytest.fixture
def crawled(valkey: Server, key: str, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Crawled]:
    """A crawl whose start requests come to the scheduler as by the engine."""
    with valkey.client() as client:
        crawled = Crawled(client, key, opened)
        schedule = lambda _, request: crawled.scheduler.enqueue_request(request)  # noqa: E731
        monkeypatch.setattr("scrapy_bloom.engine.crawl", schedule)
        yield crawled


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about spiders that pop."""
    return [text for text in caplog.messages if "pops its start URLs by itself" in text]


# What is made of a start URL.


def two(url: str) -> Iterator[Request]:
    """Two requests."""
    yield Request(f"{url}/1")
    yield Request(f"{url}/2")


def one_and_error(url: str) -> Iterator[Request]:
    """A request, then an error."""
    yield Request(url)
    raise KeyError("no more")


def error(url: str) -> Request:
    """An error instead of a request."""
    raise ValueError(url)


# The result for a start URL, its number of requests, and whether it becomes a dead letter.
MADE: dict[str, tuple[Callable[[str], Any], int, bool]] = {
    "request": (Request, 1, False),
    "generator": (two, 2, False),
    "list": (lambda url: list(two(url)), 2, False),
    "nothing": (lambda _: None, 0, False),
    "empty": (lambda _: [], 0, False),
    "error": (error, 0, True),
    "error of a generator": (one_and_error, 1, True),
    "item": (lambda url: {"url": url}, 0, True),
    "nothing in a list": (lambda url: [Request(url), None, Request(f"{url}/2")], 1, True),
}


@pytest.mark.parametrize("base", BASES, ids=lambda base: f"{base.__module__}.{base.__name__}")
@pytest.mark.parametrize("made", MADE)
def test_each_is_done_with(made: str, base: Any, crawled: Crawled, caplog: pytest.LogCaptureFixture) -> None:
    """Each kind of start URL is acknowledged or a dead letter, and its neighbours are fetched, by each class."""
    make, number, is_dead = MADE[made]

    def make_request_from_data(_: Any, data: bytes) -> Any:
        url = data.decode()
        return make(url) if url.endswith("own") else Request(url)

    crawled.open(base, make_request_from_data=make_request_from_data)
    crawled.client.rpush(crawled.start, "http://a", "http://own", "http://b")
    found = crawled.urls()
    assert len(found) == 2 + number
    assert {"http://a", "http://b"} <= {*found}
    assert crawled.left() == ([], 0, [b"http://own"] if is_dead else [])
    assert ["http://own" in text for text in caplog.messages if "makes no request" in text] == [True] * is_dead
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("kind", ["list", "set", "zset"])
def test_types_of_keys(kind: str, crawled: Crawled, caplog: pytest.LogCaptureFixture) -> None:
    """The data of each type of key are leased as long as their requests are not queued."""
    data = ['{"url": "http://a"}', '{"url": "http://b", "meta": {"number": 1}}']
    if kind == "zset":
        crawled.client.zadd(crawled.start, dict.fromkeys(data, 1))
    else:
        (crawled.client.sadd if kind == "set" else crawled.client.rpush)(crawled.start, *data)
    crawled.open(spiders.RedisSpider, SETTINGS={f"REDIS_START_URLS_AS_{kind.upper()}": True})
    assert crawled.scheduler.next_request() is None
    assert not crawled.client.exists(crawled.start)
    assert number_kept(crawled.client, crawled.scheduler.queue_keys.queue) == 2
    assert sorted(crawled.urls()) == ["http://a", "http://b"]
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("data", [b'{"meta": {"number": 1}}', b'{"url": 7}', b"\xff\xfehttp://a"])
def test_unusable(data: bytes, crawled: Crawled, caplog: pytest.LogCaptureFixture) -> None:
    """What scrapy-redis makes no request of is a dead letter, and logged with its text, its key and the reason."""
    crawled.client.rpush(crawled.start, data, '{"url": "http://b"}')
    crawled.open(spiders.RedisSpider)
    assert crawled.urls() == ["http://b"]
    assert crawled.left() == ([], 0, [data])
    (told,) = [text for text in caplog.messages if "makes no request" in text]
    assert repr(data) in told
    assert repr(crawled.start) in told
    assert told.endswith("ValueError: it has no url") or "TypeError: " in told or "UnicodeDecodeError: " in told


# Own ways.


def connecting(self: Any, crawler: Any = None, *, database: int = 0) -> None:
    """A `setup_redis` with a client of its own, which reads as scrapy-redis does."""
    self.server = redis.Redis.from_url(f"{crawler.settings['REDIS_URL']}/{database}")
    self.redis_key, self.redis_batch_size, self.redis_encoding = crawler.settings["REDIS_START_URLS_KEY"], 9, "utf-8"
    self.fetch_data, self.count_size = self.pop_list_queue, self.server.llen


WAYS: dict[str, dict[str, Any]] = {
    "in another method": {
        "next_requests": lambda self: map(Request, self.urls()),
        "urls": lambda self: (data.decode() for data in self.fetch_data(self.redis_key, 1)),
    },
    "at once": {"next_requests": lambda self: [Request(data.decode()) for data in self.fetch_data(self.redis_key, 9)]},
    "by the parent": {"next_requests": lambda self: [*RedisSpider.next_requests(self)]},
    "by an own client": {"setup_redis": connecting},
}


@pytest.mark.parametrize("way", WAYS)
def test_own_ways(way: str, crawled: Crawled, caplog: pytest.LogCaptureFixture) -> None:
    """A spider that reads by `fetch_data` in its own way, or connects in its own way, is served one after another."""
    crawled.client.rpush(crawled.start, "http://a", "http://b")
    spider = crawled.open(RedisSpider, **WAYS[way])
    assert list(spider.next_requests()) == []
    assert sorted(crawled.urls()) == ["http://a", "http://b"]
    assert crawled.left() == ([], 0, [])
    assert warnings_of(caplog) == []
    spider.server.close()


def test_several_keys(crawled: Crawled) -> None:
    """All keys of a list are read; one that only `next_requests` knows is popped there, as in scrapy-redis."""
    keys = [crawled.start, f"{crawled.start}:second", f"{crawled.start}:foreign"]

    def setup_redis(self: Any, crawler: Any = None) -> None:
        RedisSpider.setup_redis(self, crawler)
        self.redis_key = keys[:2]

    def next_requests(self: Any) -> Iterator[Request]:
        for key in keys:
            yield from (Request(data.decode()) for data in self.fetch_data(key, 1))

    for number, key in enumerate(keys):
        crawled.client.rpush(key, f"http://{number}")
    spider = crawled.open(RedisSpider, setup_redis=setup_redis, next_requests=next_requests)
    assert [request.url for request in spider.next_requests()] == ["http://2"]
    assert sorted(crawled.urls()) == ["http://0", "http://1"]
    assert crawled.left() == ([], 0, [])


def test_not_taken(crawled: Crawled, caplog: pytest.LogCaptureFixture) -> None:
    """A start URL that `next_requests` does not read is a dead letter."""
    next_requests = lambda self: [Request(data.decode()) for data in self.fetch_data("another", 1)]  # noqa: E731
    crawled.client.rpush(crawled.start, "http://a")
    crawled.open(RedisSpider, next_requests=next_requests)
    assert crawled.urls() == []
    assert crawled.left() == ([], 0, [b"http://a"])
    assert f"does not take it by fetch_data('{crawled.start}', " in caplog.text


def test_copied_class(crawled: Crawled, caplog: pytest.LogCaptureFixture) -> None:
    """A spider of a project with a copy of scrapy-redis pops its start URLs, and a warning names our classes."""
    spider = crawled.open(CopiedSpider)
    (told,) = warnings_of(caplog)
    assert "since its RedisMixin is a copy of scrapy-redis's: " in told
    assert "scrapy_bloom.RedisSpider" in told
    crawled.client.rpush(crawled.start, '{"url": "http://a"}')
    assert [request.url for request in spider.next_requests()] == ["http://a"]
    assert crawled.waiting == []
    spider.server.close()


def popping(self: Any) -> Iterator[Request]:
    """A `next_requests` that pops."""
    while data := self.server.lpop(self.redis_key):
        yield Request(data.decode())


ALONE: dict[str, tuple[dict[str, Any], str]] = {
    "next_requests": ({"next_requests": popping}, "its next_requests does not call fetch_data"),
    "server": ({"setup_redis": partialmethod(connecting, database=1)}, "its server is another one than the queue's"),
    "setup_redis": ({"setup_redis": lambda _, crawler=None: crawler}, "it has no connection by setup_redis"),
}


@pytest.mark.parametrize("own", ALONE)
def test_left_alone(own: str, crawled: Crawled, caplog: pytest.LogCaptureFixture) -> None:
    """A spider that pops by itself does so as in scrapy-redis, with one warning that names the reason."""
    body, reason = ALONE[own]
    spider = crawled.open(RedisSpider, **body)
    (told,) = warnings_of(caplog)
    assert f"since {reason}" in told
    if spider.server is not None:
        spider.server.rpush(crawled.start, '{"url": "http://a"}')
        assert crawled.urls() == []
        assert len(list(spider.next_requests())) == 1
        spider.server.close()


# Time.


def test_idle_time(crawled: Crawled) -> None:
    """An opened start URL renews the time in which an idle spider waits for others; idleness itself does not."""
    spider = crawled.open(spiders.RedisSpider, SETTINGS={"MAX_IDLE_TIME_BEFORE_CLOSE": 1000})
    spider.spider_idle_start_time = 0
    crawled.client.rpush(crawled.start, '{"url": "http://a"}')
    spider.spider_idle()
    assert crawled.urls() == ["http://a"]
    assert time.time() - spider.spider_idle_start_time < 1000
    with pytest.raises(DontCloseSpider):
        spider.spider_idle()


class LargeSpider(spiders.RedisSpider):  # type: ignore[misc]  # scrapy-redis has no types
    """Makes many requests of a start URL, and counts them."""

    made = 0

    def make_request_from_data(self, data: bytes) -> Iterator[Request]:
        """Make requests."""
        for number in range(300):
            self.made += 1
            yield Request(f"http://{data.decode()}/{number}")


def test_batch_at_a_time(crawled: Crawled) -> None:
    """Start URLs that lead to many requests hold no download: a batch of them is made between two."""
    crawled.client.rpush(crawled.start, *range(8))
    spider, number = crawled.open(LargeSpider), 0
    for number, _ in enumerate(crawled.requests(), 1):
        assert spider.made <= 100 + 100 * number
    assert number == spider.made == 2400


def test_silent_redis(crawled: Crawled, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Redis is silent no more start requests are made than fit in a batch."""

    def fail(_: int = 0) -> None:
        raise RedisUnreachableError

    crawled.client.rpush(crawled.start, *range(8))
    spider = crawled.open(LargeSpider)
    assert next(crawled.requests())
    before = spider.made
    with monkeypatch.context() as patch:
        patch.setattr(crawled.scheduler, "_sync", fail)
        for _ in range(50):
            crawled.scheduler.next_request()
    assert spider.made - before <= 100


def test_stop_in_the_middle(crawled: Crawled) -> None:
    """A crawl that is stopped in the middle of a start URL gives it and the others back, in their order."""
    crawled.client.rpush(crawled.start, "a", "b", "c")
    spider = crawled.open(LargeSpider)
    assert next(crawled.requests()).url.startswith("http://a/")
    assert 0 < spider.made < 300
    assert crawled.waiting == []
    crawled.scheduler.close("shutdown")
    assert crawled.waiting == [b"a", b"b", b"c"]


def test_idle_polls(crawled: Crawled, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle spider makes at most 30 round trips in 20 s, and fetches a new start URL within a second."""
    now = [0.0]
    monkeypatch.setattr(RUNTIME, "monotonic", lambda: now[0])
    crawled.open(spiders.RedisSpider, SETTINGS={"BLOOMFILTER_LEASE": 3600})

    def wait(seconds: float) -> bool:
        """Let time pass as long as there is nothing to fetch; return whether there was nothing."""
        end = now[0] + seconds
        while now[0] < end and not crawled.urls():
            now[0] += 0.05
        return now[0] >= end

    assert wait(8)
    with counting() as sent:
        assert wait(20)
    assert sent.trips <= 30
    for number in range(5):
        crawled.client.rpush(crawled.start, f'{{"url": "http://{number}"}}')
        assert not wait(1.1)
        assert wait(3.21)


def test_pop_is_denied(crawled: Crawled, valkey: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A user without the permission to pop ends the crawl with an error that names it, and advises no other setting."""
    user = crawled.start.split(":")[2]
    crawled.client.acl_setuser(user, enabled=True, passwords=["+x"], keys=["*"], commands=["+@all", "-lpop"])
    crawled.client.rpush(crawled.start, "http://a")
    crawled.open(spiders.RedisSpider, SETTINGS={"REDIS_URL": valkey.url.replace("//", f"//{user}:x@")})
    assert crawled.scheduler.next_request() is None
    crawled.scheduler.close("finished")
    crawled.client.acl_deluser(user)
    (told,) = [text for text in caplog.messages if "lpop" in text]
    assert "permission" in told
    assert "REDIS_START_URLS" not in told
