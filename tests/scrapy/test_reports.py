"""A crawl's stats and log lines about its filter: at the start, at the end, and on likely mistakes."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http.request import NO_CALLBACK

from devtools.round_trips import counting
from devtools.waiting import until
from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, FilterInfo
from scrapy_bloom.filter.describe import Counters
from scrapy_bloom.monitoring.stats import _FIELDS
from tests.support.dupefilters import KEY, Way, by_crawler, crawler_of, page, spider_of, stats_of
from tests.support.in_process import start
from tests.support.servers import Server

Start = Callable[..., Crawler]


@pytest.fixture
def crawler(valkey: Server, key: str, caplog: pytest.LogCaptureFixture) -> Start:
    """Makes crawlers whose log is kept."""
    caplog.set_level(logging.INFO)
    common = {"REDIS_URL": valkey.url, "SCHEDULER_DUPEFILTER_KEY": key}
    return lambda **settings: start({**common, **settings})


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Return this package's log lines of a level."""
    records = [record for record in caplog.records if record.name.startswith("scrapy_bloom")]
    return [record.getMessage() for record in records if record.levelno == level]


def opened(crawler: Crawler) -> BloomRFPDupeFilter:
    """Open the dupefilter as a scheduler does."""
    assert crawler.spider is not None
    return BloomRFPDupeFilter.from_spider(crawler.spider)


def meet(dupefilter: BloomRFPDupeFilter, crawler: Crawler, *numbers: int) -> None:
    """Handle requests as a scheduler does."""
    assert crawler.spider is not None
    for number in numbers:
        request = Request(f"https://example.com/{number}")
        if dupefilter.request_seen(request):
            dupefilter.log(request, crawler.spider)


def end(crawler: Crawler, caplog: pytest.LogCaptureFixture, *, clears: bool = True) -> None:
    """End a crawl; keep only the log of the end."""
    if clears:
        caplog.clear()
    crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")


# The stats.


@pytest.mark.parametrize(("debug", "lines"), [(False, 1), (True, 3)])
def test_log(crawler: Start, debug: bool, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    """Each dropped request is counted; the first is logged, or all in debug mode."""
    caplog.set_level(logging.DEBUG)
    ended = crawler(DUPEFILTER_DEBUG=debug)
    dupefilter = opened(ended)
    for number in range(3):
        dupefilter.log(page(number), spider_of(ended))
    end(ended, caplog, clears=False)
    assert stats_of(ended).get_value("dupefilter/filtered") == 3
    logged_pages = [each for each in caplog.messages if "Filtered duplicate" in each]
    assert len(logged_pages) == lines
    assert all(f"http://shop.test/{number}" in line for number, line in enumerate(logged_pages))


@by_crawler
def test_always(server: Server, key: str, way: Way) -> None:
    """A request of BLOOMFILTER_ALWAYS is new once in each process, although an earlier one has marked it."""
    for seen in (False, True):
        dupefilter = way(crawler_of(server, BLOOMFILTER_ALWAYS=[r"shop\.test/7$"], **{KEY: key}))
        assert [dupefilter.request_seen(page(7)) for _ in range(3)] == [False, True, True]
        assert [dupefilter.request_seen(page(70)) for _ in range(2)] == [seen, True]
    dupefilter.clear()


@by_crawler
@pytest.mark.parametrize("closes", [False, True], ids=["kept", "deleted"])
def test_every_stat_is_there(server: Server, key: str, way: Way, closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crawl ends with correct values in every stat of the filter, even if the filter is deleted."""
    ended = crawler_of(server, SCHEDULER_PERSIST=not closes, **{KEY: key})
    dupefilter = way(ended)
    bloom = dupefilter.filter
    before = bloom.counters.round_trips
    with counting() as sent:
        for number in (*range(50), *range(20)):
            dupefilter.request_seen(page(number))
        sent_before_the_end = sent.trips
        layer, info = bloom.parameters.sizes()[0], bloom.info()
        if closes:
            monkeypatch.setattr("scrapy_bloom._scrapy.engine.is_closing", lambda _: True)
            dupefilter.clear()
        ended.signals.send_catch_log(signals.spider_closed, spider=ended.spider, reason="finished")
    stats = stats_of(ended).get_stats()
    names = {f"bloomfilter/{field}" for kind in (Counters, FilterInfo) for field in _FIELDS[kind]}
    assert {name for name in stats if name.startswith("bloomfilter/")} == names
    assert (stats["bloomfilter/added"], stats["bloomfilter/count"]) == (50, 50)
    assert (stats["bloomfilter/cache_hits"], stats["bloomfilter/losses"]) == (20, 0)
    assert stats["bloomfilter/round_trips"] >= before + sent_before_the_end >= before + 50
    # A few positions of 50 items coincide by chance.
    ones = 50 * layer.hashes
    assert 0.9 * ones <= stats["bloomfilter/fill_ratio"] * layer.blocks * 2048 <= ones
    assert stats["bloomfilter/current_error_rate"] == info.current_error_rate
    assert stats["bloomfilter/memory_bytes"] == layer.memory_bytes
    assert stats["bloomfilter/layers"] == 1


def test_stats_while_it_runs(crawler: Start) -> None:
    """The stats are updated during the crawl."""
    running = crawler()
    dupefilter = opened(running)
    assert stats_of(running).get_value("bloomfilter/layers") == 1
    dropped = 0

    def drop_and_look(name: str) -> object:
        nonlocal dropped
        dropped += 1
        dupefilter.log(page(0), spider_of(running))
        return stats_of(running).get_value(name)

    for number in range(3):
        dupefilter.request_seen(page(number))
        until(lambda: drop_and_look("bloomfilter/added") == number + 1)  # noqa: B023  # it is called at once
    until(lambda: drop_and_look("dupefilter/filtered") == dropped)


# The log.


def test_new_filter(crawler: Start, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """An empty filter is logged as new, with its future size and without an item count."""
    opened(crawler(BLOOMFILTER_CAPACITY=1000))
    (line,) = logged(caplog, logging.INFO)
    assert f"{key!r}: it is new" in line
    assert all(part in line for part in (" KB for a capacity of 1,000 ", "1e-6"))


def test_filter_of_an_earlier_crawl(crawler: Start, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl over a filled filter logs its requests, and how to start afresh."""
    first = crawler(BLOOMFILTER_CAPACITY=1000)
    meet(opened(first), first, *range(100))
    caplog.clear()
    opened(crawler(BLOOMFILTER_CAPACITY=1000))
    holds, hint = logged(caplog, logging.INFO)
    assert f"{key!r}: it holds 100 requests for a capacity of 1,000 (10%)" in holds
    assert f"{key!r} are not fetched again" in hint
    assert "SCHEDULER_FLUSH_ON_START = True" in hint


def test_begun_anew_beside_others(
    crawler: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a flush, concurrent additions by others are not logged as an earlier crawl's requests."""
    beside = crawler(BLOOMFILTER_CAPACITY=1000)
    others, report = opened(beside), BloomFilter.info

    def add_and_report(bloom: BloomFilter) -> FilterInfo:
        monkeypatch.undo()
        meet(others, beside, *range(100))
        return report(bloom)

    monkeypatch.setattr(BloomFilter, "info", add_and_report)
    caplog.clear()
    opened(crawler(BLOOMFILTER_CAPACITY=1000, SCHEDULER_FLUSH_ON_START=True))
    assert "it holds" in caplog.text
    assert "not fetched again" not in caplog.text


def test_summary(crawler: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The end logs the numbers of new requests, of repeats, and of repeats that cost a round trip."""
    earlier = crawler(BLOOMFILTER_CAPACITY=1000)
    meet(opened(earlier), earlier, *range(30))
    ended = crawler(BLOOMFILTER_CAPACITY=1000)
    # Thirty that only Redis knows, ten new ones, and fifteen that this process has seen.
    meet(opened(ended), ended, *range(40), *range(25, 40))
    end(ended, caplog)
    (line,) = logged(caplog, logging.INFO)
    assert "took 10 new requests and dropped 45 repeats of this process, 15 of them without asking Redis" in line
    assert "fewer than 0.01 pages may have been missed" in line
    assert "It holds 40 requests" in line
    assert "0.0 MB" not in line
    assert logged(caplog, logging.WARNING) == []
    assert ended.stats is not None
    assert ended.stats.get_value("dupefilter/filtered") == 45


def again(crawler: Start, *numbers: int, **settings: object) -> tuple[Crawler, BloomRFPDupeFilter]:
    """Return a crawl over an earlier crawl's filter, which has seen these requests."""
    first = crawler(BLOOMFILTER_CAPACITY=1000, **settings)
    meet(opened(first), first, *range(100))
    ended = crawler(BLOOMFILTER_CAPACITY=1000, **settings)
    dupefilter = opened(ended)
    meet(dupefilter, ended, *numbers)
    return ended, dupefilter


def told(dupefilter: BloomRFPDupeFilter, *, is_alone: bool) -> None:
    """Tell the report about other workers, as BloomScheduler does at its end."""
    assert dupefilter.report is not None
    dupefilter.report.end(is_alone=is_alone, is_deleted=False)


def said_of_nothing(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return level and text of the lines that report a crawl without a fetch."""
    records = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, text) for level, text in records if re.search("nothing (was|new was) fetched", text)]


@pytest.mark.parametrize(("is_alone", "level"), [(True, "WARNING"), (None, "INFO")])
def test_nothing_fetched(
    is_alone: bool | None, level: str, crawler: Start, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A crawl whose requests were all known logs it, as a warning if it knows that it is alone."""
    ended, dupefilter = again(crawler, 1, 2, 2)
    if is_alone:
        told(dupefilter, is_alone=True)
    end(ended, caplog)
    ((said, text),) = said_of_nothing(caplog)
    assert said == level
    assert text.startswith(f"All 3 start requests that went through the filter at {key!r} were known to it")


def fetch(crawler: Crawler, request: Request) -> None:
    """Send the signal of a request that reaches the downloader."""
    crawler.signals.send_catch_log(signals.request_reached_downloader, request=request, spider=crawler.spider)


PAST_THE_FILTER = {
    "a start page": Request("https://example.com/", dont_filter=True),
    "robots.txt, or an image of a pipeline": Request("https://example.com/robots.txt", callback=NO_CALLBACK),
}


@pytest.mark.parametrize("ttl", [None, 3600])
@pytest.mark.parametrize("what", PAST_THE_FILTER)
def test_nothing_new_fetched(
    what: str, ttl: int | None, crawler: Start, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A crawl that fetched only requests past the filter logs it, too."""
    ended, dupefilter = again(crawler, 1, 2, 2, BLOOMFILTER_TTL=ttl)
    told(dupefilter, is_alone=True)
    fetch(ended, PAST_THE_FILTER[what])
    end(ended, caplog)
    (text,) = [text for text in logged(caplog, logging.WARNING) if "nothing new" in text]
    assert text.startswith(f"All 3 requests that went through the filter at {key!r} were known to it when this process")
    assert "only requests with dont_filter=True" in text
    assert "SCHEDULER_FLUSH_ON_START = True" in text
    assert ("BLOOMFILTER_TTL = 3600 keeps a request" in text) == (ttl is not None)


Meet = Callable[[Crawler, BloomRFPDupeFilter], object]


def others_add(_: Crawler, dupefilter: BloomRFPDupeFilter) -> None:
    """Another process adds to the filter meanwhile."""
    BloomFilter(dupefilter.server, dupefilter.key, capacity=1000, fingerprint="scrapy-redis").add_many(["a", "b", "c"])


def others_were_there(_: Crawler, dupefilter: BloomRFPDupeFilter) -> None:
    """Another worker was seen and has left since."""
    told(dupefilter, is_alone=False)


def fetches(crawler: Crawler, _: BloomRFPDupeFilter) -> None:
    """A request left in the queue by an earlier worker reaches the downloader."""
    fetch(crawler, Request("https://example.com/1"))


def has_a_copy(crawler: Crawler, _: BloomRFPDupeFilter) -> None:
    """The response comes from a cache."""
    request = Request("https://example.com/1")
    crawler.signals.send_catch_log(signals.response_received, response=None, request=request, spider=crawler.spider)


BUSY: dict[str, Meet] = {
    "something is new": lambda crawler, dupefilter: meet(dupefilter, crawler, 100),
    "something is fetched": fetches,
    "something is cached": has_a_copy,
    "others add": others_add,
    "others were there": others_were_there,
}


@pytest.mark.parametrize("what", BUSY)
def test_something_happened(what: str, crawler: Start, caplog: pytest.LogCaptureFixture) -> None:
    """No such line is logged if the crawl fetched a page, or other workers used the filter."""
    ended, dupefilter = again(crawler, 1, 2)
    BUSY[what](ended, dupefilter)
    end(ended, caplog)
    assert said_of_nothing(caplog) == []


def test_nothing_was_asked_for(crawler: Start, caplog: pytest.LogCaptureFixture) -> None:
    """No such line is logged by a crawl without requests, a stopped one, or one with a new filter."""
    unused, _ = again(crawler)
    end(unused, caplog)
    stopped, _ = again(crawler, 1)
    stopped.signals.send_catch_log(signals.spider_closed, spider=stopped.spider, reason="shutdown")
    assert said_of_nothing(caplog) == []


def test_filter_was_new(crawler: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The worker that starts a crawl logs no such line: there was no earlier crawl."""
    first, second = (crawler(BLOOMFILTER_CAPACITY=1000) for _ in range(2))
    filters = [opened(first), opened(second)]
    meet(filters[0], first, 1)
    meet(filters[1], second, 1)
    end(second, caplog)
    assert said_of_nothing(caplog) == []


def test_too_full(crawler: Start, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """An overfull filter ends with a warning: its error rate, and the number of missed pages."""
    ended = crawler(BLOOMFILTER_CAPACITY=100, BLOOMFILTER_ERROR_RATE=0.01, BLOOMFILTER_EXPANSION=0)
    meet(opened(ended), ended, *range(400))
    end(ended, caplog)
    (warning,) = logged(caplog, logging.WARNING)
    assert f"{key!r} is too full" in warning
    assert "0.01 is allowed" in warning
    assert "probably missed about " in warning
    assert "BLOOMFILTER_CAPACITY above 100" in warning


def test_barely_too_full(crawler: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A filter is too full exactly when its error rate exceeds the allowed one."""
    ended = crawler(BLOOMFILTER_CAPACITY=100, BLOOMFILTER_ERROR_RATE=0.01, BLOOMFILTER_EXPANSION=0)
    dupefilter, number = opened(ended), 0
    while dupefilter.filter.info().current_error_rate <= 0.01:
        meet(dupefilter, ended, number)
        number += 1
    assert 100 < number < 300
    assert dupefilter.filter.info().current_error_rate < 0.015
    end(ended, caplog)
    assert ["is too full" in line for line in logged(caplog, logging.WARNING)] == [True]


def test_not_too_full(crawler: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A filter that has grown keeps its error rate and causes no warning."""
    ended = crawler(BLOOMFILTER_CAPACITY=100, BLOOMFILTER_ERROR_RATE=0.01)
    meet(opened(ended), ended, *range(400))
    end(ended, caplog)
    assert logged(caplog, logging.WARNING) == []


def test_nothing_is_shared(crawler: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Without a shared filter, one warning names the settings for it."""
    alone = crawler(SCHEDULER_DUPEFILTER_KEY=None)
    dupefilter = BloomRFPDupeFilter.from_crawler(alone)
    dupefilter.close()
    (warning,) = logged(caplog, logging.WARNING)
    assert warning.startswith("Nothing is shared")
    for setting in (
        "SCHEDULER = 'scrapy_bloom.BloomScheduler'",
        "SCHEDULER_DUPEFILTER_KEY = '%(spider)s:dupefilter'",
        "JOBDIR",
    ):
        assert setting in warning


def test_something_is_shared(
    crawler: Start, key: str, valkey: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a key, a JOBDIR, or a scheduler with a shared queue there is no warning."""
    BloomRFPDupeFilter.from_crawler(crawler())
    resumed = BloomRFPDupeFilter.from_crawler(crawler(SCHEDULER_DUPEFILTER_KEY=None, JOBDIR=str(tmp_path)))
    assert crawler().spider is not None
    alone = start({"REDIS_URL": valkey.url}, spider_name=key)
    assert alone.spider is not None
    shared = BloomRFPDupeFilter.from_spider(alone.spider)
    with valkey.client() as client:
        for used in (resumed, shared):
            BloomFilter(client, used.key, flush=True).clear()
    assert logged(caplog, logging.WARNING) == []
