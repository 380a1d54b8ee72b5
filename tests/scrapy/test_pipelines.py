"""The item pipeline beside scrapy-redis's: keys, serializers, hooks of subclasses, and waits."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Self

import pytest
import redis
from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy_redis import connection, pipelines

from scrapy_bloom import ConfigError, RedisPipeline, RefusedError
from tests.support.in_process import ShopSpider, run, start
from tests.support.kinds import Place
from tests.support.proxy.link import Link, forwarding
from tests.support.servers import Server

ITEM = {"url": "https://example.com/"}
SHORT = {"socket_timeout": 0.5}


def upper(item: dict[str, str]) -> str:
    """A user's serializer."""
    return json.dumps(item).upper()


def none_for_odd(item: dict[str, int]) -> str | None:
    """A serializer with a mistake."""
    return None if item["number"] % 2 else str(item["number"])


class SiteSpider(ShopSpider):
    """A spider of one site."""

    site = "a"


class ByKind(RedisPipeline):
    """A key for each kind of item."""

    def item_key(self, item: Any, spider: Spider) -> str:
        return f"{super().item_key(item, spider)}:{item['kind']}"


class Hashed(RedisPipeline):
    """Stores items in its own way."""

    def _process_item(self, item: Any, spider: Spider) -> Any:
        self.server.hset(self.item_key(item, spider), item["url"], self.serialize(item))
        return {**item, "is_stored": True}


class Twice(RedisPipeline):
    """Passes a changed item on."""

    def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        return super().process_item({**item, "changed": True}, spider)


class CalledBack(RedisPipeline):
    """Adds a callback to the parent's Deferred, as scrapy-redis's users do."""

    def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        stored = super().process_item(item, spider)
        return stored.addCallback(lambda stored: {**stored, "changed": True})


class Awaiting(RedisPipeline):
    """Awaits the parent's Deferred, in one of the ways that Scrapy's versions document."""

    async def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        stored = super().process_item(item, spider)
        return {**await (stored if "direct" in item else maybe_deferred_to_future(stored)), "changed": True}


class OwnServer(RedisPipeline):
    """Makes its own client, by an own `from_crawler` and `__init__`."""

    def __init__(self, server: Any, crawler: Crawler) -> None:
        super().__init__(server)
        self.key = crawler.settings["REDIS_ITEMS_KEY"]

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(connection.from_settings(crawler.settings), crawler)


class Piped:
    """Pipelines of crawlers in this process."""

    def __init__(self, url: str, key: str) -> None:
        self._settings: dict[str, Any] = {"REDIS_URL": url, "REDIS_ITEMS_KEY": f"{key}:%(spider)s"}
        self.key = f"{key}:shop"
        self.crawlers: list[Crawler] = []

    def make(
        self,
        kind: type[pipelines.RedisPipeline] = RedisPipeline,
        spidercls: type[ShopSpider] = ShopSpider,
        **settings: Any,
    ) -> Any:
        """A pipeline as Scrapy builds it."""
        self.crawlers.append(start({**self._settings, **settings}, spidercls=spidercls))
        return kind.from_crawler(self.crawlers[-1])

    def store(self, pipeline: Any, *items: Any) -> list[Any]:
        """Store items at once, and return the results and the errors."""

        async def store_all() -> list[Any]:
            return await asyncio.gather(*map(pipeline.process_item, items), return_exceptions=True)

        return run(store_all())


@pytest.fixture
def piped(place: Place, key: str) -> Iterator[Piped]:
    """Pipelines that are closed at the end, as the engine does."""
    made = Piped(place.url, key)
    yield made
    for crawler in made.crawlers:
        crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")


@pytest.fixture
def client(place: Place) -> Iterator[Any]:
    with place.client() as client:
        yield client


@pytest.mark.parametrize("place", ["redis", "redis+cluster", "redis+sentinel"], indirect=True)
def test_items_are_those_of_scrapy_redis(piped: Piped, client: Any) -> None:
    """Each kind of server stores the bytes that scrapy-redis's pipeline stores, in the order of the items."""
    pipeline = piped.make()
    items = [{**ITEM, "number": number, "text": "käse"} for number in range(250)]
    assert piped.store(pipeline, *items) == items
    stock = pipelines.RedisPipeline(client, piped.key)
    for item in items:
        stock._process_item(item, piped.crawlers[0].spider)
    every = client.lrange(piped.key, 0, -1)
    assert every[:250] == every[250:]


@pytest.mark.parametrize("serializer", [upper, f"{__name__}.upper"])
def test_serializer(serializer: Any, piped: Piped, client: redis.Redis) -> None:
    """REDIS_ITEMS_SERIALIZER is a function or its path."""
    piped.store(piped.make(REDIS_ITEMS_SERIALIZER=serializer), ITEM)
    assert client.lrange(piped.key, 0, -1) == [upper(ITEM).encode()]


def test_serializer_that_does_not_exist(piped: Piped) -> None:
    """A serializer that cannot be imported is refused with its setting."""
    with pytest.raises(ConfigError, match=r"REDIS_ITEMS_SERIALIZER = 'no\.such'"):
        piped.make(REDIS_ITEMS_SERIALIZER="no.such")


def test_bad_value(piped: Piped, client: redis.Redis) -> None:
    """A value that Redis cannot store fails alone, and ends no crawl."""
    results = piped.store(piped.make(REDIS_ITEMS_SERIALIZER=none_for_odd), *({"number": number} for number in range(4)))
    assert [isinstance(result, redis.DataError) for result in results] == [False, True, False, True]
    assert client.lrange(piped.key, 0, -1) == [b"0", b"2"]


def test_key_with_an_attribute(piped: Piped) -> None:
    """REDIS_ITEMS_KEY may name an attribute of the spider; a key that cannot be made is refused at the start."""
    template = "%(spider)s:%(site)s"
    pipeline = piped.make(REDIS_ITEMS_KEY=template, spidercls=SiteSpider)
    assert pipeline.item_key(ITEM, piped.crawlers[0].spider) == "shop:a"
    with pytest.raises(ConfigError, match=r"REDIS_ITEMS_KEY = .*attribute 'site' is not set"):
        piped.make(REDIS_ITEMS_KEY=template)
    # A subclass may read it in its own way.
    assert piped.make(ByKind, REDIS_ITEMS_KEY=template)


def test_keys_of_items(piped: Piped, client: redis.Redis) -> None:
    """A subclass may choose the key by the item; each key has its items in their order."""
    items = [{"kind": "ab"[number % 2], "number": number} for number in range(20)]
    piped.store(piped.make(ByKind), *items)
    for kind in "ab":
        numbers = [json.loads(each)["number"] for each in client.lrange(f"{piped.key}:{kind}", 0, -1)]
        assert numbers == [item["number"] for item in items if item["kind"] == kind]


def test_own_process_item(piped: Piped, client: redis.Redis) -> None:
    """An overridden `_process_item` stores each item, and its result or its error is that of its item alone."""
    items = [{"url": f"https://example.com/{number}"} for number in range(5)]
    *results, error = piped.store(piped.make(Hashed), *items, {"url": None})
    assert results == [{**item, "is_stored": True} for item in items]
    assert isinstance(error, redis.DataError)
    assert client.hlen(piped.key) == 5
    client.delete(piped.key)
    client.set(piped.key, "no hash")
    (error,) = piped.store(piped.make(Hashed), ITEM)
    assert str(error).startswith("Hashed._process_item: Redis refused an item")


def test_process_item_calls_the_parent(piped: Piped, client: redis.Redis) -> None:
    """A subclass may change the item before it is stored."""
    assert piped.store(piped.make(Twice), ITEM) == [{**ITEM, "changed": True}]
    assert json.loads(client.lrange(piped.key, 0, -1)[0]) == {**ITEM, "changed": True}


@pytest.mark.parametrize("kind", [CalledBack, Awaiting])
def test_result_of_the_parent(kind: type[RedisPipeline], piped: Piped, client: redis.Redis) -> None:
    """A subclass may change the result of the parent, which is there when the item is stored, or its error."""
    items: list[dict[str, Any]] = [ITEM, {**ITEM, "direct": True}]
    assert piped.store(piped.make(kind), *items) == [{**item, "changed": True} for item in items]
    assert [json.loads(each) for each in client.lrange(piped.key, 0, -1)] == items
    client.delete(piped.key)
    client.set(piped.key, "no list")
    (error,) = piped.store(piped.make(kind), ITEM)
    assert isinstance(error, RefusedError)


def test_own_from_crawler(piped: Piped, client: redis.Redis) -> None:
    """A pipeline that was built in another way gets its spider with the item, as before Scrapy 2.14, or is refused."""
    pipeline = piped.make(OwnServer)
    (refused,) = piped.store(pipeline, ITEM)
    assert isinstance(refused, ConfigError)
    assert "OwnServer.from_crawler: knows no spider; return super().from_crawler(crawler)" in str(refused)
    assert run(pipeline.process_item(ITEM, piped.crawlers[0].spider)) == ITEM
    assert client.llen(piped.key) == 1
    # The timeouts are those of the user's client, but redis-py repeats nothing.
    assert pipeline.server.get_connection_kwargs()["retry"]._retries == 0


class Counted(RedisPipeline):
    """Counts attempts, of which one at a time is under way, and none is beyond the fortieth."""

    attempts = under_way = 0

    def _send(self, *batch: Any) -> list[Any]:
        assert self.under_way == 0
        assert self.attempts < 40
        self.attempts, self.under_way = self.attempts + 1, 1
        try:
            return super()._send(*batch)
        finally:
            self.under_way = 0


def test_waits_beside_the_reactor(key: str, durable: Server) -> None:
    """While Redis is silent items wait, one thread tries, and the reactor is free."""
    piped, items = Piped(durable.url, key), [{"number": number} for number in range(300)]
    pipeline = piped.make(Counted, REDIS_PARAMS=SHORT)

    async def store_all() -> int:
        turns = 0
        with durable.silent():
            tasks = [asyncio.ensure_future(pipeline.process_item(item)) for item in items]
            while pipeline.attempts < 3:
                await asyncio.sleep(0.01)
                turns += 1
        assert await asyncio.gather(*tasks) == items
        return turns

    # Two attempts of 0.5 s each, and the pauses behind them.
    assert run(store_all()) > 10
    with durable.client() as client:
        assert {json.loads(each)["number"] for each in client.lrange(piped.key, 0, -1)} == set(range(300))
    pipeline.server.close()


def test_slow_link(server: Server, key: str) -> None:
    """Batches that take longer than the socket timeout are halved until they get through."""
    with forwarding(server.port) as link, server.client() as client:
        piped = Piped(link.url, key)
        pipeline = piped.make(Counted, REDIS_PARAMS=SHORT)
        link.link = Link(rate=400_000)
        items = [{"number": number, "text": "x" * 10_000} for number in range(60)]
        assert piped.store(pipeline, *items) == items
        assert {json.loads(each)["number"] for each in client.lrange(piped.key, 0, -1)} == set(range(60))
        pipeline.server.close()


def test_refused(piped: Piped, client: redis.Redis) -> None:
    """Items that Redis refuses are errors that name the setting, the key, the fact and what to do."""
    client.set(piped.key, "no list")
    results = piped.store(piped.make(), ITEM, ITEM)
    assert [type(result) for result in results] == [RefusedError] * 2
    assert f"REDIS_ITEMS_KEY = '{piped.key}': Redis refused an item (ResponseError: WRONGTYPE" in str(results[0])
    assert "Use a key that is absent or a list" in str(results[0])
