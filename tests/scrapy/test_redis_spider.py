"""RedisSpider beside a scheduler: the fate of each start URL, and its end."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy_redis import spiders

from scrapy_bloom import RedisCrawlSpider, RedisSpider
from scrapy_bloom.queue import start_urls
from scrapy_bloom.queue.keys import StartKeys
from tests.support.faults import FaultProxy, proxying
from tests.support.in_process import ShopSpider, end
from tests.support.servers import Server

Made = Callable[[str], Any]


def two(url: str) -> Iterator[Request]:
    """Two requests."""
    yield Request(f"{url}/1")
    yield Request(f"{url}/2")


def one_and_error(url: str) -> Iterator[Request]:
    """A request, then an error."""
    yield Request(url)
    raise ValueError("no more")


def error(url: str) -> Request:
    """An error instead of a request."""
    raise ValueError(url)


# The result for a start URL, its number of requests, and whether it becomes a dead letter.
MADE: dict[str, tuple[Made, int, bool]] = {
    "request": (Request, 1, False),
    "generator": (two, 2, False),
    "list": (lambda url: list(two(url)), 2, False),
    "nothing": (lambda _: None, 0, False),
    "empty": (lambda _: [], 0, False),
    "error": (error, 0, True),
    "error of a generator": (one_and_error, 1, True),
}


class Beside:
    """A spider and an open scheduler, over a proxy."""

    def __init__(self, proxy: FaultProxy, client: redis.Redis, key: str, opened: Callable[..., Any]) -> None:
        self.proxy = proxy
        self.client = client
        self.keys = StartKeys(f"{key}:start")
        self._opened = opened
        self.settings: dict[str, Any] = {}

    def open(self, spidercls: type[RedisSpider] = RedisSpider) -> Any:
        """A spider whose scheduler is open."""
        settings = {"REDIS_START_URLS_KEY": self.keys.start, "MAX_IDLE_TIME_BEFORE_CLOSE": 1, **self.settings}
        self.scheduler = self._opened(spidercls=spidercls, REDIS_URL=self.proxy.url, **settings)
        return self.scheduler.spider

    def close(self) -> None:
        """End as the engine does."""
        self.scheduler.close("finished")
        end(self.scheduler.spider.crawler)

    def left(self) -> tuple[object, int, object]:
        """The waiting start URLs, the number of leased ones, and the dead letters."""
        keys = self.keys
        waiting, dead = self.client.lrange(keys.start, 0, -1), self.client.lrange(keys.dead_letters, 0, -1)
        return waiting, self.client.hlen(keys.leased), dead


@pytest.fixture
def beside(valkey: Server, key: str, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside]:
    """A proxy that can fail the script of start URLs."""
    with proxying(valkey.port, "EVALSHA") as proxy, valkey.client() as client:
        proxy.naming = start_urls._EXCHANGE._hash.encode()
        beside = Beside(proxy, client, key, opened)
        monkeypatch.setattr("scrapy_bloom.engine.scheduler_of", lambda _: beside.scheduler)
        yield beside
        beside.close()


@pytest.mark.parametrize("base", [RedisSpider, RedisCrawlSpider])
@pytest.mark.parametrize("kind", MADE)
def test_each_is_done_with(kind: str, base: type, beside: Beside) -> None:
    """Each kind of start URL is acknowledged or dead-lettered, and its neighbours are fetched."""
    make, number, is_dead = MADE[kind]

    class OwnSpider(base):  # type: ignore[misc]  # either of them
        name = "own"

        def make_request_from_data(self, data: bytes) -> Any:
            url = data.decode()
            return make(url) if url.endswith("own") else Request(url)

    beside.client.rpush(beside.keys.start, "http://a", "http://own", "http://b")
    spider = beside.open(OwnSpider)
    found = []
    for request in spider.next_requests():
        beside.scheduler.enqueue_request(request)
        found.append(request.url)
    assert found[0] == "http://a"
    assert found[-1] == "http://b"
    assert len(found) == 2 + number
    beside.close()
    assert beside.left() == ([], 0, [b"http://own"] if is_dead else [])


@pytest.mark.parametrize("kind", ["list", "set", "zset"])
def test_kinds_of_entries(kind: str, beside: Beside) -> None:
    """A pickle arrives as it was pushed, and JSON becomes its request, from each type of key."""

    class OwnSpider(RedisSpider):
        name = "own"

        def make_request_from_data(self, data: bytes) -> Any:
            if data.startswith(b"{"):
                return super().make_request_from_data(data).replace(dont_filter=False)
            return Request(pickle.loads(data)["url"])  # noqa: S301  # our own

    entries = [pickle.dumps({"url": "http://a"}), b'{"url": "http://b", "meta": {"number": 1}}']
    if kind == "zset":
        beside.client.zadd(beside.keys.start, dict.fromkeys(entries, 1))
    else:
        (beside.client.sadd if kind == "set" else beside.client.rpush)(beside.keys.start, *entries)
    beside.settings = {f"REDIS_START_URLS_AS_{kind.upper()}": True}
    spider = beside.open(OwnSpider)
    assert sorted(request.url for request in spider.next_requests()) == ["http://a", "http://b"]
    beside.close()
    assert beside.left() == ([], 0, [])


def test_those_not_reached(beside: Beside) -> None:
    """Start URLs not reached by an interrupted `next_requests` come with its next call.

    Those without a queued request return at the end.
    """
    urls = [b"http://a", b"http://b", b"http://c"]
    beside.client.rpush(beside.keys.start, *urls)
    spider = beside.open()
    assert [next(spider.next_requests()).url for _ in range(2)] == ["http://a", "http://b"]
    beside.close()
    assert beside.left() == (urls, 0, [])


def test_dead_workers_of_several_keys(beside: Beside) -> None:
    """The start URLs of dead workers return to every key of a spider."""
    other = StartKeys(f"{beside.keys.start}:second")

    class OwnSpider(RedisSpider):
        _redis_keys = (beside.keys.start, other.start)

    for number, keys in enumerate((beside.keys, other)):
        beside.client.hset(keys.leased, f"0:dead:{beside.keys.start}", f" http://dead/{number}")
    spider = beside.open(OwnSpider)
    assert [request.url for request in spider.next_requests()] == ["http://dead/0"]
    assert beside.client.lrange(other.start, 0, -1) == [b"http://dead/1"]
    beside.close()
    assert beside.client.hlen(other.leased) == 0


class PoppingSpider(RedisSpider):
    """Pops its start URLs itself."""

    name = "popping"

    def next_requests(self) -> Iterator[Request]:
        while data := self.server.lpop(self.redis_key):
            yield Request(data.decode())


class HelpedSpider(RedisSpider):
    """Leases its start URLs in another method."""

    name = "helped"

    def next_requests(self) -> Iterator[Request]:
        return map(Request, self._urls())

    def _urls(self) -> Iterator[str]:
        yield from (data.decode() for data in self.fetch_data(self.redis_key, 1))


class LimitedSpider(RedisSpider):
    """Lets the parent lease."""

    name = "limited"

    def next_requests(self) -> Iterator[Request]:
        yield from super().next_requests()


OWN_WAYS = {PoppingSpider: 1, HelpedSpider: 0, LimitedSpider: 0}


@pytest.mark.parametrize("kind", OWN_WAYS, ids=lambda kind: kind.name)
def test_own_next_requests(kind: type[RedisSpider], beside: Beside, caplog: pytest.LogCaptureFixture) -> None:
    """A spider whose `next_requests` goes around `fetch_data` causes one warning, and no other does."""
    beside.client.rpush(beside.keys.start, "http://a")
    spider = beside.open(kind)
    assert [request.url for request in spider.next_requests()] == ["http://a"]
    beside.close()
    told = [each.getMessage() for each in caplog.records if "does not call fetch_data" in each.getMessage()]
    assert len(told) == OWN_WAYS[kind]


# The base of a spider, and how many warnings it causes.
BASES = {spiders.RedisSpider: 1, spiders.RedisCrawlSpider: 1, RedisSpider: 0, RedisCrawlSpider: 0, ShopSpider: 0}


@pytest.mark.parametrize("base", BASES, ids=lambda base: f"{base.__module__}.{base.__name__}")
def test_spider_that_pops_start_urls(base: type[Any], beside: Beside, caplog: pytest.LogCaptureFixture) -> None:
    """A scrapy-redis spider under BloomScheduler causes one warning; ours and Scrapy's cause none."""
    beside.open(type("Popping", (base,), {"name": "popping"}))
    told = [each.getMessage() for each in caplog.records if "Import the class of the same name" in each.getMessage()]
    assert ["'shop'" in warning for warning in told] == [True] * BASES[base]
