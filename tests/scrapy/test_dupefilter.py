"""Building a dupefilter: the key of its filter, how long the filter is kept, refusals, and the effect of settings."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy.settings import Settings

from scrapy_bloom import BloomRFPDupeFilter, ConfigError, WrongTypeError
from scrapy_bloom.settings import BloomSettings
from tests.support.dupefilters import (
    KEY,
    Way,
    build,
    by_crawler,
    crawler_of,
    every_way,
    keys_of,
    page,
    parameters_of,
    said,
    seen,
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
    """`%(spider)s` in the key is the spider's name, which `from_settings` does not know."""
    template = f"{key}:%(spider)s:seen"
    crawler = crawler_of(valkey, **{KEY: template})
    assert way(crawler).key == f"{key}:shop:seen"
    with pytest.raises(ConfigError, match=f"^{KEY} = ") as refusal:
        BloomRFPDupeFilter.from_settings(crawler.settings)
    assert repr(template) in str(refusal.value)
    # The class has the name before there is an instance.
    crawler.spider = None
    assert BloomRFPDupeFilter.from_crawler(crawler).key == f"{key}:shop:seen"


def test_key_of_one_process(server: Server, client: redis.Redis, key: str) -> None:
    """Without key and JOBDIR each crawl has a filter of its own, deleted at the end: no later crawl can find it."""
    dupefilters = [
        BloomRFPDupeFilter.from_crawler(crawler_of(server, spider_name=key, SCHEDULER_PERSIST=persist))
        for persist in (False, True)
    ]
    assert [each.request_seen(page(1)) for each in dupefilters] == [False, False]
    for each in dupefilters:
        assert each.key.startswith(f"{key}:dupefilter:")
        assert keys_of(client, each.key)
        each.close("finished")
        assert keys_of(client, each.key) == []


def test_key_of_from_settings(server: Server, client: redis.Redis) -> None:
    """`from_settings` without a key has scrapy-redis's, for a filter that is used once."""
    dupefilter = BloomRFPDupeFilter.from_settings(Settings({"REDIS_URL": server.url, "BLOOMFILTER_CAPACITY": 1000}))
    assert re.fullmatch(r"dupefilter:\d{10}", dupefilter.key)
    assert seen(dupefilter, 1, 1) == [False, True]
    dupefilter.close("finished")
    assert keys_of(client, dupefilter.key) == []


# The filters that are kept.


@by_crawler
def test_close_keeps(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """With SCHEDULER_PERSIST the filter stays, and the next crawl continues with it."""
    settings: dict[str, Any] = {KEY: key, "SCHEDULER_PERSIST": True}
    first = way(crawler_of(server, **settings))
    assert seen(first, 1) == [False]
    before = keys_of(client, key)
    first.close("finished")
    assert keys_of(client, key) == before
    assert seen(way(crawler_of(server, **settings)), 1, 2) == [True, False]


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
    assert seen(first, 1) == [False]
    first.close("shutdown")
    second = in_job(server, tmp_path / "job", resumes=True, **settings)
    assert seen(second, 1, 2) == [True, False]
    second.close("finished")
    assert (second.key, first.key == key) == (first.key, named)
    (tmp_path / "job" / QUEUE).rmdir()
    assert seen(in_job(server, tmp_path / "job", resumes=False, **settings), 2) == [named]


def test_each_jobdir_has_its_own_filter(valkey: Server, tmp_path: Path) -> None:
    """Crawls in two job directories have separate filters, and one directory has the same by any of its names."""
    jobs = [in_job(valkey, tmp_path / name, resumes=True) for name in ("one", "other", "other/../one")]
    assert [job.request_seen(page(1)) for job in jobs] == [False, False, True]


def test_jobdir_is_no_business_of_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """scrapy-redis's Scheduler, whose queue is in Redis, has its own key by default, and clears its filter as ever."""
    dupefilter = BloomRFPDupeFilter.from_spider(crawler_of(valkey, spider_name=key, JOBDIR=str(tmp_path)).spider)
    assert (dupefilter.key, dupefilter.persist) == (f"{key}:dupefilter", False)


def test_close_says_that_the_filter_of_a_jobdir_stays(
    server: Server, client: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a crawl in a JOBDIR logs how to delete its filter, which stays."""
    dupefilter = in_job(server, tmp_path, resumes=False)
    seen(dupefilter, 1)
    caplog.set_level(logging.INFO, "scrapy_bloom")
    caplog.clear()
    dupefilter.close("finished")
    (line,) = said(caplog, logging.INFO)
    assert repr(dupefilter.key) in line
    assert repr(str(tmp_path)) in line
    assert keys_of(client, dupefilter.key)
    assert line.endswith(f"`scrapy bloom clear --key {dupefilter.key} --yes`")


# Built directly.


def test_constructor(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Built like scrapy-redis's dupefilter, it has the defaults, and says so at its first use, when it connects."""
    dupefilter = BloomRFPDupeFilter(client, key)
    assert (dupefilter.server, dupefilter.key, dupefilter.debug) == (client, key, False)
    assert dupefilter.config == BloomSettings()
    assert BloomRFPDupeFilter(client, key, True).debug is True
    assert BloomRFPDupeFilter(server=client, key=key, debug=True).debug is True
    # scrapy-redis's Scheduler tests `if not self.df`.
    assert bool(dupefilter) is True
    dupefilter.open()
    assert keys_of(client, key) == []
    assert caplog.messages == []
    assert seen(dupefilter, 1, 1) == [False, True]
    (warning,) = caplog.messages
    assert "no BLOOMFILTER_ setting applies, and it is made for 1,000,000 requests" in warning
    stored = parameters_of(client, key)
    assert (stored["capacity"], stored["error_rate"], stored["expansion"], stored["ttl"]) == (1_000_000, 1e-6, 2, None)
    dupefilter.close()
    assert keys_of(client, key) == []


# Refusals at the start, the deletions of a flush, and the effect of settings.


@every_way
def test_set_of_scrapy_redis_is_refused(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """A SET at the key is refused at the start, with advice to import it."""
    client.sadd(key, *range(1234))
    with pytest.raises(WrongTypeError) as refusal:
        way(crawler_of(server, **{KEY: key}))
    assert all(part in str(refusal.value) for part in (repr(key), "holds a SET", "scrapy bloom import"))
    assert client.scard(key) == 1234


@by_crawler
def test_flush_on_start_deletes_other_parameters(server: Server, client: redis.Redis, key: str, way: Way) -> None:
    """With SCHEDULER_FLUSH_ON_START a filter of other parameters is replaced with all its layers."""
    seen(build(server, key, BLOOMFILTER_CAPACITY=20), *range(100))
    layers = {each for each in keys_of(client, key) if each != key}
    assert len(layers) > 2
    dupefilter = way(crawler_of(server, SCHEDULER_FLUSH_ON_START=True, **{KEY: key}))
    assert parameters_of(client, key)["capacity"] == 1000
    assert layers.isdisjoint(keys_of(client, key))
    assert seen(dupefilter, 1) == [False]


def test_settings_arrive(valkey: Server, key: str) -> None:
    """The filter is created with the parameters of the settings."""
    settings = {"CAPACITY": "5e3", "ERROR_RATE": "0.01", "EXPANSION": "3", "TTL": "60"}
    build(valkey, key, **{f"BLOOMFILTER_{name}": value for name, value in settings.items()})
    with valkey.client() as client:
        stored = parameters_of(client, key)
    assert (stored["capacity"], stored["error_rate"], stored["expansion"], stored["ttl"]) == (5000, 0.01, 3, 60.0)


def test_settings_of_the_process_arrive(valkey: Server, key: str) -> None:
    """The settings set a worker's cache size and timeouts, which may differ between workers."""
    assert seen(build(valkey, key, BLOOMFILTER_CACHE_SIZE=5), 1) == [False]
    dupefilter = build(valkey, key, BLOOMFILTER_CACHE_SIZE="0", BLOOMFILTER_RETRY_TIMEOUT="7")
    assert dupefilter.filter.retry_timeout == 7
    seen(dupefilter, 1)
    before = dupefilter.filter.counters.round_trips
    assert seen(dupefilter, 1, 1, 1) == [True] * 3
    assert dupefilter.filter.counters.round_trips == before + 3
