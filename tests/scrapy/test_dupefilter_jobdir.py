"""The filter of a job directory is found again by the next crawl in it."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, ConfigError
from scrapy_bloom._filter_key import KEY_FILE
from tests.support.dupefilters import KEY, crawler_of, keys_of, lose, page, said, spider_of, warnings_in
from tests.support.servers import Server


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_jobdir_keeps_its_filter(server: Server, key: str, tmp_path: Path, named: bool, persist: bool) -> None:
    """Under Scrapy's own Scheduler a filter lives as long as its JOBDIR."""
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
    """Crawls in two job directories have separate filters."""
    jobs = [crawler_of(valkey, JOBDIR=str(tmp_path / name)) for name in ("one", "other")]
    assert [BloomRFPDupeFilter.from_crawler(job).request_seen(page(1)) for job in jobs] == [False, False]


def test_flush_on_start_empties_the_filter_of_a_jobdir(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """With SCHEDULER_FLUSH_ON_START a crawl in a JOBDIR starts afresh and deletes the old filter."""
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
    """scrapy-redis's Scheduler, whose queue is in Redis, finds and clears its filter as ever."""
    crawler = crawler_of(valkey, spider_name=key, JOBDIR=str(tmp_path))
    dupefilter = BloomRFPDupeFilter.from_spider(spider_of(crawler))
    assert dupefilter.key == f"{key}:dupefilter"
    assert not dupefilter.persist
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("persist", [False, True])
def test_close_says_that_the_filter_of_a_jobdir_stays(
    server: Server, client: redis.Redis, tmp_path: Path, persist: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a crawl in a JOBDIR logs how to delete its filter, which stays."""
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
    """A resumed crawl whose server has lost the filter warns, except after a flush."""
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
    """A job directory with a corrupt key file is refused, and the file stays."""
    file = tmp_path / KEY_FILE
    spoil(file)
    with pytest.raises(ConfigError) as refusal:
        BloomRFPDupeFilter.from_crawler(crawler_of(valkey, JOBDIR=str(tmp_path)))
    for part in (f"JOBDIR = {str(tmp_path)!r}", str(file), "delete", KEY):
        assert part in str(refusal.value)
    assert list(tmp_path.iterdir()) == [file]


def test_key_of_a_jobdir_that_cannot_be_written(valkey: Server, tmp_path: Path) -> None:
    """If the key cannot be saved, the crawl is refused and its filter deleted."""
    (tmp_path / KEY_FILE).with_suffix(".part").mkdir()
    with valkey.client() as client:
        before = keys_of(client, "dupefilter:")
        with pytest.raises(ConfigError, match=re.escape(str(tmp_path / KEY_FILE))):
            BloomRFPDupeFilter.from_crawler(crawler_of(valkey, JOBDIR=str(tmp_path)))
        assert keys_of(client, "dupefilter:") == before
