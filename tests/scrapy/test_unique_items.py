"""The keys of items: equal in all processes, different for values of different types."""

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import combinations
from typing import Any

import attrs
import pytest
from redis import Redis
from scrapy import Field, Item
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem

from scrapy_bloom import BloomError, ConfigError, UniqueItemsPipeline, unique_items
from scrapy_bloom.transport.failures import FILTER_COMMANDS
from scrapy_bloom.unique_items import _CLAIM
from tests.support.faults import proxying
from tests.support.in_process import end, run, start
from tests.support.kinds import Place
from tests.support.servers import Server

MEGABYTE = "ä" * 1_000_000


class Product(Item):
    """An item of Scrapy's own class."""

    sku = Field()
    shop = Field()


@dataclass
class OfData:
    """A dataclass as an item."""

    sku: Any = None
    shop: Any = None


@attrs.define
class OfAttrs:
    """An item of attrs."""

    sku: Any = None
    shop: Any = None


def key_of(item: dict[str, Any]) -> Any:
    """A user's function: no key for some items, an error for others."""
    return item["kind"] and item["sku"]


Make = Callable[[Any], UniqueItemsPipeline]


@pytest.fixture
def make(valkey: Server, key: str) -> Iterator[Make]:
    """Build pipelines as Scrapy does, which are closed at the end."""
    crawlers: list[Crawler] = []

    def make(item_key: Any) -> UniqueItemsPipeline:
        # Each in a filter of its own.
        name = f"{key}:{len(crawlers)}"
        crawlers.append(start({"REDIS_URL": valkey.url, "BLOOMFILTER_ITEM_KEY": item_key}, spider_name=name))
        return UniqueItemsPipeline.from_crawler(crawlers[-1])

    yield make
    for crawler in crawlers:
        end(crawler)


@pytest.mark.parametrize("kind", [dict, Product, OfData, OfAttrs])
def test_kinds_of_items(kind: type, make: Make) -> None:
    """Items of each kind with the same fields have the same key."""
    assert make("sku")._key_of(kind(sku="a", shop="b")) == b'["a"]'
    assert make(["shop", "sku"])._key_of(kind(sku="a", shop="b")) == b'["b", "a"]'


# Values of which no two may have the same key.
DIFFERENT = [
    *(1, "1", True, "true", b"1", 1.0, Decimal("1.0"), Decimal("1.00"), 0, False, "0", -1, 2**64),
    *("a", b"a", "b'a'", "ä", " a", "a ", "A", ["a"], ["a", "a"], '["a"]', {"a": 1}, {"a": "1"}, [{"a": 1}]),
    *(date(2026, 1, 1), "2026-01-01", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    *(MEGABYTE, MEGABYTE + "a", "\ud800", "\x00", "null", "[]"),
]


def test_different_values(make: Make) -> None:
    """Values of different types are different keys, and so are long texts with the same beginning."""
    pipeline = make("sku")
    keys = [pipeline._key_of({"sku": value}) for value in DIFFERENT]
    assert None not in keys
    assert [pair for pair in combinations(range(len(keys)), 2) if keys[pair[0]] == keys[pair[1]]] == []


def test_equal_values(make: Make) -> None:
    """A dict has one key in each order, at each depth, and a tuple is a list. The key of text is JSON."""
    key = make("sku")._key_of
    assert key({"sku": {"a": 1, "b": {"c": 2, "d": 3}}}) == key({"sku": {"b": {"d": 3, "c": 2}, "a": 1}})
    assert key({"sku": ("a", 1)}) == key({"sku": ["a", 1]})
    assert key({"sku": "käse"}) == json.dumps(["käse"]).encode()


@pytest.mark.parametrize("value", [None, "", [], {}, (), math.nan])
def test_no_value(value: Any, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """An item without a value in one of the fields has no key, and a warning says so once."""
    pipeline = make("shop, sku")
    for item in ({"shop": "b", "sku": value}, {"shop": value, "sku": "a"}, {"shop": "b"}, {}):
        assert pipeline._key_of(item) is None
    (warning,) = caplog.messages
    assert warning.startswith("BLOOMFILTER_ITEM_KEY = ('shop', 'sku'): an item of the type dict lacks a value there")


@pytest.mark.parametrize("value", [{"a", "b"}, object(), [object()], {1: "a", "b": 2}])
def test_values_without_a_stable_text(value: Any, make: Make) -> None:
    """A value whose text may differ between processes is an error of its item."""
    with pytest.raises((ConfigError, TypeError), match=r"must be of text, bytes|not supported between"):
        make("sku")._key_of({"sku": value})


def test_callable(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A function makes the key. Its error is that of the item, and None means no key, without a warning."""
    pipeline = make(f"{__name__}.key_of")
    assert pipeline._key_of({"kind": 1, "sku": "a"}) == b'["a"]'
    assert pipeline._key_of({"kind": None}) is None
    assert caplog.messages == []
    with pytest.raises(KeyError, match="kind"):
        pipeline._key_of({})


@pytest.mark.parametrize(
    "value", [5, True, b"sku", [], (), "", " ", "a,,b", ["a", ""], ["a", 1], "['a', 'b']", {"a": 1}]
)
def test_refused(value: Any, make: Make) -> None:
    """A setting that names no fields is refused at the start, with its value and what is allowed."""
    with pytest.raises(ConfigError, match="must be a field of the items, a list of fields, or the path") as refusal:
        make(value)
    assert f"BLOOMFILTER_ITEM_KEY = {value!r}" in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no.such.module", r"BLOOMFILTER_ITEM_KEY = 'no\.such\.module': cannot be imported"),
        (f"{__name__}.MEGABYTE", "must be a field of the items"),
        (None, "BLOOMFILTER_ITEM_KEY is not set"),
    ],
)
def test_refused_paths(value: Any, text: str, make: Make) -> None:
    """A path that cannot be imported is refused, one of no function, and a pipeline without the setting."""
    with pytest.raises(ConfigError, match=text):
        make(value)


def test_foreign_data(valkey: Server, key: str, make: Make) -> None:
    """Other data at the filter's key are refused, at the start and later, with advice for a key that is not set."""
    with valkey.client() as client:
        client.set(f"{key}:0:items:dupefilter", "text")
        with pytest.raises(BloomError, match="items:dupefilter' holds a string that is not a filter") as refused:
            make("sku")
        opened = make("sku")
        client.set(f"{key}:1:items:dupefilter", "text")
        with pytest.raises(BloomError, match="items:dupefilter' holds data that is not a filter") as ended:
            "a" in opened._filter  # noqa: B015
    for error in (refused, ended):
        assert "UniqueItemsPipeline has no other key: rename that one, or the spider" in str(error.value)


async def pass_on(item: Any) -> Any:
    """Take the place of the pipelines behind."""
    return item


def test_claim(client: Redis, key: str) -> None:
    """A claim is that of one claimant, who alone can repeat it or give it back, and it expires."""

    def claim(claimant: str, milliseconds: int) -> int:
        return int(_CLAIM.call(client, [key], [claimant, milliseconds]))

    assert [claim("a", 60_000), claim("b", 60_000), claim("b", 0), claim("a", 90_000)] == [1, 0, 0, 1]
    assert 60_000 < client.pttl(key) <= 90_000
    assert [claim("a", 0), client.exists(key), claim("b", 60_000), claim("a", 0), client.exists(key)] == [1, 0, 1, 0, 1]
    assert [claim("b", 0), claim("b", 0), client.exists(key)] == [1, 1, 0]


def test_claim_without_an_end(client: Redis, key: str) -> None:
    """A claim that has no expiry, since PEXPIREAT was denied, keeps nobody waiting: the next claimant takes it."""
    client.hset(key, "owner", "a")
    assert _CLAIM.call(client, [key], ["b", 60_000]) == 1
    assert client.hget(key, "owner") == b"b"
    assert 59_000 < int(client.pttl(key)) <= 60_000


def test_added_before_the_claim(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item is dropped if an equal one has passed just before the claim."""
    pipeline: Any = make("sku")
    pipeline._pass_on = pass_on

    class AfterAnother:
        @staticmethod
        def call(*_: object) -> int:
            return int(pipeline._filter.add(pipeline._key_of({"sku": "a"})))

    monkeypatch.setattr(unique_items, "_CLAIM", AfterAnother)
    with pytest.raises(DropItem):
        run(pipeline.process_item({"sku": "a"}))


def test_stored_items_first(make: Make) -> None:
    """A stored item is added before others are claimed: a kill until then has it be stored again."""
    pipeline: Any = make("sku")
    stored, added = list[int](), list[int]()

    async def store(item: Any) -> Any:
        stored.append(len(added))
        return item

    async def process(number: int) -> None:
        await pipeline.process_item({"sku": number})
        added.append(number)

    async def process_all() -> None:
        await asyncio.gather(*map(process, range(1, 10)))

    pipeline._pass_on = store
    run(process_all())
    assert max(before - after for before, after in enumerate(stored)) <= 2


@pytest.mark.parametrize("place", ["redis", "redis+cluster", "redis+sentinel"], indirect=True)
def test_kinds_of_servers(place: Place, key: str) -> None:
    """Each kind of server has the filter and the claims."""
    crawler = start({"REDIS_URL": place.url, "BLOOMFILTER_ITEM_KEY": "sku"}, spider_name=key)
    pipeline = UniqueItemsPipeline.from_crawler(crawler)
    pipeline._pass_on = pass_on
    assert run(pipeline.process_item({"sku": "a"})) == {"sku": "a"}
    with pytest.raises(DropItem, match="was seen"):
        run(pipeline.process_item({"sku": "a"}))
    with place.client() as client:
        names = [name.decode() for name in client.scan_iter(match=f"*{key}*", count=1000)]
    assert f"{key}:items:dupefilter" in names
    end(crawler)


def test_permissions(valkey: Server, key: str) -> None:
    """A user needs the commands of a filter only."""
    allowed = [f"+{name.lower()}" for name in FILTER_COMMANDS]
    keys = [f"~{key}:items:dupefilter", f"~{{{key}:items:dupefilter}}:*"]
    with valkey.client() as admin:
        admin.execute_command("ACL", "SETUSER", key, "on", ">password", *keys, *allowed)
        crawler = start(
            {"REDIS_URL": valkey.url, "REDIS_PARAMS": {"username": key, "password": "password"}}
            | {"BLOOMFILTER_ITEM_KEY": "sku"},
            spider_name=key,
        )
        pipeline = UniqueItemsPipeline.from_crawler(crawler)
        pipeline._pass_on = pass_on
        assert run(pipeline.process_item({"sku": "a"})) == {"sku": "a"}
        end(crawler)
        admin.acl_deluser(key)


def test_round_trips(valkey: Server, key: str) -> None:
    """A new item costs three round trips, a repeat of another process two, and a repeat of this process none."""

    def cost(pipeline: UniqueItemsPipeline, item: dict[str, str]) -> int:
        before = proxy.done.total()
        with contextlib.suppress(DropItem):
            run(pipeline.process_item(item))
        return proxy.done.total() - before

    with proxying(valkey.port, "EVALSHA", "EVAL") as proxy:
        crawlers = [start({"REDIS_URL": proxy.url, "BLOOMFILTER_ITEM_KEY": "sku"}, spider_name=key) for _ in range(2)]
        one, other = map(UniqueItemsPipeline.from_crawler, crawlers)
        one._pass_on = other._pass_on = pass_on
        # The first calls load the scripts, open the filter for additions and allocate its first layer.
        cost(one, {"sku": "first"}), cost(other, {"sku": "second"})
        assert [cost(each, {"sku": "a"}) for each in (one, one, other, other)] == [3, 0, 2, 0]
        for crawler in crawlers:
            end(crawler)
