"""A crawl's stats and log lines about its filter: at the start, at the end, and on likely mistakes."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devtools.round_trips import counting
from scrapy_bloom import BloomRFPDupeFilter, FilterInfo
from scrapy_bloom.filter.info import Counters
from scrapy_bloom.report import _FIELDS
from tests.support.dupefilters import BY_CRAWLER, KEY, Way, by_crawler, crawler_of, page, said, seen
from tests.support.in_process import end, start
from tests.support.servers import Server
from tests.support.waiting import until


class Run:
    """A crawl, whose dupefilter a scheduler has opened."""

    def __init__(self, crawler: Any, way: Way = BY_CRAWLER["from_spider"]) -> None:
        self.crawler = crawler
        self.dupefilter = way(crawler)

    def meet(self, *numbers: int) -> None:
        """Handle requests as a scheduler does."""
        for number in numbers:
            if self.dupefilter.request_seen(page(number)):
                self.dupefilter.log(page(number), self.crawler.spider)

    def stat(self, name: str) -> Any:
        """Return the value of a stat."""
        return self.crawler.stats.get_value(name)


Begin = Callable[..., Run]


@pytest.fixture
def begin(valkey: Server, key: str, caplog: pytest.LogCaptureFixture) -> Begin:
    """Begins crawls that share a filter, and whose log is kept."""
    caplog.set_level(logging.INFO)
    return lambda **settings: Run(crawler_of(valkey, **{KEY: key, **settings}))


def finish(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """End a crawl; keep only the log of the end."""
    caplog.clear()
    end(run.crawler)


# The stats.


@pytest.mark.parametrize(("debug", "lines"), [(False, 1), (True, 3)])
def test_log(begin: Begin, debug: bool, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    """Each dropped request is counted; the first is logged, or all in debug mode."""
    caplog.set_level(logging.DEBUG)
    run = begin(DUPEFILTER_DEBUG=debug)
    for number in range(3):
        run.dupefilter.log(page(number), run.crawler.spider)
    end(run.crawler)
    assert run.stat("dupefilter/filtered") == 3
    logged_pages = [each for each in caplog.messages if "Filtered duplicate" in each]
    assert len(logged_pages) == lines
    assert all(f"http://shop.test/{number}" in line for number, line in enumerate(logged_pages))


@by_crawler
@pytest.mark.parametrize("closes", [False, True], ids=["kept", "deleted"])
def test_every_stat_is_there(server: Server, key: str, way: Way, closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crawl ends with correct values in every stat of the filter, even if the filter is deleted."""
    run = Run(crawler_of(server, SCHEDULER_PERSIST=not closes, **{KEY: key}), way)
    bloom = run.dupefilter.filter
    before = bloom.counters.round_trips
    with counting() as sent:
        seen(run.dupefilter, *range(50), *range(20))
        sent_before_the_end = sent.trips
        layer, info = bloom.parameters.sizes()[0], bloom.info()
        if closes:
            monkeypatch.setattr("scrapy_bloom.engine.is_closing", lambda _: True)
            run.dupefilter.clear()
        end(run.crawler)
    stats = run.crawler.stats.get_stats()
    names = {f"bloomfilter/{field}" for kind in (Counters, FilterInfo) for field in _FIELDS[kind]}
    assert {name for name in stats if name.startswith("bloomfilter/")} == names
    assert (stats["bloomfilter/added"], stats["bloomfilter/count"]) == (50, 50)
    assert (stats["bloomfilter/cache_hits"], stats["bloomfilter/losses"]) == (20, 0)
    assert stats["bloomfilter/round_trips"] >= before + sent_before_the_end >= before + 50
    # A few positions of 50 items coincide by chance.
    ones = 50 * layer.hashes
    assert 0.9 * ones <= stats["bloomfilter/fill_ratio"] * layer.blocks * 2048 <= ones
    assert stats["bloomfilter/current_error_rate"] == info.current_error_rate
    assert (stats["bloomfilter/memory_bytes"], stats["bloomfilter/layers"]) == (layer.memory_bytes, 1)


def test_stats_while_it_runs(begin: Begin) -> None:
    """The stats are updated during the crawl."""
    run = begin()
    assert run.stat("bloomfilter/layers") == 1
    dropped = 0

    def drop_and_look(name: str) -> object:
        nonlocal dropped
        dropped += 1
        run.dupefilter.log(page(0), run.crawler.spider)
        return run.stat(name)

    for number in range(3):
        seen(run.dupefilter, number)
        until(lambda: drop_and_look("bloomfilter/added") == number + 1)  # noqa: B023  # it is called at once
    until(lambda: drop_and_look("dupefilter/filtered") == dropped)


# The log.


def test_start(begin: Begin, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """An empty filter is logged as new, with its future size; a filled one with its requests, and how to start over."""
    first = begin()
    (line,) = said(caplog, logging.INFO)
    assert all(part in line for part in (f"{key!r}: it is new", " KB for a capacity of 1,000 ", "1e-6"))
    first.meet(*range(100))
    caplog.clear()
    begin()
    holds, hint = said(caplog, logging.INFO)
    assert f"{key!r}: it holds 100 requests for a capacity of 1,000 (10%)" in holds
    assert f"{key!r} are not fetched again" in hint
    assert "SCHEDULER_FLUSH_ON_START = True" in hint


def test_summary(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    """The end logs the numbers of new requests, of repeats, and of repeats that cost a round trip."""
    begin().meet(*range(30))
    run = begin()
    # Thirty that only Redis knows, ten new ones, and fifteen that this process has seen.
    run.meet(*range(40), *range(25, 40))
    finish(run, caplog)
    (line,) = said(caplog, logging.INFO)
    assert "took 10 new requests and dropped 45 repeats of this process, 15 of them without asking Redis" in line
    assert "fewer than 0.01 pages may have been missed" in line
    assert "It holds 40 requests" in line
    assert "0.0 MB" not in line
    assert said(caplog) == []
    assert run.stat("dupefilter/filtered") == 45


def fill(run: Run, error_rate: float) -> int:
    """Add pages until the error rate is above this one; return their number."""
    number = 0
    while run.dupefilter.filter.info().current_error_rate <= error_rate:
        run.meet(number)
        number += 1
    return number


def test_too_full(begin: Begin, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A filter whose error rate exceeds the allowed one ends with a warning: its rate, and how many pages it missed."""
    run = begin(BLOOMFILTER_CAPACITY=100, BLOOMFILTER_ERROR_RATE=0.01, BLOOMFILTER_EXPANSION=0)
    assert 100 < fill(run, 0.01) < 300
    assert run.dupefilter.filter.info().current_error_rate < 0.015
    finish(run, caplog)
    (warning,) = said(caplog)
    assert f"{key!r} is too full" in warning
    assert "0.01 is allowed" in warning
    assert "probably missed about " in warning
    assert "BLOOMFILTER_CAPACITY above 100" in warning


def test_not_too_full(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a filter just below its error rate nor a grown one causes a warning."""
    nearly_full = begin(BLOOMFILTER_CAPACITY=100, BLOOMFILTER_ERROR_RATE=0.01, BLOOMFILTER_EXPANSION=0)
    fill(nearly_full, 0.005)
    finish(nearly_full, caplog)
    assert said(caplog) == []
    nearly_full.dupefilter.clear()
    grown = begin(BLOOMFILTER_CAPACITY=100, BLOOMFILTER_ERROR_RATE=0.01)
    grown.meet(*range(400))
    finish(grown, caplog)
    assert said(caplog) == []


def test_what_is_shared(key: str, valkey: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a shared filter, one warning names the settings for it; with one of them there is none.

    A filter shared by spiders outlives the queue of this process: a warning says what a stop would miss.
    """
    for settings in ({KEY: key}, {"JOBDIR": str(tmp_path)}):
        BloomRFPDupeFilter.from_crawler(crawler_of(valkey, spider_name=key, **settings))
    BloomRFPDupeFilter.from_spider(crawler_of(valkey, spider_name=key).spider)
    assert said(caplog) == []
    BloomRFPDupeFilter.from_crawler(crawler_of(valkey)).close()
    (warning,) = said(caplog)
    assert warning.startswith("Nothing is shared")
    named = ("'scrapy_bloom.BloomScheduler'", "SCHEDULER_DUPEFILTER_KEY = '%(spider)s:dupefilter'", "JOBDIR")
    assert [part for part in named if part not in warning] == []
    caplog.clear()
    BloomRFPDupeFilter.from_crawler(start({"REDIS_URL": valkey.url, "BLOOMFILTER_CAPACITY": 1000, KEY: key}, "shop"))
    (warning,) = said(caplog)
    assert "is shared and stays" in warning
    assert "their pages are missed" in warning
