"""Building a dupefilter: the key of its filter, and how long the filter is kept."""

import logging
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, ConfigError, WrongTypeError
from scrapy_bloom.settings import BloomSettings
from tests.support.dupefilters import (
    KEY,
    Way,
    build,
    by_crawler,
    crawler_of,
    every_way,
    id_of,
    keys_of,
    page,
    parameters_of,
    said,
    spider_of,
)
from tests.support.servers import Server


@every_way
def test_key_is_the_setting(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """Once built, the filter is at SCHEDULER_DUPEFILTER_KEY, with all its keys below that one."""
    dupefilter = way(crawler_of(server, **{KEY: key}))
    assert dupefilter.key == key
    assert client.type(key) == b"hash"
    assert keys_of(client, key) == [key]
    assert not dupefilter.request_seen(page(1))
    assert len(found := keys_of(client, key)) > 1
    assert all(each == key or each.startswith(f"{{{key}}}:") for each in found)


@by_crawler
def test_key_names_the_spider(valkey: Server, key: str, way: Way) -> None:
    """`%(spider)s` in the key is the spider's name."""
    dupefilter = way(crawler_of(valkey, **{KEY: f"{key}:%(spider)s:seen"}))
    assert dupefilter.key == f"{key}:shop:seen"


def test_key_before_there_is_a_spider(valkey: Server, key: str) -> None:
    """A crawler without a spider instance takes the name from the class."""
    crawler = crawler_of(valkey, **{KEY: f"{key}:%(spider)s"})
    crawler.spider = None
    assert BloomRFPDupeFilter.from_crawler(crawler).key == f"{key}:shop"


def test_key_of_from_settings_names_no_spider(valkey: Server, key: str) -> None:
    """`from_settings` refuses a key with the spider's name, which it does not know."""
    template = f"{key}:%(spider)s"
    with pytest.raises(ConfigError) as refusal:
        BloomRFPDupeFilter.from_settings(crawler_of(valkey, **{KEY: template}).settings)
    assert f"{KEY} = {template!r}" in str(refusal.value)


def test_default_key_of_from_spider(valkey: Server, key: str) -> None:
    """Without the setting, `from_spider` uses scrapy-redis's key."""
    crawler = crawler_of(valkey, spider_name=key)
    assert BloomRFPDupeFilter.from_spider(spider_of(crawler)).key == f"{key}:dupefilter"


def test_key_of_one_process(server: Server, client: redis.Redis, key: str) -> None:
    """Without key and JOBDIR each crawl has a filter of its own, deleted at the end: no later crawl can find it."""
    dupefilters = [
        BloomRFPDupeFilter.from_crawler(crawler_of(server, spider_name=key, SCHEDULER_PERSIST=persist))
        for persist in (False, True)
    ]
    assert [each.request_seen(page(1)) for each in dupefilters] == [False, False]
    assert all(each.key.startswith(f"{key}:dupefilter:") for each in dupefilters)
    for each in dupefilters:
        assert keys_of(client, each.key)
        each.close("finished")
        assert keys_of(client, each.key) == []


# The filters that are kept.


@by_crawler
def test_close_keeps(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """With SCHEDULER_PERSIST the filter stays, and the next crawl continues with it."""
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
    """Without SCHEDULER_PERSIST all layers of the filter are deleted."""
    dupefilter = way(crawler_of(server, BLOOMFILTER_CAPACITY=20, **{KEY: key}))
    for number in range(100):
        dupefilter.request_seen(page(number))
    assert len(keys_of(client, key)) > 3
    dupefilter.close("finished")
    assert keys_of(client, key) == []


def test_clear_begins_anew(server: Server, client: redis.Redis, key: str) -> None:
    """After `clear`, which scrapy-redis's Scheduler calls, every request is new again."""
    dupefilter = build(server, key)
    dupefilter.request_seen(page(1))
    dupefilter.clear()
    assert keys_of(client, key) == []
    assert not dupefilter.request_seen(page(1))
    assert dupefilter.request_seen(page(1))


def test_is_true(valkey: Server, key: str) -> None:
    """scrapy-redis's Scheduler tests `if not self.df`: the filter is always true, empty or unopened."""
    with valkey.client() as client:
        assert bool(BloomRFPDupeFilter(client, key)) is True
    assert bool(build(valkey, key)) is True


# The filter of a JOBDIR, under Scrapy's own Scheduler.

QUEUE = "requests.queue"


def in_job(server: Server, jobdir: Path, *, resumes: bool, **settings: Any) -> BloomRFPDupeFilter:
    """Return the dupefilter of a crawl in a JOBDIR, in which Scrapy's Scheduler makes a folder when the job begins."""
    if resumes:
        (jobdir / QUEUE).mkdir(parents=True, exist_ok=True)
    return BloomRFPDupeFilter.from_crawler(crawler_of(server, JOBDIR=str(jobdir), **settings))


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_jobdir_keeps_its_filter(server: Server, key: str, tmp_path: Path, named: bool, persist: bool) -> None:
    """A filter lives as long as its JOBDIR; one with a key of its own even longer."""
    settings: dict[str, Any] = {**({KEY: key} if named else {}), "SCHEDULER_PERSIST": persist}
    first = in_job(server, tmp_path / "job", resumes=False, **settings)
    assert not first.request_seen(page(1))
    first.close("shutdown")
    second = in_job(server, tmp_path / "job", resumes=True, **settings)
    assert second.request_seen(page(1))
    assert not second.request_seen(page(2))
    second.close("finished")
    assert (second.key, first.key == key) == (first.key, named)
    (tmp_path / "job" / QUEUE).rmdir()
    anew = in_job(server, tmp_path / "job", resumes=False, **settings)
    assert anew.request_seen(page(2)) == named


def test_each_jobdir_has_its_own_filter(valkey: Server, tmp_path: Path) -> None:
    """Crawls in two job directories have separate filters, and one directory has the same by any of its names."""
    jobs = [in_job(valkey, tmp_path / name, resumes=True) for name in ("one", "other", "other/../one")]
    assert [job.request_seen(page(1)) for job in jobs] == [False, False, True]


def test_flush_on_start_empties_the_filter_of_a_jobdir(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """With SCHEDULER_FLUSH_ON_START a crawl in a JOBDIR starts over and deletes the old filter."""
    first = in_job(server, tmp_path, resumes=False, BLOOMFILTER_CAPACITY=20)
    for number in range(100):
        first.request_seen(page(number))
    first.close("shutdown")
    name = id_of(client, first.key)
    second = in_job(server, tmp_path, resumes=True, SCHEDULER_FLUSH_ON_START=True)
    assert second.key == first.key
    assert not [each for each in keys_of(client, first.key) if name in each]
    assert not second.request_seen(page(1))


def test_jobdir_is_no_business_of_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """scrapy-redis's Scheduler, whose queue is in Redis, finds and clears its filter as ever."""
    crawler = crawler_of(valkey, spider_name=key, JOBDIR=str(tmp_path))
    dupefilter = BloomRFPDupeFilter.from_spider(spider_of(crawler))
    assert dupefilter.key == f"{key}:dupefilter"
    assert not dupefilter.persist


def test_close_says_that_the_filter_of_a_jobdir_stays(
    server: Server, client: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a crawl in a JOBDIR logs how to delete its filter, which stays."""
    dupefilter = in_job(server, tmp_path, resumes=False)
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
    assert client.exists(dupefilter.key) == 0


# Built directly.


def test_constructor_has_the_defaults(client: redis.Redis, key: str) -> None:
    """Built like scrapy-redis's dupefilter, it has the defaults and its attributes."""
    dupefilter = BloomRFPDupeFilter(client, key)
    assert (dupefilter.server, dupefilter.key, dupefilter.debug) == (client, key, False)
    assert dupefilter.config == BloomSettings()
    assert BloomRFPDupeFilter(client, key, True).debug is True
    assert BloomRFPDupeFilter(server=client, key=key, debug=True).debug is True


def test_constructor_opens_lazily(client: redis.Redis, key: str) -> None:
    """Built directly, it connects at its first use and not before; then it filters."""
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
    """Built directly over a SET, it raises at its first use and drops no requests."""
    client.sadd(key, "a")
    dupefilter = BloomRFPDupeFilter(client, key)
    with pytest.raises(WrongTypeError):
        dupefilter.request_seen(page(1))
