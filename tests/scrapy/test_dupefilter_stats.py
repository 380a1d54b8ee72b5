"""The stats and log lines of a dupefilter."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scrapy import signals

from devtools.waiting import until
from scrapy_bloom import BloomFilter, BloomRFPDupeFilter
from scrapy_bloom.filter.sizing import error_rate_at
from scrapy_bloom.monitoring.stats import (
    DEAD_LETTERS,
    FILTERED,
    FORGOTTEN,
    NAMES,
    QUEUE_LOSSES,
    RECOVERED,
    UNSERIALIZABLE,
)
from scrapy_bloom.storage.stores import RedisStore
from scrapy_bloom.transport.commands import Command
from tests.support.dupefilters import KEY, Way, by_crawler, crawler_of, page, said, spider_of, stats_of
from tests.support.servers import Server


@pytest.mark.parametrize(("debug", "lines"), [(False, 1), (True, 3)])
def test_log(valkey: Server, key: str, debug: bool, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    """Each dropped request is counted; the first is logged, or all in debug mode."""
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
def test_always(server: Server, key: str, way: Way) -> None:
    """A request of BLOOMFILTER_ALWAYS is new once in each process, although an earlier one has marked it."""
    for seen in (False, True):
        dupefilter = way(crawler_of(server, BLOOMFILTER_ALWAYS=[r"shop\.test/7$"], **{KEY: key}))
        assert [dupefilter.request_seen(page(7)) for _ in range(3)] == [False, True, True]
        assert [dupefilter.request_seen(page(70)) for _ in range(2)] == [seen, True]
    dupefilter.clear()


@by_crawler
@pytest.mark.parametrize("closes", [False, True], ids=["kept", "deleted"])
def test_every_stat_is_there(server: Server, key: str, way: Way, closes: bool) -> None:
    """A crawl ends with correct values in every stat of the filter, even if the filter is deleted."""
    crawler = crawler_of(server, SCHEDULER_PERSIST=not closes, **{KEY: key})
    dupefilter = way(crawler)
    trips = counted_trips(dupefilter.filter)
    for number in (*range(50), *range(20)):
        dupefilter.request_seen(page(number))
    layer = dupefilter.filter._stack.newest
    if closes:
        dupefilter.clear()
    crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")
    stats = stats_of(crawler).get_stats()
    assert {name for name in stats if name.startswith("bloomfilter/")} == set(NAMES) - {
        FILTERED,
        RECOVERED,
        DEAD_LETTERS,
        FORGOTTEN,
        QUEUE_LOSSES,
        UNSERIALIZABLE,
    }
    assert stats["bloomfilter/added"] == 50
    assert stats["bloomfilter/ambiguous"] == 0
    assert stats["bloomfilter/cache_hits"] == 20
    # An item added after n others is a false positive with the error rate at n; that of 50 counts for the 50th.
    rates = [error_rate_at(layer.size, number) for number in range(1, 51)]
    expected = sum(rate / (1 - rate) for rate in rates)
    assert stats["bloomfilter/expected_false_positives"] == pytest.approx(expected, rel=1e-9, abs=0)
    # After the report a filter that stays returns its unused credit.
    assert stats["bloomfilter/round_trips"] == trips() - (not closes)
    # A few positions of 50 items coincide by chance.
    ones = 50 * layer.size.hashes
    assert 0.9 * ones <= stats["bloomfilter/fill_ratio"] * layer.size.bits <= ones
    assert 49 <= stats["bloomfilter/estimated_count"] <= 51
    fill = stats["bloomfilter/fill_ratio"]
    assert stats["bloomfilter/estimated_error_rate"] == pytest.approx(fill**layer.size.hashes, rel=1e-6, abs=0)
    assert stats["bloomfilter/memory_bytes"] == layer.size.memory_bytes
    assert stats["bloomfilter/layers"] == 1


def counted_trips(bloom: BloomFilter) -> Callable[[], int]:
    """Count the round trips of a filter at its transport; return a function that reads the count."""
    store = bloom._retrying._store
    assert isinstance(store, RedisStore)
    attempt, before, after = store._transport.attempt, bloom.counters.round_trips, 0

    def counting(commands: Sequence[Command]) -> list[Any]:
        nonlocal after
        after += 1
        return attempt(commands)

    store._transport.attempt = counting  # type: ignore[method-assign]  # counted on its way
    return lambda: before + after


@by_crawler
def test_room_is_given_back_at_the_end(server: Server, key: str, way: Way) -> None:
    """A worker that is idle or has ended returns its unused credit."""
    with server.client() as client:
        crawler = crawler_of(server, SCHEDULER_PERSIST=True, BLOOMFILTER_CAPACITY=1_000_000, **{KEY: key})
        dupefilter = way(crawler)
        for number in range(5):
            dupefilter.request_seen(page(number))
        field = dupefilter.filter._stack.newest.credit_field
        crawler.signals.send_catch_log(signals.spider_idle, spider=crawler.spider)
        assert int(client.hget(key, field) or 0) > 5, "recently used credit is kept"
        credit = dupefilter.filter._stack.credits
        credit._granted_at -= 6
        crawler.signals.send_catch_log(signals.spider_idle, spider=crawler.spider)
        assert client.hget(key, field) == b"5"
        dupefilter.request_seen(page(5))
        assert int(client.hget(key, field) or 0) > 6
        crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="finished")
        assert client.hget(key, field) == b"6"


def test_stats_while_it_runs(valkey: Server, key: str) -> None:
    """The stats are updated during the crawl."""
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
    """The start logs the filter's key and capacity once; the end logs the outcome once."""
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
    assert "1 repeat of" in end
