"""A crawl's stats and log lines about its filter: at the start, at the end, and on likely mistakes."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, signals
from scrapy.http.request import NO_CALLBACK

from devtools.round_trips import counting
from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, FilterInfo
from scrapy_bloom.filter.describe import Counters
from scrapy_bloom.monitoring.stats import _FIELDS
from tests.support.dupefilters import BY_CRAWLER, KEY, Way, by_crawler, crawler_of, page, said, seen
from tests.support.in_process import end
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

    def tell(self, *, is_alone: bool) -> None:
        """Tell the report about other workers, as BloomScheduler does at its end."""
        assert self.dupefilter.report is not None
        self.dupefilter.report.end(is_alone=is_alone, is_deleted=False)

    def send(self, signal: object, request: Request, **further: object) -> None:
        """Send a signal of the engine about a request."""
        self.crawler.signals.send_catch_log(signal, request=request, spider=self.crawler.spider, **further)

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
def test_always(server: Server, key: str, way: Way) -> None:
    """A request of BLOOMFILTER_ALWAYS is new once in each process, although an earlier one has marked it."""
    for is_known in (False, True):
        dupefilter = way(crawler_of(server, BLOOMFILTER_ALWAYS=[r"shop\.test/7$"], **{KEY: key}))
        assert seen(dupefilter, 7, 7, 7, 70, 70) == [False, True, True, is_known, True]


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
            monkeypatch.setattr("scrapy_bloom._scrapy.engine.is_closing", lambda _: True)
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


def test_begun_anew_beside_others(
    begin: Begin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a flush, concurrent additions by others are not logged as an earlier crawl's requests."""
    others, report = begin(), BloomFilter.info

    def add_and_report(bloom: BloomFilter) -> FilterInfo:
        monkeypatch.undo()
        others.meet(*range(100))
        return report(bloom)

    monkeypatch.setattr(BloomFilter, "info", add_and_report)
    caplog.clear()
    begin(SCHEDULER_FLUSH_ON_START=True)
    assert "it holds" in caplog.text
    assert "not fetched again" not in caplog.text


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


def again(begin: Begin, *numbers: int, **settings: object) -> Run:
    """Return a crawl over an earlier crawl's filter, which has seen these requests."""
    begin(**settings).meet(*range(100))
    run = begin(**settings)
    run.meet(*numbers)
    return run


def said_of_nothing(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return level and text of the lines that report a crawl without a fetch."""
    records = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, text) for level, text in records if re.search("nothing (was|new was) fetched", text)]


@pytest.mark.parametrize(("is_alone", "level"), [(True, "WARNING"), (None, "INFO")])
def test_nothing_fetched(
    is_alone: bool | None, level: str, begin: Begin, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A crawl whose requests were all known logs it, as a warning if it knows that it is alone."""
    run = again(begin, 1, 2, 2)
    if is_alone:
        run.tell(is_alone=True)
    finish(run, caplog)
    ((found, text),) = said_of_nothing(caplog)
    assert found == level
    assert text.startswith(f"All 3 start requests that went through the filter at {key!r} were known to it")


PAST_THE_FILTER = {
    "a start page": Request("https://example.com/", dont_filter=True),
    "robots.txt, or an image of a pipeline": Request("https://example.com/robots.txt", callback=NO_CALLBACK),
}


@pytest.mark.parametrize("ttl", [None, 3600])
@pytest.mark.parametrize("what", PAST_THE_FILTER)
def test_nothing_new_fetched(
    what: str, ttl: int | None, begin: Begin, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A crawl that fetched only requests past the filter logs it, too."""
    run = again(begin, 1, 2, 2, BLOOMFILTER_TTL=ttl)
    run.tell(is_alone=True)
    run.send(signals.request_reached_downloader, PAST_THE_FILTER[what])
    finish(run, caplog)
    (text,) = [text for text in said(caplog) if "nothing new" in text]
    assert text.startswith(f"All 3 requests that went through the filter at {key!r} were known to it when this process")
    assert "only requests with dont_filter=True" in text
    assert "SCHEDULER_FLUSH_ON_START = True" in text
    assert ("BLOOMFILTER_TTL = 3600 keeps a request" in text) == (ttl is not None)


def others_add(run: Run) -> None:
    """Another process adds to the filter meanwhile."""
    server, key = run.dupefilter.server, run.dupefilter.key
    BloomFilter(server, key, capacity=1000, fingerprint="scrapy-redis").add_many(["a", "b", "c"])


BUSY: dict[str, Callable[[Run], object]] = {
    "something is new": lambda run: run.meet(100),
    "an earlier worker's request is fetched": lambda run: run.send(signals.request_reached_downloader, page(1)),
    "a cache has a page": lambda run: run.send(signals.response_received, page(1), response=None),
    "others add": others_add,
    "others were there": lambda run: run.tell(is_alone=False),
}


@pytest.mark.parametrize("what", BUSY)
def test_something_happened(what: str, begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    """No such line is logged if the crawl fetched a page, or other workers used the filter."""
    run = again(begin, 1, 2)
    BUSY[what](run)
    finish(run, caplog)
    assert said_of_nothing(caplog) == []


def test_nothing_was_asked_for(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl without requests, a stopped one, or the worker that starts a crawl logs no such line."""
    first, second = begin(), begin()
    first.meet(1)
    second.meet(1)
    end(second.crawler)
    end(again(begin).crawler)
    end(again(begin, 1).crawler, "shutdown")
    assert said_of_nothing(caplog) == []


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
    grown = begin(BLOOMFILTER_CAPACITY=100, BLOOMFILTER_ERROR_RATE=0.01, SCHEDULER_FLUSH_ON_START=True)
    grown.meet(*range(400))
    finish(grown, caplog)
    assert said(caplog) == []


def test_nothing_is_shared(valkey: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Without a shared filter, one warning names the settings for it."""
    BloomRFPDupeFilter.from_crawler(crawler_of(valkey)).close()
    (warning,) = said(caplog)
    assert warning.startswith("Nothing is shared")
    shared = (
        "SCHEDULER = 'scrapy_bloom.BloomScheduler'",
        "SCHEDULER_DUPEFILTER_KEY = '%(spider)s:dupefilter'",
        "JOBDIR",
    )
    assert [part for part in shared if part not in warning] == []


def test_something_is_shared(key: str, valkey: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a key, a JOBDIR, or a scheduler with a shared queue there is no warning."""
    for settings in ({KEY: key}, {"JOBDIR": str(tmp_path)}):
        BloomRFPDupeFilter.from_crawler(crawler_of(valkey, spider_name=key, **settings))
    BloomRFPDupeFilter.from_spider(crawler_of(valkey, spider_name=key).spider)
    assert said(caplog) == []
