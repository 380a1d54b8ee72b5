"""The dupefilter with real crawlers and servers: how it is built, what it answers, what it refuses, what it tells."""

import contextlib
import json
import logging
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.statscollectors import StatsCollector
from scrapy_redis.dupefilter import RFPDupeFilter

from devtools.waiting import until
from scrapy_bloom import (
    BloomFilter,
    BloomRFPDupeFilter,
    ConfigError,
    MismatchError,
    WrongTypeError,
)
from scrapy_bloom.config import BloomConfig
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.job import KEY_FILE
from scrapy_bloom.stats import FILTERED, NAMES, RECOVERED
from tests.support.in_process import ShopSpider, start
from tests.support.servers import KINDS, Server, running

KEY = "SCHEDULER_DUPEFILTER_KEY"


class PathFingerprinter:
    """Takes pages that differ in their queries for one."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("?")[0].encode()


class BuiltFromCrawler(PathFingerprinter):
    @classmethod
    def from_crawler(cls, _: Crawler) -> "BuiltFromCrawler":
        return cls()


class HostDupeFilter(BloomRFPDupeFilter):
    """Takes all pages of a host for one."""

    def request_fingerprint(self, request: Request) -> str:
        return request.url.split("/")[2]


PATH_FINGERPRINTER = f"{__name__}.{PathFingerprinter.__qualname__}"
BUILT_FROM_CRAWLER = f"{__name__}.{BuiltFromCrawler.__qualname__}"


def crawler_of(server: Server, *, spider_name: str = "shop", **settings: Any) -> Crawler:
    """A real crawler with a spider, as it is when its scheduler is opened."""
    return start({"REDIS_URL": server.url, "BLOOMFILTER_CAPACITY": 1000, **settings}, spider_name)


Way = Callable[[Crawler], BloomRFPDupeFilter]

BY_CRAWLER: dict[str, Way] = {
    "from_spider": lambda crawler: BloomRFPDupeFilter.from_spider(spider_of(crawler)),
    "from_crawler": BloomRFPDupeFilter.from_crawler,
}
WAYS: dict[str, Way] = {
    **BY_CRAWLER,
    "from_settings": lambda crawler: BloomRFPDupeFilter.from_settings(crawler.settings),
}
by_crawler = pytest.mark.parametrize("way", BY_CRAWLER.values(), ids=BY_CRAWLER)
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def build(server: Server, key: str, **settings: Any) -> BloomRFPDupeFilter:
    """The dupefilter that scrapy-redis's Scheduler would build."""
    return BloomRFPDupeFilter.from_spider(spider_of(crawler_of(server, **{KEY: key}, **settings)))


def spider_of(crawler: Crawler) -> Spider:
    assert crawler.spider is not None
    return crawler.spider


def stats_of(crawler: Crawler) -> StatsCollector:
    assert crawler.stats is not None
    return crawler.stats


def read(setting: str, value: object) -> object:
    """The value of a setting as the filter has it."""
    return getattr(BloomConfig.from_settings(Settings({f"BLOOMFILTER_{setting}": value})), setting.lower())


def page(number: int) -> Request:
    return Request(f"http://shop.test/{number}")


def keys_of(client: redis.Redis, key: str) -> list[str]:
    """What is stored for a filter."""
    return sorted(each.decode() for each in client.scan_iter(match=f"{key}*", count=10_000))


def parameters_of(client: redis.Redis, key: str) -> dict[str, Any]:
    """What is stored of a filter's parameters."""
    stored = client.hget(key, "filter")
    assert isinstance(stored, bytes)
    return dict(json.loads(stored))


def lose(client: redis.Redis, key: str) -> None:
    """What FLUSHDB does to one filter."""
    client.unlink(*keys_of(client, key))


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What this package has logged at a level or above it."""
    ours = [record for record in caplog.records if record.name.startswith("scrapy_bloom")]
    return [record.getMessage() for record in ours if record.levelno >= level]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return said(caplog, logging.WARNING)


# How it is built, and where its filter is.


@every_way
def test_key_is_the_setting(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """The filter is at SCHEDULER_DUPEFILTER_KEY, with everything of it below that key, once it is built."""
    dupefilter = way(crawler_of(server, **{KEY: key}))
    assert dupefilter.key == key
    assert client.type(key) == b"hash"
    assert keys_of(client, key) == [key]
    assert not dupefilter.request_seen(page(1))
    assert keys_of(client, key) == [key, f"{key}:0:0"]


@by_crawler
def test_key_names_the_spider(valkey: Server, key: str, way: Way) -> None:
    """%(spider)s in the key is the spider's name."""
    dupefilter = way(crawler_of(valkey, **{KEY: f"{key}:%(spider)s:seen"}))
    assert dupefilter.key == f"{key}:shop:seen"


def test_key_before_there_is_a_spider(valkey: Server, key: str) -> None:
    """A crawler that has no spider yet knows the name from the class."""
    crawler = crawler_of(valkey, **{KEY: f"{key}:%(spider)s"})
    crawler.spider = None
    assert BloomRFPDupeFilter.from_crawler(crawler).key == f"{key}:shop"


def test_key_of_from_settings_names_no_spider(valkey: Server, key: str) -> None:
    """from_settings refuses a key that names the spider, which it does not know."""
    template = f"{key}:%(spider)s"
    with pytest.raises(ConfigError) as refusal:
        BloomRFPDupeFilter.from_settings(crawler_of(valkey, **{KEY: template}).settings)
    assert f"{KEY} = {template!r}" in str(refusal.value)


def test_default_key_of_from_spider(valkey: Server, key: str) -> None:
    """Without the setting from_spider uses the key of scrapy-redis."""
    crawler = crawler_of(valkey, spider_name=key)
    assert BloomRFPDupeFilter.from_spider(spider_of(crawler)).key == f"{key}:dupefilter"


@pytest.mark.parametrize("way", [WAYS["from_crawler"], WAYS["from_settings"]], ids=["from_crawler", "from_settings"])
def test_unique_key(valkey: Server, way: Way) -> None:
    """Without the setting each crawl has a key of its own that says when it began, also within one second."""
    while True:
        before = int(time.time())
        keys = [way(crawler_of(valkey)).key for _ in range(2)]
        seconds = [re.match(r"dupefilter:(\d+)", key) for key in keys]
        assert all(second is not None and before <= int(second[1]) <= time.time() for second in seconds)
        if int(time.time()) == before:
            break
    assert len(set(keys)) == 2


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("way", [WAYS["from_crawler"], WAYS["from_settings"]], ids=["from_crawler", "from_settings"])
def test_close_deletes_a_unique_key(server: Server, client: redis.Redis, way: Way, persist: bool) -> None:
    """A key that nobody can find again is deleted at the end, even with SCHEDULER_PERSIST."""
    dupefilter = way(crawler_of(server, SCHEDULER_PERSIST=persist))
    dupefilter.request_seen(page(1))
    assert keys_of(client, dupefilter.key)
    dupefilter.close("finished")
    assert keys_of(client, dupefilter.key) == []


# The filter of a job directory.


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_jobdir_keeps_its_filter(server: Server, key: str, tmp_path: Path, named: bool, persist: bool) -> None:
    """Under Scrapy's own Scheduler a filter lives as long as its JOBDIR, whether its key was set or drawn."""
    settings: dict[str, Any] = {
        **({KEY: key} if named else {}),
        "SCHEDULER_PERSIST": persist,
        "JOBDIR": str(tmp_path / "job"),
    }
    first = BloomRFPDupeFilter.from_crawler(crawler_of(server, **settings))
    assert not first.request_seen(page(1))
    first.close("shutdown")
    second = BloomRFPDupeFilter.from_crawler(crawler_of(server, **settings))
    assert second.request_seen(page(1))
    assert not second.request_seen(page(2))
    second.close("finished")
    assert second.key == first.key == (key if named else (tmp_path / "job" / KEY_FILE).read_text().strip())
    assert [each.name for each in (tmp_path / "job").iterdir()] == ([] if named else [KEY_FILE])
    third = BloomRFPDupeFilter.from_crawler(crawler_of(server, **settings))
    assert third.request_seen(page(2))


def test_each_jobdir_has_its_own_filter(valkey: Server, tmp_path: Path) -> None:
    """Crawls in two job directories know nothing of each other."""
    jobs = [crawler_of(valkey, JOBDIR=str(tmp_path / name)) for name in ("one", "other")]
    assert [BloomRFPDupeFilter.from_crawler(job).request_seen(page(1)) for job in jobs] == [False, False]


def test_flush_on_start_empties_the_filter_of_a_jobdir(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """With SCHEDULER_FLUSH_ON_START a crawl in a JOBDIR begins anew, and leaves nothing of the filter before."""
    jobdir = str(tmp_path)
    first = BloomRFPDupeFilter.from_crawler(crawler_of(server, JOBDIR=jobdir, BLOOMFILTER_CAPACITY=20))
    for number in range(100):
        first.request_seen(page(number))
    first.close("shutdown")
    second = BloomRFPDupeFilter.from_crawler(crawler_of(server, JOBDIR=jobdir, SCHEDULER_FLUSH_ON_START=True))
    assert second.key == first.key
    assert not second.request_seen(page(1))
    assert keys_of(client, first.key) == [first.key, f"{first.key}:0:0"]


def test_jobdir_is_no_business_of_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """scrapy-redis's Scheduler, whose queue is in Redis, finds its filter as ever, and clears it as ever."""
    crawler = crawler_of(valkey, spider_name=key, JOBDIR=str(tmp_path))
    dupefilter = BloomRFPDupeFilter.from_spider(spider_of(crawler))
    assert dupefilter.key == f"{key}:dupefilter"
    assert not dupefilter.persist
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("persist", [False, True])
def test_close_says_that_the_filter_of_a_jobdir_stays(
    server: Server, client: redis.Redis, tmp_path: Path, persist: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a crawl in a JOBDIR says in one line that its filter stays, and what it says deletes all of it."""
    crawler = crawler_of(server, JOBDIR=str(tmp_path), SCHEDULER_PERSIST=persist)
    dupefilter = BloomRFPDupeFilter.from_crawler(crawler)
    dupefilter.request_seen(page(1))
    caplog.set_level(logging.INFO, "scrapy_bloom")
    caplog.clear()
    dupefilter.close("finished")
    (line,) = said(caplog, logging.INFO)
    assert repr(dupefilter.key) in line
    assert repr(str(tmp_path)) in line
    assert keys_of(client, dupefilter.key)
    command = line[line.index("BloomFilter(") :]
    eval(command, {"BloomFilter": BloomFilter, "client": client})  # noqa: S307  # the test is that it works
    assert keys_of(client, dupefilter.key) == []


def test_filter_of_a_jobdir_that_is_gone(valkey: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl that is resumed on a server that has lost its filter says so, and goes on; a flush was meant."""
    settings = {"JOBDIR": str(tmp_path)}
    first = BloomRFPDupeFilter.from_crawler(crawler_of(valkey, **settings))
    first.request_seen(page(1))
    assert warnings_in(caplog) == []
    with valkey.client() as client:
        lose(client, first.key)
        flushed = BloomRFPDupeFilter.from_crawler(crawler_of(valkey, **settings, SCHEDULER_FLUSH_ON_START=True))
        assert not flushed.request_seen(page(1))
        assert warnings_in(caplog) == []
        lose(client, first.key)
    assert not BloomRFPDupeFilter.from_crawler(crawler_of(valkey, **settings)).request_seen(page(1))
    (warning,) = warnings_in(caplog)
    assert repr(first.key) in warning
    assert str(tmp_path / KEY_FILE) in warning


SPOILED: dict[str, Callable[[Path], object]] = {
    "empty": Path.touch,
    "blank": lambda file: file.write_text(" \n"),
    "two lines": lambda file: file.write_text("a\nb\n"),
    "no text": lambda file: file.write_bytes(b"\xff\xfe"),
    "a directory": Path.mkdir,
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_key_of_a_jobdir_that_cannot_be_read(valkey: Server, tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    """A job directory whose key is spoiled is refused with the file's name and what to do, and the file stays."""
    file = tmp_path / KEY_FILE
    spoil(file)
    with pytest.raises(ConfigError) as refusal:
        BloomRFPDupeFilter.from_crawler(crawler_of(valkey, JOBDIR=str(tmp_path)))
    for part in (f"JOBDIR = {str(tmp_path)!r}", str(file), "delete", KEY):
        assert part in str(refusal.value)
    assert list(tmp_path.iterdir()) == [file]


def test_key_of_a_jobdir_that_cannot_be_written(valkey: Server, tmp_path: Path) -> None:
    """Where the key cannot be kept the crawl is refused, and no filter stays that nobody could find again."""
    (tmp_path / KEY_FILE).with_suffix(".part").mkdir()
    with valkey.client() as client:
        before = keys_of(client, "dupefilter:")
        with pytest.raises(ConfigError, match=re.escape(str(tmp_path / KEY_FILE))):
            BloomRFPDupeFilter.from_crawler(crawler_of(valkey, JOBDIR=str(tmp_path)))
        assert keys_of(client, "dupefilter:") == before


# What is kept otherwise.


@by_crawler
def test_close_keeps(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """With SCHEDULER_PERSIST the filter stays, and the next crawl goes on with it."""
    settings: dict[str, Any] = {KEY: key, "SCHEDULER_PERSIST": True}
    first = way(crawler_of(server, **settings))
    assert not first.request_seen(page(1))
    before = keys_of(client, key)
    first.close("finished")
    assert keys_of(client, key) == before
    second = way(crawler_of(server, **settings))
    assert second.request_seen(page(1))
    assert not second.request_seen(page(2))


@by_crawler
def test_close_deletes(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """Without SCHEDULER_PERSIST nothing of the filter is left, of none of its layers."""
    dupefilter = way(crawler_of(server, BLOOMFILTER_CAPACITY=20, **{KEY: key}))
    for number in range(100):
        dupefilter.request_seen(page(number))
    assert len(keys_of(client, key)) > 3
    dupefilter.close("finished")
    assert keys_of(client, key) == []


def test_clear_begins_anew(server: Server, client: redis.Redis, key: str) -> None:
    """After clear, which scrapy-redis's Scheduler calls, everything is new again."""
    dupefilter = build(server, key)
    dupefilter.request_seen(page(1))
    dupefilter.clear()
    assert keys_of(client, key) == []
    assert not dupefilter.request_seen(page(1))
    assert dupefilter.request_seen(page(1))


def test_is_true(valkey: Server, key: str) -> None:
    """scrapy-redis's Scheduler asks `if not self.df`: the filter is true, empty or not, open or not."""
    with valkey.client() as client:
        assert bool(BloomRFPDupeFilter(client, key)) is True
    assert bool(build(valkey, key)) is True


# Built directly.


def test_constructor_has_the_defaults(client: redis.Redis, key: str) -> None:
    """Built as scrapy-redis's dupefilter is built, it has the default settings, and scrapy-redis's attributes."""
    dupefilter = BloomRFPDupeFilter(client, key)
    assert (dupefilter.server, dupefilter.key, dupefilter.debug) == (client, key, False)
    assert dupefilter.config == BloomConfig()
    assert BloomRFPDupeFilter(client, key, True).debug is True
    assert BloomRFPDupeFilter(server=client, key=key, debug=True).debug is True


def test_constructor_opens_lazily(client: redis.Redis, key: str) -> None:
    """Built directly, it touches the server at its first use and not before; then it filters."""
    dupefilter = BloomRFPDupeFilter(client, key)
    dupefilter.open()
    assert keys_of(client, key) == []
    assert not dupefilter.request_seen(page(1))
    assert dupefilter.request_seen(page(1))
    stored = parameters_of(client, key)
    assert (stored["capacity"], stored["error_rate"], stored["expansion"], stored["ttl"]) == (1_000_000, 1e-6, 2, None)
    dupefilter.close()
    assert keys_of(client, key) == []


def test_constructor_over_a_set(client: redis.Redis, key: str) -> None:
    """Built directly over a SET, it raises at the first use: no crawl to end is no reason to drop requests."""
    client.sadd(key, "a")
    dupefilter = BloomRFPDupeFilter(client, key)
    with pytest.raises(WrongTypeError):
        dupefilter.request_seen(page(1))


# What it refuses at the start.

PUTS: dict[str, Callable[[redis.Redis, str], object]] = {
    "set": lambda client, key: client.sadd(key, *range(1234)),
    "string": lambda client, key: client.set(key, "x"),
    "list": lambda client, key: client.rpush(key, "x"),
    "zset": lambda client, key: client.zadd(key, {"x": 1}),
    "hash": lambda client, key: client.hset(key, "x", "y"),
    "hash-with-our-field": lambda client, key: client.hset(key, "filter", "not JSON"),
    "hash-with-other-json": lambda client, key: client.hset(key, "filter", '{"x": 1}'),
}
every_put = pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)


@every_way
def test_set_of_scrapy_redis_is_refused(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """A SET at the key is refused at the start; the text names the key, how much is in it, and how to import it."""
    client.sadd(key, *range(1234))
    with pytest.raises(WrongTypeError) as refusal:
        way(crawler_of(server, **{KEY: key}))
    text = str(refusal.value)
    assert repr(key) in text
    assert re.search(r"1[,_]?234\b", text)
    assert "scrapy bloom import" in text
    assert client.scard(key) == 1234


@every_put
def test_foreign_value_is_refused(
    server: Server, client: redis.Redis, key: str, put: Callable[[redis.Redis, str], object]
) -> None:
    """Whatever is at the key that is no filter is refused at the start, and stays as it was."""
    put(client, key)
    before = client.dump(key)
    with pytest.raises(WrongTypeError) as refusal:
        build(server, key)
    assert repr(key) in str(refusal.value)
    assert keys_of(client, key) == [key]
    assert client.dump(key) == before


PARAMETERS = [
    pytest.param("CAPACITY", (1000, "2000"), id="capacity"),
    pytest.param("ERROR_RATE", (1e-6, "0.25"), id="error-rate"),
    pytest.param("EXPANSION", (2, "0"), id="expansion"),
    pytest.param("TTL", (None, "3600.0"), id="ttl"),
]


@pytest.mark.parametrize(("setting", "values"), PARAMETERS)
def test_other_parameters_are_refused(
    server: Server, client: redis.Redis, key: str, setting: str, values: tuple[object, object]
) -> None:
    """A worker with another value than the filter's is refused at the start, whoever was first, and told both."""
    for stored, mine in (values, values[::-1]):
        build(server, key, **{f"BLOOMFILTER_{setting}": stored})
        before = client.hgetall(key)
        with pytest.raises(MismatchError) as refusal:
            build(server, key, **{f"BLOOMFILTER_{setting}": mine})
        text = f"{setting.lower()} = {mine} here, {stored} in the stored filter"
        assert text in str(refusal.value)
        assert repr(key) in str(refusal.value)
        assert client.hgetall(key) == before
        lose(client, key)


def test_cache_size_may_differ(valkey: Server, key: str) -> None:
    """How much a worker remembers is its own business."""
    assert not build(valkey, key, BLOOMFILTER_CACHE_SIZE=5).request_seen(page(1))
    assert build(valkey, key, BLOOMFILTER_CACHE_SIZE=0).request_seen(page(1))


def test_format_of_the_future_is_refused(server: Server, client: redis.Redis, key: str) -> None:
    """A filter that a newer version has written is refused with both versions of the format, and stays."""
    build(server, key)
    stored = parameters_of(client, key)
    newer = stored["format"] + 41
    client.hset(key, "filter", json.dumps({**stored, "format": newer}))
    with pytest.raises(MismatchError) as refusal:
        build(server, key)
    text = str(refusal.value).replace(repr(key), "")
    assert re.search(rf"\b{newer}\b.*\b{stored['format']}\b", text)
    assert parameters_of(client, key)["format"] == newer


@every_put
def test_flush_on_start_deletes_anything(
    server: Server, client: redis.Redis, key: str, put: Callable[[redis.Redis, str], object]
) -> None:
    """With SCHEDULER_FLUSH_ON_START whatever is at the key makes way for a filter."""
    put(client, key)
    dupefilter = build(server, key, SCHEDULER_FLUSH_ON_START=True)
    assert not dupefilter.request_seen(page(1))
    assert dupefilter.request_seen(page(1))


@every_way
def test_flush_on_start_deletes_other_parameters(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """With SCHEDULER_FLUSH_ON_START a filter of other parameters is replaced, and none of its layers stays."""
    other = build(server, key, BLOOMFILTER_CAPACITY=20)
    for number in range(100):
        other.request_seen(page(number))
    assert len(keys_of(client, key)) > 3
    dupefilter = way(crawler_of(server, SCHEDULER_FLUSH_ON_START=True, **{KEY: key}))
    assert parameters_of(client, key)["capacity"] == 1000
    assert keys_of(client, key) == [key]
    assert not dupefilter.request_seen(page(1))
    assert keys_of(client, key) == [key, f"{key}:0:0"]


def test_flush_on_start_deletes_the_future(server: Server, client: redis.Redis, key: str) -> None:
    """With SCHEDULER_FLUSH_ON_START a filter of a newer format is replaced, whatever its layers look like."""
    build(server, key)
    client.hset(key, "filter", json.dumps({"format": 42, "epoch": 5}))
    client.hset(key, "layer:0", json.dumps({"size": "another layout"}))
    dupefilter = build(server, key, SCHEDULER_FLUSH_ON_START=True)
    assert not dupefilter.request_seen(page(1))
    assert dupefilter.request_seen(page(1))


@every_way
def test_settings_are_checked(valkey: Server, key: str, way: Way) -> None:
    """A setting that is not allowed is refused before anything is stored."""
    with valkey.client() as client, pytest.raises(ConfigError, match=r"BLOOMFILTER_CAPACITY = 'many'"):
        way(crawler_of(valkey, BLOOMFILTER_CAPACITY="many", **{KEY: key}))
    assert keys_of(client, key) == []


def test_settings_arrive(valkey: Server, key: str) -> None:
    """The filter is made as the settings say."""
    settings: dict[str, Any] = {"CAPACITY": "5e3", "ERROR_RATE": "0.01", "EXPANSION": "3", "TTL": "60"}
    build(valkey, key, **{f"BLOOMFILTER_{name}": value for name, value in settings.items()})
    with valkey.client() as client:
        stored = parameters_of(client, key)
    assert (stored["capacity"], stored["error_rate"], stored["expansion"], stored["ttl"]) == (5000, 0.01, 3, 60.0)


def test_settings_of_the_process_arrive(valkey: Server, key: str) -> None:
    """How much a worker remembers, and how long it waits, is as the settings say."""
    dupefilter = build(valkey, key, BLOOMFILTER_CACHE_SIZE="0", BLOOMFILTER_RETRY_TIMEOUT="7")
    assert dupefilter.filter.retry_timeout == 7
    dupefilter.request_seen(page(1))
    before = dupefilter.filter.counters.round_trips
    assert [dupefilter.request_seen(page(1)) for _ in range(3)] == [True] * 3
    assert dupefilter.filter.counters.round_trips == before + 3


def test_filter_larger_than_maxmemory_is_warned_about(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl whose filter does not fit the server is told at its start how much it takes, and what there is."""
    # The server may refuse what comes after the warning.
    with running("valkey", "--maxmemory", "3mb") as server, contextlib.suppress(RefusedError):
        build(server, key, BLOOMFILTER_CAPACITY=1_000_000)
    needed = BloomConfig(capacity=1_000_000).plan().memory_bytes
    assert needed > 3 * 2**20
    assert [each for each in warnings_in(caplog) if f"{needed:,}" in each and f"{3 * 2**20:,}" in each]


# Fingerprints.

REQUESTS = [
    pytest.param(Request("http://shop.test/"), id="plain"),
    pytest.param(Request("http://shop.test/?b=2&a=1#part"), id="to-be-made-canonical"),
    pytest.param(Request("http://shop.test/", method="POST"), id="method"),
    pytest.param(Request("http://shop.test/", method="POST", body=b"\x00\xff"), id="body"),
    pytest.param(Request("http://shop.test/", headers={"A": "b"}, cookies={"c": "d"}), id="headers"),
    pytest.param(Request("http://shop.test/ä ö?ü=€"), id="not-ascii"),
    pytest.param(Request("http://shop.test/" + "x" * 5000), id="long"),
]


@pytest.mark.parametrize("request_", REQUESTS)
@every_way
def test_fingerprint_is_that_of_scrapy_redis(valkey: Server, key: str, way: Way, request_: Request) -> None:
    """Unless told otherwise the fingerprints are those that scrapy-redis's SETs hold."""
    expected = RFPDupeFilter(None, key).request_fingerprint(request_)
    assert way(crawler_of(valkey, **{KEY: key})).request_fingerprint(request_) == expected
    assert BloomRFPDupeFilter(None, key).request_fingerprint(request_) == expected


@pytest.mark.parametrize("priority", ["addon", "project", "spider", "cmdline"])
@every_way
def test_fingerprinter_of_the_user(valkey: Server, key: str, way: Way, priority: str) -> None:
    """A REQUEST_FINGERPRINTER_CLASS that was set, at whatever priority, makes the fingerprints."""

    class Priority(ShopSpider):
        @classmethod
        def update_settings(cls, settings: Any) -> None:
            settings.set("REQUEST_FINGERPRINTER_CLASS", PATH_FINGERPRINTER, priority)

    dupefilter = way(start({"REDIS_URL": valkey.url, KEY: key}, spidercls=Priority))
    assert bytes.fromhex(dupefilter.request_fingerprint(Request("http://shop.test/a?b"))) == b"http://shop.test/a"
    assert not dupefilter.request_seen(Request("http://shop.test/a?1"))
    assert dupefilter.request_seen(Request("http://shop.test/a?2"))
    assert not dupefilter.request_seen(Request("http://shop.test/b?1"))


def test_fingerprinter_of_scrapy_if_it_is_wanted(valkey: Server, key: str) -> None:
    """Who sets Scrapy's own fingerprinter gets it, although it is also Scrapy's default."""
    settings = {KEY: key, "REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    crawler = crawler_of(valkey, **settings)
    dupefilter = BloomRFPDupeFilter.from_spider(spider_of(crawler))
    fingerprinter = crawler.request_fingerprinter
    assert fingerprinter is not None
    assert dupefilter.request_fingerprint(page(1)) == fingerprinter.fingerprint(page(1)).hex()
    assert dupefilter.request_fingerprint(page(1)) != RFPDupeFilter(None, key).request_fingerprint(page(1))


def test_fingerprinter_that_needs_a_crawler(valkey: Server, key: str) -> None:
    """from_settings refuses a fingerprinter that is built from the crawler, which it does not know."""
    crawler = crawler_of(valkey, REQUEST_FINGERPRINTER_CLASS=BUILT_FROM_CRAWLER, **{KEY: key})
    BloomRFPDupeFilter.from_crawler(crawler)
    with pytest.raises(ConfigError) as refusal:
        BloomRFPDupeFilter.from_settings(crawler.settings)
    assert f"REQUEST_FINGERPRINTER_CLASS = {BUILT_FROM_CRAWLER!r}" in str(refusal.value)


@pytest.mark.parametrize("settings", [{}, {"REQUEST_FINGERPRINTER_CLASS": PATH_FINGERPRINTER}], ids=["alone", "both"])
def test_overridden_fingerprint_wins(valkey: Server, key: str, settings: dict[str, str]) -> None:
    """A subclass that overrides request_fingerprint makes the fingerprints, whatever the settings say."""
    dupefilter = HostDupeFilter.from_spider(spider_of(crawler_of(valkey, **{KEY: key}, **settings)))
    assert not dupefilter.request_seen(Request("http://one.test/a"))
    assert dupefilter.request_seen(Request("http://one.test/b"))
    assert not dupefilter.request_seen(Request("http://two.test/a"))


def by_default(server: Server, key: str) -> BloomRFPDupeFilter:
    return build(server, key)


def by_setting(server: Server, key: str) -> BloomRFPDupeFilter:
    return build(server, key, REQUEST_FINGERPRINTER_CLASS=PATH_FINGERPRINTER)


def by_subclass(server: Server, key: str) -> BloomRFPDupeFilter:
    return HostDupeFilter.from_spider(spider_of(crawler_of(server, **{KEY: key})))


SCHEMES: dict[Callable[[Server, str], BloomRFPDupeFilter], str] = {
    by_default: "scrapy-redis",
    by_setting: PATH_FINGERPRINTER,
    by_subclass: f"{__name__}.HostDupeFilter.request_fingerprint",
}


@pytest.mark.parametrize("make", SCHEMES)
def test_scheme_is_stored(
    server: Server, client: redis.Redis, key: str, make: Callable[[Server, str], BloomRFPDupeFilter]
) -> None:
    """What makes the fingerprints is stored, and any worker that makes others is refused with both names."""
    make(server, key)
    assert parameters_of(client, key)["fingerprint"] == SCHEMES[make]
    for other, scheme in SCHEMES.items():
        if other is make:
            assert not other(server, key).request_seen(page(1))
            continue
        with pytest.raises(MismatchError) as refusal:
            other(server, key)
        for part in ("fingerprint", SCHEMES[make], scheme):
            assert part in str(refusal.value)


# What it answers.

PAIRS = [
    pytest.param(Request("http://shop.test/a"), True, id="same"),
    pytest.param(Request("http://shop.test/a#part"), True, id="fragment"),
    pytest.param(Request("http://shop.test/a", headers={"A": "b"}), True, id="headers"),
    pytest.param(Request("http://shop.test/a", priority=5, meta={"a": 1}), True, id="priority"),
    pytest.param(Request("http://shop.test/A"), False, id="case"),
    pytest.param(Request("http://shop.test/a/"), False, id="slash"),
    pytest.param(Request("http://shop.test/a?"), True, id="empty-query"),
    pytest.param(Request("http://shop.test/a?b"), False, id="query"),
    pytest.param(Request("https://shop.test/a"), False, id="scheme"),
    pytest.param(Request("http://shop.test/a", method="HEAD"), False, id="method"),
    pytest.param(Request("http://shop.test/a", body="x"), False, id="body"),
]


@pytest.mark.parametrize(("second", "expected"), PAIRS)
def test_what_is_the_same_request(valkey: Server, key: str, second: Request, expected: bool) -> None:
    """Method, canonical URL and body tell requests apart, and nothing else does."""
    dupefilter = build(valkey, key)
    assert dupefilter.request_seen(Request("http://shop.test/a")) is False
    assert dupefilter.request_seen(second) is expected


def test_order_of_the_query_makes_no_difference(valkey: Server, key: str) -> None:
    """URLs are compared in their canonical form."""
    dupefilter = build(valkey, key)
    assert not dupefilter.request_seen(Request("http://shop.test/?a=1&b=2"))
    assert dupefilter.request_seen(Request("http://shop.test/?b=2&a=1"))


@pytest.mark.parametrize("cache_size", [0, 16, 65_536])
def test_answers_as_the_set_does(server: Server, client: redis.Redis, key: str, cache_size: int) -> None:
    """Two workers over one filter answer a stream of requests as scrapy-redis's SET does, at every cache size."""
    workers = [build(server, key, BLOOMFILTER_CACHE_SIZE=cache_size) for _ in range(2)]
    oracle = RFPDupeFilter(client, f"{key}:oracle")
    draw = random.Random(cache_size)
    for _ in range(1000):
        request = page(int(draw.paretovariate(0.5)) % 400)
        assert draw.choice(workers).request_seen(request) == oracle.request_seen(request)
    assert client.scard(oracle.key) > 50


def test_repeats_stay_in_the_process(valkey: Server, key: str) -> None:
    """What a worker has seen once costs no round trip again."""
    dupefilter = build(valkey, key)
    dupefilter.request_seen(page(1))
    before = dupefilter.filter.counters.round_trips
    assert all(dupefilter.request_seen(page(1)) for _ in range(10))
    assert dupefilter.filter.counters.round_trips == before
    dupefilter.request_seen(page(2))
    assert dupefilter.filter.counters.round_trips == before + 1


# What it tells.


@pytest.mark.parametrize(("debug", "lines"), [(False, 1), (True, 3)])
def test_log(valkey: Server, key: str, debug: bool, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    """Each dropped request is counted as Scrapy counts it; the first is logged, and with DUPEFILTER_DEBUG all are."""
    caplog.set_level(logging.DEBUG)
    crawler = crawler_of(valkey, DUPEFILTER_DEBUG=debug, **{KEY: key})
    dupefilter = BloomRFPDupeFilter.from_spider(spider_of(crawler))
    for number in range(3):
        dupefilter.log(page(number), spider_of(crawler))
    crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")
    assert stats_of(crawler).get_value("dupefilter/filtered") == 3
    logged = [record.getMessage() for record in caplog.records if "Filtered duplicate" in record.getMessage()]
    assert len(logged) == lines
    assert all(f"http://shop.test/{number}" in line for number, line in enumerate(logged))


@by_crawler
@pytest.mark.parametrize("closes", [False, True], ids=["kept", "deleted"])
def test_every_stat_is_there(server: Server, key: str, way: Way, closes: bool) -> None:
    """A crawl ends with every stat of the filter, with the right values, also where the filter is deleted."""
    crawler = crawler_of(server, SCHEDULER_PERSIST=not closes, **{KEY: key})
    dupefilter = way(crawler)
    for number in (*range(50), *range(20)):
        dupefilter.request_seen(page(number))
    if closes:
        dupefilter.clear()
    crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")
    stats = stats_of(crawler).get_stats()
    assert {name for name in stats if name.startswith("bloomfilter/")} == set(NAMES) - {FILTERED, RECOVERED}
    assert stats["bloomfilter/added"] == 50
    assert stats["bloomfilter/ambiguous"] == 0
    assert stats["bloomfilter/cache_hits"] == 20
    assert stats["bloomfilter/round_trips"] >= 50
    assert 0 < stats["bloomfilter/expected_false_positives"] < 50e-6
    assert 0 < stats["bloomfilter/fill_ratio"] < 0.5
    assert 45 <= stats["bloomfilter/estimated_count"] <= 55
    assert 0 < stats["bloomfilter/estimated_error_rate"] < 1e-6
    assert stats["bloomfilter/memory_bytes"] >= 1000 * 14 / 8
    assert stats["bloomfilter/layers"] == 1


def test_stats_while_it_runs(valkey: Server, key: str) -> None:
    """What the process does shows in the stats during the crawl, soon."""
    crawler = crawler_of(valkey, **{KEY: key})
    dupefilter = BloomRFPDupeFilter.from_spider(spider_of(crawler))
    assert stats_of(crawler).get_value("bloomfilter/layers") == 1
    dropped = 0

    def drop_and_look(name: str) -> object:
        nonlocal dropped
        dropped += 1
        dupefilter.log(page(0), spider_of(crawler))
        return stats_of(crawler).get_value(name)

    for number in range(3):
        dupefilter.request_seen(page(number))
        until(lambda: drop_and_look("bloomfilter/added") == number + 1)  # noqa: B023  # it is called at once
    until(lambda: drop_and_look("dupefilter/filtered") == dropped)


@by_crawler
def test_lines_at_start_and_end(valkey: Server, key: str, way: Way, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl is told once where its filter is and what it allows, and once at the end what it did."""
    caplog.set_level(logging.INFO, "scrapy_bloom")
    crawler = crawler_of(valkey, **{KEY: key})
    dupefilter = way(crawler)
    (start,) = said(caplog, logging.INFO)
    assert repr(key) in start
    assert "1,000" in start
    for number in (1, 2, 3, 1):
        dupefilter.request_seen(page(number))
    caplog.clear()
    crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")
    (end,) = said(caplog, logging.INFO)
    assert repr(key) in end
    assert "3 new" in end
    assert "1 repeats" in end


# How it finds its server.

CONNECTIONS: dict[str, tuple[int, Callable[[Server], dict[str, Any]]]] = {
    "url": (0, lambda server: {"REDIS_URL": server.url}),
    "url-and-db": (5, lambda server: {"REDIS_URL": f"{server.url}/5"}),
    "host-and-port": (0, lambda server: {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": server.port}),
    "port-as-text": (0, lambda server: {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(server.port)}),
    "params": (0, lambda server: {"REDIS_PARAMS": {"host": "127.0.0.1", "port": server.port}}),
    "url-and-params": (3, lambda server: {"REDIS_URL": server.url, "REDIS_PARAMS": {"db": 3}}),
    "db": (4, lambda server: {"REDIS_URL": server.url, "REDIS_DB": 4}),
    "decoded": (0, lambda server: {"REDIS_URL": server.url, "REDIS_DECODE_RESPONSES": True}),
    "resp2": (0, lambda server: {"REDIS_URL": server.url, "REDIS_PARAMS": {"protocol": 2}}),
    "resp3-decoded": (
        0,
        lambda server: {"REDIS_URL": server.url, "REDIS_PARAMS": {"protocol": 3, "decode_responses": True}},
    ),
    "class-by-path": (0, lambda server: {"REDIS_URL": server.url, "REDIS_PARAMS": {"redis_cls": "redis.Redis"}}),
}


@pytest.mark.parametrize(("db", "settings"), CONNECTIONS.values(), ids=CONNECTIONS)
def test_connection(server: Server, key: str, db: int, settings: Callable[[Server], dict[str, Any]]) -> None:
    """The server is found as scrapy-redis finds it, and the whole life of a filter works over each connection."""
    crawler = start({**settings(server), KEY: key, "BLOOMFILTER_CAPACITY": 20})
    first, second = (BloomRFPDupeFilter.from_spider(spider_of(crawler)) for _ in range(2))
    assert not any(first.request_seen(page(number)) for number in range(50))
    assert all(second.request_seen(page(number)) for number in range(50))
    with server.client(db=db) as client:
        assert len(keys_of(client, key)) > 2
        first.close("finished")
        assert keys_of(client, key) == []


# Faults in the middle of a crawl.


def lost(client: redis.Redis, key: str, _: BloomRFPDupeFilter) -> None:
    lose(client, key)


def cleared(_: redis.Redis, __: str, other: BloomRFPDupeFilter) -> None:
    other.clear()


def begun_anew(_: redis.Redis, __: str, other: BloomRFPDupeFilter) -> None:
    other.clear()
    other.request_seen(page(999))


def shard_evicted(client: redis.Redis, key: str, _: BloomRFPDupeFilter) -> None:
    client.unlink(f"{key}:0:0")


@pytest.mark.parametrize("harm", [lost, cleared, begun_anew, shard_evicted])
def test_lost_filter_is_noticed(
    server: Server,
    client: redis.Redis,
    key: str,
    harm: Callable[[redis.Redis, str, BloomRFPDupeFilter], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A filter that is lost is noticed at the next request that needs it, warned about once, and replaced.

    Until then repeats are answered from memory; after it nothing is called seen that the new filter does not know.
    """
    dupefilter, other = build(server, key), build(server, key)
    for number in range(10):
        dupefilter.request_seen(page(number))
    harm(client, key, other)
    assert dupefilter.request_seen(page(5))
    assert warnings_in(caplog) == []
    assert not dupefilter.request_seen(page(100))
    (warning,) = warnings_in(caplog)
    assert repr(key) in warning
    assert not any(dupefilter.request_seen(page(number)) for number in range(10))
    assert all(dupefilter.request_seen(page(number)) for number in (*range(10), 100))
    assert len(warnings_in(caplog)) == 1
    assert build(server, key).request_seen(page(5))


def test_workers_meet_again_after_a_loss(server: Server, client: redis.Redis, key: str) -> None:
    """All workers go on with one new filter, and each request is new to exactly one of them again."""
    workers = [build(server, key) for _ in range(3)]
    for number in range(10):
        workers[number % 3].request_seen(page(number))
    lose(client, key)
    answers = [[worker.request_seen(page(number)) for worker in workers] for number in range(20, 40)]
    assert all(each.count(False) == 1 for each in answers)


def test_each_loss_is_told(valkey: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A second loss is warned about as the first was."""
    dupefilter = build(valkey, key)
    with valkey.client() as client:
        for number in range(3):
            lose(client, key)
            assert not dupefilter.request_seen(page(number))
            assert not dupefilter.request_seen(page(10 + number))
            assert len(warnings_in(caplog)) == number + 1


def test_filter_of_others_in_its_place(server: Server, client: redis.Redis, key: str) -> None:
    """Where there is no crawl to end, a filter of other parameters in its place raises, and answers nothing."""
    dupefilter = WAYS["from_settings"](crawler_of(server, **{KEY: key}))
    dupefilter.request_seen(page(1))
    BloomFilter(client, key, capacity=77, flush=True)
    for _ in range(2):
        with pytest.raises(MismatchError, match="77"):
            dupefilter.request_seen(page(2))


# Passwords.

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of a server that lives as long as the test


@pytest.mark.parametrize("kind", KINDS)
def test_password_is_not_shown(kind: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The password in REDIS_URL or REDIS_PARAMS is in no line of the log, in no error and in no repr."""
    caplog.set_level(logging.DEBUG)
    with running(kind, "--requirepass", PASSWORD) as server, server.client(password=PASSWORD) as client:
        url = server.url.replace("//", f"//:{PASSWORD}@")
        ways: list[dict[str, Any]] = [{"REDIS_URL": url}, {"REDIS_PARAMS": {"password": PASSWORD}}]
        for settings in ways:
            crawler = crawler_of(server, **{KEY: key, **settings})
            dupefilter = BloomRFPDupeFilter.from_crawler(crawler)
            dupefilter.request_seen(page(1))
            lose(client, key)
            dupefilter.request_seen(page(2))
            assert len(warnings_in(caplog)) == 1
            with pytest.raises(MismatchError) as refusal:
                build(server, key, BLOOMFILTER_CAPACITY=5, **settings)
            shown = [dupefilter, dupefilter.filter, dupefilter.filter.plan, dupefilter.config]
            crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")
            dupefilter.close("finished")
            texts = [str(refusal.value), caplog.text, *map(repr, shown), *map(str, shown)]
            assert not [text for text in texts if PASSWORD in text]
            caplog.clear()


def test_wrong_password_is_not_shown(key: str) -> None:
    """A server that refuses the password is refused at the start, and the refusal does not repeat the password."""
    with running("valkey", "--requirepass", "another") as server:
        with pytest.raises(RefusedError) as refusal:
            BloomRFPDupeFilter.from_settings(
                Settings({"REDIS_URL": server.url.replace("//", f"//:{PASSWORD}@"), KEY: key})
            )
        assert PASSWORD not in str(refusal.value)
