"""Real crawls under each scheduler: every page is fetched once, and an unusable filter ends the crawl."""

import re
import signal
from pathlib import Path

import pytest
import redis

from devtools.crawl_process import Crawl
from scrapy_bloom import BloomFilter, pace
from scrapy_bloom import report as stats
from tests.support.extensions import BrokenWorker, enabling
from tests.support.outcomes import assert_complete, assert_ended_well, complaints_in, keys_of_the_filter
from tests.support.pages import linked, tree
from tests.support.scenario import FILTER_ALONE, LEASE, OURS, SCRAPY, Kind, every_scheduler, keys_of, scene
from tests.support.servers import Server
from tests.support.waiting import until

# Shown where there is something to show.
TROUBLES = {
    *(stats.RECOVERED, stats.DEAD_LETTERS, stats.FAILED, stats.QUEUE_LOSSES, stats.UNSERIALIZABLE),
    *(pace.RESERVED, pace.WASTED),
}
PAGES = 60


def told_of_the_filter(ended: Crawl) -> list[str]:
    """The lines in which a crawl reports on its filter, without warnings."""
    return [line for line in ended.log.splitlines() if "INFO: " in line and "Bloom filter at " in line]


@every_scheduler
def test_every_page_once(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """A crawl that starts over scrapy-redis's SET fetches each page once, counts each repeat, and leaves no key.

    Its filter is far too small and grows in the middle.
    """
    # At 1e-12 the smallest filter has room for all. Here 0.00002 pages are expected to be missed.
    small: Kind = {"BLOOMFILTER_CAPACITY": 5, "BLOOMFILTER_ERROR_RATE": 1e-6, "SCHEDULER_FLUSH_ON_START": True}
    with valkey.client() as client, scene(linked(PAGES), tmp_path, valkey.url, key, delay=0) as played:
        client.sadd(key, "a", "b")
        ended = played.crawl({**kind, **small})
        assert played.fetched == dict.fromkeys(played.site.links, 1)
        repeats = played.site.repeats
        assert keys_of(client, key) == set()
    assert ended.stats["finish_reason"] == "finished"
    assert ended.exit_code == 0
    assert "Traceback" not in ended.log
    assert complaints_in(ended.log) == []
    assert set(stats.NAMES) - TROUBLES <= set(ended.stats)
    assert ended.stats["dupefilter/filtered"] == ended.stats["bloomfilter/cache_hits"] == repeats
    assert ended.stats["bloomfilter/added"] == ended.stats["bloomfilter/count"] == PAGES
    assert ended.stats["bloomfilter/round_trips"] < 2 * PAGES
    assert ended.stats["bloomfilter/layers"] >= 3
    start, end = told_of_the_filter(ended)
    assert repr(key) in start
    assert repr(key) in end
    assert f"{PAGES} new" in end


@every_scheduler
def test_without_settings(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Only the server has to be set; each crawl then starts afresh."""
    warned = ["Nothing is shared"] if kind is SCRAPY else []
    unset = dict.fromkeys(("SCHEDULER_DUPEFILTER_KEY", "SCHEDULER_QUEUE_KEY", "BLOOMFILTER_CAPACITY"))
    with scene(linked(13), tmp_path, valkey.url, key, delay=0) as played:
        crawls = [played.crawl({**kind, **unset}, name) for name in ("first", "second")]
        assert played.fetched == dict.fromkeys(played.site.links, 2)
    assert_ended_well(*crawls)
    for ended in crawls:
        assert [part in line for part, line in zip(warned, complaints_in(ended.log), strict=True)] == [True] * len(
            warned
        )


def test_resumed_from_jobdir(valkey: Server, key: str, tmp_path: Path) -> None:
    """Under Scrapy's own Scheduler JOBDIR suffices to resume after Ctrl-C."""
    settings: Kind = {**SCRAPY, "JOBDIR": "job", "SCHEDULER_DUPEFILTER_KEY": None}
    with valkey.client() as client, scene(linked(PAGES), tmp_path, valkey.url, key, delay=0) as played:
        worker = played.start("first", settings)

        def interrupt(_: str) -> None:
            worker.process.send_signal(signal.SIGINT)
            # Pages in progress are answered after the crawl has received the signal.
            until(lambda: "Received SIGINT" in worker.log)

        played.moments.when(20, interrupt)
        first = worker.wait()
        assert first.stats["finish_reason"] == "shutdown"
        assert 20 <= played.fetched.total() < PAGES
        (stays,) = re.findall(r"The filter at '.+?' stays", first.log)
        second = played.crawl(settings, "second")
        assert played.fetched == dict.fromkeys(played.site.links, 1)
        assert client.exists(stays.split("'")[1])
    assert_ended_well(second)
    assert first.stats["bloomfilter/added"] + second.stats["bloomfilter/added"] == PAGES
    assert stays in second.log


def replace(client: redis.Redis, key: str) -> None:
    """Replace a filter by one of other parameters."""
    BloomFilter(client, key, capacity=77, flush=True).add("of the other")


@every_scheduler
def test_unusable_in_the_middle(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """A filter replaced by one of other parameters ends the crawl with advice and its summary, and stays."""
    with valkey.client() as client, scene(linked(PAGES), tmp_path, valkey.url, key, delay=0) as played:
        played.site.on["/page/3"] = lambda _: replace(client, key)
        ended = played.crawl(kind)
        assert played.missed
        assert "of the other" in BloomFilter(client, key, capacity=77)
        client.unlink(*keys_of(client, key))
    assert ended.stats["finish_reason"] == "bloomfilter_error"
    # Scrapy itself would report success.
    assert ended.exit_code == 1
    assert ended.log.splitlines()[-1].startswith("scrapy_bloom: ")
    assert ended.log.count("Closing spider (bloomfilter_error)") == 1
    (why,) = [line for line in complaints_in(ended.log) if " ERROR: " in line]
    assert [part for part in (f"{key!r}", "capacity", "77") if part not in why] == []
    assert "Traceback" not in ended.log
    assert len(told_of_the_filter(ended)) == 2
    assert set(stats.NAMES) - TROUBLES <= set(ended.stats)


def test_request_is_not_dropped_with_its_filter(valkey: Server, key: str, tmp_path: Path) -> None:
    """A request met after the filter was replaced stays in the queue for the resumed crawl."""
    settings: Kind = {**FILTER_ALONE, "SCHEDULER_PERSIST": True}
    # Each page is linked once, so that a dropped one does not come again.
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key, delay=0) as played:
        played.site.on["/"] = lambda _: replace(client, key)
        first = played.crawl(settings, "first")
        assert first.stats["finish_reason"] == "bloomfilter_error"
        client.unlink(*keys_of_the_filter(client, key))
        # It begins at a leaf, so that its other requests come from the queue.
        second = played.start_at("/nowhere", "second", settings).wait()
        assert_complete(played, second)


@pytest.mark.parametrize("broken", ["receive", "is_repeat", "offer", "take", "finish", "next_calls"])
def test_fault_of_the_worker_ends_the_crawl(broken: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """An error of our own ends the crawl with its traceback, wherever it is; the next one misses no page."""
    kind: Kind = {**OURS, **LEASE, "SCHEDULER_PERSIST": True, "BROKEN": broken, **enabling(BrokenWorker)}
    # Each page is linked once: a lost link is a missed page.
    with scene(tree(PAGES), tmp_path, valkey.url, key, delay=0) as played:
        first = played.crawl(kind, "first")
        assert first.stats["finish_reason"] == "bloomfilter_error"
        assert first.exit_code == 1
        assert "The crawl ends by a fault of scrapy-bloom" in first.log
        assert first.log.splitlines()[-1].startswith("scrapy_bloom: KeyError")
        assert_complete(played, played.crawl({**OURS, **LEASE}, "second"))
