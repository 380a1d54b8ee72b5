"""`scrapy bloom merge`: what was in either filter is in the first, at the error rate that it promises."""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom._text import as_text
from scrapy_bloom.admin.archive.exporting import Advance
from scrapy_bloom.admin.merging.like import make_like
from scrapy_bloom.admin.merging.merge import Merged, merge
from scrapy_bloom.admin.merging.mergeable import require_same_slots
from scrapy_bloom.admin.occupants import require
from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, WrongTypeError
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.storage.base import Operation, Results
from scrapy_bloom.storage.memory import MemoryStore
from scrapy_bloom.storage.redis import RedisStore
from tests.support import command, moving
from tests.support.moving import items, keys_at, killed_at
from tests.support.servers import Server

# Items are counted exactly: none may be taken for another.
SMALL: dict[str, Any] = {**moving.SMALL, "error_rate": 1e-7}
ONE, TWO, STRANGERS = items(40, "one"), items(30, "two"), items(500, "stranger")


def pair(client: redis.Redis, key: str, **options: Any) -> tuple[BloomFilter, BloomFilter]:
    """Two filters that can be merged, with items in each."""
    options = {**SMALL, **options}
    first = BloomFilter(client, key, **options)
    first.add_many(ONE)
    second = BloomFilter(client, f"{key}:two", key_of=first, **options)
    second.add_many(TWO)
    for bloom in (first, second):
        bloom.close()
    return first, second


def dumped(server: Server, key: str) -> dict[str, Any]:
    """All that is stored of a filter."""
    with server.client() as client:
        return {name: client.dump(name) for name in keys_at(client, key)}


def merge_into(client: redis.Redis, key: str, sources: Sequence[str], advance: Advance = lambda _: None) -> Merged:
    """Merge the filters at some keys into the one at a key."""
    return merge(RedisStore(client), key, sources, advance)


def counter(client: redis.Redis, key: str) -> int:
    """The room that a filter's first layer has given."""
    (value,) = (value for name, value in client.hgetall(key).items() if as_text(name).startswith("credit:"))
    return int(value)


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}], ids=str)
def test_merged_filters(server: Server, key: str, options: dict[str, Any]) -> None:
    """The first knows what both knew, and has counted it; the second is as it was."""
    with server.client(**options) as client:
        first, second = pair(client, key)
        before = dumped(server, f"{key}:two")
        assert len(before) == 2
        counted = counter(client, key), counter(client, f"{key}:two")
        done = merge_into(client, key, [f"{key}:two"])
        assert (done.shards, done.charged, done.late) == (1, counted[1], 0)
        assert counter(client, key) == sum(counted)
        assert all(first.contains_many([*ONE, *TWO]))
        assert first.add_many(TWO) == [False] * len(TWO)
        assert sum(first.contains_many(STRANGERS)) <= 3
        assert dumped(server, f"{key}:two") == before
        assert not any(second.contains_many(ONE))


def test_a_merge_that_is_repeated(client: redis.Redis, key: str) -> None:
    """Room is taken once for each item, so that it can be run again, also when the source has more."""
    _, second = pair(client, key)
    merge_into(client, key, [f"{key}:two"])
    counted = counter(client, key)
    assert merge_into(client, key, [f"{key}:two"]).charged == 0
    assert counter(client, key) == counted
    more = items(5, "more")
    second.add_many(more)
    second.close()
    assert merge_into(client, key, [f"{key}:two"]).charged == 5
    assert all(BloomFilter(client, key, **SMALL).contains_many([*ONE, *TWO, *more]))


def test_the_source_gets_more_meanwhile(client: redis.Redis, key: str) -> None:
    """Items that come to it before its last bits are read may be in the target: they are counted, and told of."""
    _, second = pair(client, key)
    counted = counter(client, key)

    def add(_: int) -> None:
        second.add_many(items(7, "late"))
        second.close()

    done = merge_into(client, key, [f"{key}:two"], add)
    assert (done.charged, done.late) == (30, 7)
    assert counter(client, key) == counted + 37


def test_workers_fill_the_target_meanwhile(client: redis.Redis, key: str) -> None:
    """The room is not taken twice: the second source is refused, and its bits stay away."""
    first, _ = pair(client, key)
    third = BloomFilter(client, f"{key}:three", key_of=first, **SMALL)
    third.add_many(items(30, "three"))
    third.close()

    def fill(_: int) -> None:
        first.add_many(items(200, "more"))

    with pytest.raises(MismatchError, match="workers have filled the filter"):
        merge_into(client, key, [f"{key}:two", f"{key}:three"], fill)
    assert all(first.contains_many(TWO))
    assert sum(first.contains_many(items(30, "three"))) <= 2


def test_the_merged_filter_keeps_its_error_rate_and_grows(client: redis.Redis, key: str) -> None:
    """Merged items count: the next layer comes when the first is full of both."""
    first, _ = pair(client, key)
    merge_into(client, key, [f"{key}:two"])
    first.add_many(items(25, "more"))
    assert first.info().layers == 1
    first.add_many(items(60, "even more"))
    assert first.info().layers == 2
    with pytest.raises(MismatchError, match="layer 1 of the second is not of the shape"):
        merge_into(client, f"{key}:two", [key])


def test_what_does_not_fit_is_refused(client: redis.Redis, key: str) -> None:
    """The refusal says how large the filters need to be, and nothing was written."""
    _, second = pair(client, key)
    second.add_many(items(70, "more"))
    second.close()
    counted = counter(client, key), counter(client, f"{key}:two")
    before = {name: client.dump(name) for name in keys_at(client, key)}
    with pytest.raises(MismatchError, match=r"BLOOMFILTER_CAPACITY = \d+ or more") as refused:
        merge_into(client, key, [f"{key}:two"])
    # By the counters, or by the bits where these say more.
    assert int(re.findall(r"CAPACITY = (\d+)", str(refused.value))[0]) >= sum(counted)
    assert {name: client.dump(name) for name in keys_at(client, key)} == before


def _other_hash_key(client: redis.Redis, key: str) -> None:
    BloomFilter(client, f"{key}:two", flush=True, **SMALL).add("a")


def _ttl(client: redis.Redis, key: str) -> None:
    pair(client, key, ttl=1000.0, flush=True)


REFUSED: dict[str, tuple[Callable[[redis.Redis, str], object], type[BloomError], str]] = {
    "another hash key": (_other_hash_key, MismatchError, "merge SPIDER --like OTHER"),
    "other settings": (
        lambda client, key: BloomFilter(client, f"{key}:two", capacity=200, flush=True),
        MismatchError,
        "BLOOMFILTER_CAPACITY = 100 here, 200 in ",
    ),
    "another shape": (
        lambda client, key: BloomFilter(client, f"{key}:two", **SMALL).add_many(items(200)),
        MismatchError,
        "is not of the shape",
    ),
    "a TTL": (_ttl, MismatchError, "merge filters without a TTL"),
    "unfinished": (lambda client, key: client.hset(f"{key}:two", "unfinished", "import"), WrongTypeError, "not compl"),
    "an unfinished target": (lambda client, key: client.hset(key, "unfinished", "import"), WrongTypeError, "not compl"),
    "no filter": (lambda client, key: client.delete(f"{key}:two"), WrongTypeError, "there is no filter at"),
    "a lost shard": (lambda client, key: client.delete(f"{key}:two:0:0"), MismatchError, "lost its shard"),
    "a lost shard of the target": (lambda client, key: client.delete(f"{key}:0:0"), MismatchError, "lost its shard"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(client: redis.Redis, key: str, reason: str) -> None:
    """The reason is told, and no bit is set."""
    pair(client, key)
    prepare, error, text = REFUSED[reason]
    prepare(client, key)
    before = client.get(f"{key}:0:0")
    with pytest.raises(error, match=text):
        merge_into(client, key, [f"{key}:two"])
    assert client.get(f"{key}:0:0") == before


def test_named_twice(client: redis.Redis, key: str) -> None:
    """A filter is not merged with itself, nor another one twice."""
    pair(client, key)
    for sources in ([key], [f"{key}:two", f"{key}:two"]):
        with pytest.raises(ConfigError, match="must be named once"):
            merge_into(client, key, sources)


def test_slots_of_a_cluster() -> None:
    """In a cluster all shards have to be in one slot, as a common name in braces has them."""
    require_same_slots(["{crawl}:a", "{crawl}:b"])
    with pytest.raises(ConfigError, match="must be in one slot"):
        require_same_slots(["a", "b"])


def test_a_merge_that_is_killed(server: Server, key: str) -> None:
    """The first filter works on, and the next run completes it without taking more room."""
    with server.client() as client:
        first, _ = pair(client, key)
        third = BloomFilter(client, f"{key}:three", key_of=first, **SMALL)
        third.add_many(items(20, "three"))
        third.close()
        sources = [f"{key}:two", f"{key}:three"]
        for part in (1, 2):
            killed_at(part, lambda advance: merge_into(server.client(), key, sources, advance))
            assert first.add(f"new {part}")
        merge_into(client, key, sources)
        assert all(first.contains_many([*ONE, *TWO, *items(20, "three"), "new 1", "new 2"]))
        first.close()
        # Each item is counted once, and the credit that two workers held when they were killed at most.
        items_in_it = 40 + 30 + 20 + 2
        assert items_in_it <= counter(client, key) <= items_in_it + 3


def test_a_filter_like_another(client: redis.Redis, key: str) -> None:
    """It is empty, and takes what the other one knows; nothing gives way to it."""
    first, _ = pair(client, key)
    store, place = RedisStore(client), f"{key}:like"
    make_like(store, place, first.parameters, require(store, key))
    merge_into(client, place, [key, f"{key}:two"])
    assert all(BloomFilter(client, place, **SMALL).contains_many([*ONE, *TWO]))
    with pytest.raises(ConfigError, match="there is a filter now"):
        make_like(store, place, first.parameters, require(store, key))
    other = replace(first.parameters, expansion=3)
    with pytest.raises(ConfigError, match="BLOOMFILTER_EXPANSION = 3 here, 2 in the filter at"):
        make_like(store, f"{key}:third", other, require(store, key))
    assert not keys_at(client, f"{key}:third")


class Busy(MemoryStore):
    """A store in which others add between any two operations, as the dice have it."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.between: Callable[[], None] = lambda: None
        self._dice = dice
        self._is_between = False

    def execute(self, operations: Sequence[Operation]) -> Results:
        results = Results()
        for operation in operations:
            while not self._is_between and self._dice.random() < 0.5:
                self._is_between = True
                self.between()
                self._is_between = False
            results.append(operation.apply(self))
        return results


@pytest.mark.parametrize("seed", range(40))
def test_workers_add_meanwhile(seed: int) -> None:
    """An item is new to one worker of the target, unless the source had it; what was in before is in afterwards."""
    dice = random.Random(seed)
    store = Busy(dice)
    parameters = FilterParameters(300, 1e-9)
    first = BaseBloomFilter(store, "one", parameters, cache_size=dice.choice([0, 100]))
    second = BaseBloomFilter(store, "two", parameters, cache_size=0, key_of=first)
    worker = BaseBloomFilter(store, "one", parameters, cache_size=dice.choice([0, 100]))
    common, before = items(60), items(60, "before")
    second.add_many(before + common[::2])
    told = {item for item, is_new in zip(common[:20], first.add_many(common[:20]), strict=True) if is_new}
    of_source = set(common[::2])

    def add() -> None:
        item = dice.choice(common)
        adder = dice.choice([first, worker, second])
        if adder is second:
            second.add(item)
            of_source.add(item)
        elif adder.add(item):
            assert item not in told
            told.add(item)
        else:
            assert item in told or item in of_source

    store.between = add
    merge(store, "one", ["two"])
    store.between = lambda: None
    assert all(first.contains_many([*before, *common[::2], *told]))


def test_in_a_project(valkey: Server, key: str, tmp_path: Path) -> None:
    """Spiders are named, and a filter for one of them is made like that of the other."""
    cwd = command.make_project(
        tmp_path / "project",
        REDIS_URL=valkey.url,
        SCHEDULER_DUPEFILTER_KEY=key + ":%(spider)s",
        BLOOMFILTER_CAPACITY=100,
    )
    with valkey.client() as client:
        BloomFilter(client, f"{key}:shop", capacity=100, fingerprint="scrapy-redis").add_many(ONE)
        assert "made an empty filter" in command.run("merge", "news", "--like", "shop", cwd=cwd).stdout
        told = command.report("merge", "news", "shop", cwd=cwd)
        assert (told["key"], told["sources"], told["shards"]) == (f"{key}:news", [f"{key}:shop"], 1)
        copy = BloomFilter(client, f"{key}:news", capacity=100, fingerprint="scrapy-redis")
        assert all(copy.contains_many(ONE))


def test_a_filter_on_another_server(valkey: Server, key: str, tmp_path: Path) -> None:
    """A spider whose settings name another server, or another database, is refused: its key means another filter."""
    cwd = command.make_project(tmp_path / "project", REDIS_URL=valkey.url, SCHEDULER_DUPEFILTER_KEY=key + ":%(spider)s")
    elsewhere = f"""
class ElsewhereSpider(scrapy.Spider):
    name = "elsewhere"
    custom_settings = {{"REDIS_URL": {valkey.url + "/3"!r}}}
"""
    with (cwd / "project" / "spiders.py").open("a") as spiders:
        spiders.write(elsewhere)
    with valkey.client() as client:
        first = BloomFilter(client, f"{key}:shop", fingerprint="scrapy-redis")
        BloomFilter(client, f"{key}:elsewhere", fingerprint="scrapy-redis", key_of=first).add_many(ONE)
        said = command.run("merge", "shop", "elsewhere", cwd=cwd)
        assert (said.returncode, said.stdout) == (2, "")
        assert f"elsewhere: its filter is on 127.0.0.1:{valkey.port}, database 3, and that of the first" in said.stderr
        assert not any(first.contains_many(ONE))


def test_options(valkey: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys are named outside a project; there must be something to merge, and one way only."""
    with valkey.client() as client:
        pair(client, key)
    where = ["--key", key, "--redis-url", valkey.url]
    assert command.call("merge", *where, "--source-key", f"{key}:two", "--json") == 0
    assert json.loads(capsys.readouterr().out)["charged"] == 30
    for options in ([], ["--source-key", "a", "--like-key", "b"], ["--like", "a", "--like-key", "b"]):
        assert command.call("merge", *where, *options) == 2
        assert "give filters to merge" in capsys.readouterr().err
