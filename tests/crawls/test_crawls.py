"""Real crawls of a real site by separate processes: every page is fetched once, despite faults."""

import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.crawl_process import LIMIT, Crawl
from devtools.site import Site, serving
from devtools.waiting import until
from scrapy_bloom import BloomFilter
from scrapy_bloom.monitoring import stats
from tests.support import crawling
from tests.support.crawling import crawl
from tests.support.moments import Moments
from tests.support.pages import linked, tree
from tests.support.servers import Server, running

pytestmark = pytest.mark.crawl

# Shown where there is something to show.
TROUBLES = {
    stats.RECOVERED,
    stats.DEAD_LETTERS,
    stats.FORGOTTEN,
    stats.FAILED,
    stats.QUEUE_LOSSES,
    stats.UNSERIALIZABLE,
}

PAGES = 60
KEY = "SCHEDULER_DUPEFILTER_KEY"
SCHEDULERS = {
    "scrapy-redis": crawling.REDIS_SCHEDULER,
    "scrapy": crawling.OWN_SCHEDULER,
    "scrapy-bloom": "scrapy_bloom.BloomScheduler",
}
every_scheduler = pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)

Run = Callable[..., Crawl]


class Stored:
    """A filter's keys and their contents."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.client = client
        self.key = key

    def keys(self) -> list[bytes]:
        """All keys, the queue's included."""
        return sorted(self.client.scan_iter(match=f"{self.key}*", count=10_000))

    def lose(self) -> None:
        """Delete the filter, but not the queue."""
        self.client.unlink(*[found for found in self.keys() if not found.endswith(b":queue")])

    def replace(self) -> BloomFilter:
        """Replace the filter by one of other parameters."""
        return BloomFilter(self.client, self.key, capacity=77, flush=True)


@pytest.fixture
def site() -> Iterator[Site]:
    """A site whose pages link to each other."""
    with serving(linked(PAGES)) as site:
        yield site


@pytest.fixture
def common(valkey: Server, key: str) -> dict[str, Any]:
    """The settings that all crawls of a test share."""
    # So small that its bits are counted in full, and the estimates are good to a page or two.
    return {
        "REDIS_URL": valkey.url,
        KEY: key,
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
        "BLOOMFILTER_CAPACITY": 1000,
        "BLOOMFILTER_ERROR_RATE": 1e-12,
    }


@pytest.fixture
def run(site: Site, common: dict[str, Any], tmp_path: Path) -> Run:
    """Crawl the site to the end, with further settings; None removes a setting."""

    def to_the_end(name: str = "worker", path: str = "/", **settings: object) -> Crawl:
        wanted = {setting: value for setting, value in {**common, **settings}.items() if value is not None}
        return crawl(name, site.url + path, tmp_path, **wanted)

    return to_the_end


@pytest.fixture
def stored(valkey: Server, key: str) -> Iterator[Stored]:
    """Yield the stored data of the crawls."""
    with valkey.client() as client:
        yield Stored(client, key)


def ours(ended: Crawl, *levels: str) -> list[str]:
    """This package's lines in a log, of some levels."""
    lines = [line for line in ended.log.splitlines() if "[scrapy_bloom." in line]
    return [line for line in lines if any(f" {level}: " in line for level in levels)]


def told_of_the_filter(ended: Crawl) -> list[str]:
    """The lines in which a crawl reports on its filter, without warnings."""
    return [line for line in ours(ended, "INFO") if "[scrapy_bloom.monitoring.reporter]" in line]


def assert_each_once(site: Site) -> None:
    """Assert that every page of the site was fetched exactly once."""
    assert Counter(site.paths) == dict.fromkeys(site.links, 1)


def assert_went_well(ended: Crawl, *warned: str) -> None:
    """Assert that the crawl ended by itself, with no errors or other warnings."""
    assert ended.exit_code == 0
    assert ended.stats["finish_reason"] == "finished"
    assert "Traceback" not in ended.log
    assert " ERROR: " not in ended.log
    for warning, part in zip(ours(ended, "WARNING"), warned, strict=True):
        assert part in warning


@every_scheduler
def test_every_page_once(site: Site, run: Run, stored: Stored, scheduler: str) -> None:
    """A crawl that starts over scrapy-redis's SET fetches each page once, counts each repeat, and leaves no key.

    Its filter is far too small and grows in the middle.
    """
    stored.client.sadd(stored.key, "a", "b")
    # At 1e-12 the smallest filter has room for all. Here 0.00002 pages are expected to be missed.
    small = {"BLOOMFILTER_CAPACITY": 5, "BLOOMFILTER_ERROR_RATE": 1e-6}
    ended = run(SCHEDULER=scheduler, SCHEDULER_FLUSH_ON_START=True, **small)
    assert_each_once(site)
    assert_went_well(ended)
    assert len(ended.fetched) == PAGES
    assert set(stats.NAMES) - TROUBLES <= set(ended.stats)
    assert ended.stats["dupefilter/filtered"] == site.repeats
    assert ended.stats["bloomfilter/added"] == PAGES
    assert ended.stats["bloomfilter/cache_hits"] == site.repeats
    assert ended.stats["bloomfilter/round_trips"] < 2 * PAGES
    assert ended.stats["bloomfilter/count"] == PAGES
    assert ended.stats["bloomfilter/layers"] >= 3
    start, end = told_of_the_filter(ended)
    assert repr(stored.key) in start
    assert repr(stored.key) in end
    assert f"{PAGES} new" in end
    assert stored.keys() == []


@every_scheduler
def test_without_settings(site: Site, run: Run, scheduler: str) -> None:
    """Only the server has to be set; each crawl then starts afresh."""
    warned = ["Nothing is shared"] if scheduler == crawling.OWN_SCHEDULER else []
    crawls = [run(SCHEDULER=scheduler, SCHEDULER_DUPEFILTER_KEY=None, BLOOMFILTER_CAPACITY=None) for _ in range(2)]
    for each in crawls:
        assert_went_well(each, *warned)
    assert Counter(site.paths) == dict.fromkeys(site.links, 2)


def test_resumed_crawl(site: Site, run: Run, stored: Stored) -> None:
    """A stopped crawl resumes: the remaining pages are fetched, and none twice."""
    settings = {"SCHEDULER": crawling.REDIS_SCHEDULER, "SCHEDULER_PERSIST": "True", "CONCURRENT_REQUESTS": "1"}
    first = run(CLOSESPIDER_PAGECOUNT=10, **settings)
    assert first.stats["finish_reason"] == "closespider_pagecount"
    assert 10 <= len(site.paths) < PAGES
    second = run(**settings)
    assert_each_once(site)
    assert_went_well(second)
    assert first.stats["bloomfilter/added"] + second.stats["bloomfilter/added"] == PAGES
    assert second.stats["bloomfilter/count"] == PAGES
    assert stored.client.exists(stored.key)


def test_resumed_from_jobdir(site: Site, common: dict[str, Any], run: Run, stored: Stored, tmp_path: Path) -> None:
    """Under Scrapy's own Scheduler JOBDIR suffices to resume after Ctrl-C."""
    settings: dict[str, Any] = {"SCHEDULER": crawling.OWN_SCHEDULER, "JOBDIR": "job"}
    unnamed = {name: value for name, value in common.items() if name != KEY}
    site.before = moments = Moments(0)
    with crawling.crawling("first", site.url, tmp_path, **unnamed, **settings) as worker:

        def interrupt(_: str) -> None:
            worker.process.send_signal(signal.SIGINT)
            # Pages in progress are answered after the crawl has received the signal.
            until(lambda: "Received SIGINT" in worker.log)

        moments.when(20, interrupt)
        first = worker.wait()
    moments.check()
    assert first.stats["finish_reason"] == "shutdown"
    assert 20 <= len(site.paths) < PAGES
    (key,) = re.findall(r"The filter at '(.+?)' stays", first.log)
    second = run("second", **{**settings, KEY: None})
    assert_each_once(site)
    assert_went_well(second)
    assert first.stats["bloomfilter/added"] + second.stats["bloomfilter/added"] == PAGES
    assert f"The filter at {key!r} stays" in second.log
    assert stored.client.exists(key)


def test_two_workers(site: Site, common: dict[str, Any], tmp_path: Path, run: Run) -> None:
    """Two processes share a queue and a filter: each page is fetched by one of them."""
    common = {**common, "SCHEDULER": crawling.REDIS_SCHEDULER, "SCHEDULER_PERSIST": True, "CONCURRENT_REQUESTS": 2}
    # A worker that finds the queue empty leaves, so the queue must hold requests before both start.
    run("first", **common, CLOSESPIDER_PAGECOUNT=2)
    names = {"left", "right"}
    arrived: set[str] = set()
    both = threading.Event()

    def meet(worker: str) -> None:
        arrived.add(worker)
        if arrived >= names:
            both.set()
        both.wait(LIMIT)

    site.before = meet
    with (
        crawling.crawling("left", site.url, tmp_path, **common) as left,
        crawling.crawling("right", site.url, tmp_path, **common) as right,
    ):
        crawls = [left.wait(), right.wait()]
    assert_each_once(site)
    for each in crawls:
        assert_went_well(each)
        assert each.fetched
    assert {name for name, _ in site.fetched} == {"first", *names}


# Faults in the middle.

FAULTS: dict[str, tuple[Callable[[Stored], object], list[str]]] = {
    "other parameters": (lambda stored: stored.replace().add("of the other"), ["{key!r}", "capacity", "77"]),
    "memory full": (lambda stored: stored.client.config_set("maxmemory", 1), ["raise the server's maxmemory"]),
}


@every_scheduler
@pytest.mark.parametrize("fault", FAULTS)
def test_unusable_in_the_middle(site: Site, run: Run, key: str, scheduler: str, fault: str) -> None:
    """A filter replaced by one of other parameters, or a full server, ends the crawl with advice.

    The crawl still logs its summary and leaves the other filter alone.
    """
    cause, parts = FAULTS[fault]
    with running("valkey") as server, server.client() as client:
        stored = Stored(client, key)
        site.on["/page/3"] = lambda _: cause(stored)
        ended = run(REDIS_URL=server.url, SCHEDULER=scheduler)
        has_other = fault == "other parameters"
        assert not has_other or "of the other" in BloomFilter(client, key, capacity=77)
    assert ended.stats["finish_reason"] == "bloomfilter_error"
    # Scrapy itself would report success.
    assert ended.exit_code == 1
    assert ended.log.splitlines()[-1].startswith("scrapy_bloom: ")
    assert len(site.paths) < PAGES
    assert ended.log.count("Closing spider (bloomfilter_error)") == 1
    why, *others = ours(ended, "ERROR")
    assert [part for part in parts if part.format(key=key) not in why] == []
    # A full server refuses the leave, and the queue of scrapy-redis, too.
    assert not has_other or not (others or "Traceback" in ended.log)
    assert len(told_of_the_filter(ended)) == 2
    assert set(stats.NAMES) - TROUBLES <= set(ended.stats)


def test_request_is_not_dropped_with_its_filter(site: Site, run: Run, stored: Stored) -> None:
    """A request met after the filter was replaced stays in the queue for the resumed crawl."""
    # Each page is linked once, so that a dropped one does not come again.
    site.links = tree(PAGES)
    site.on["/"] = lambda _: stored.replace()
    settings = {"SCHEDULER": crawling.REDIS_SCHEDULER, "SCHEDULER_PERSIST": True}
    first = run(**settings)
    assert first.stats["finish_reason"] == "bloomfilter_error"
    site.on.clear()
    stored.lose()
    # It begins at a leaf, so that its other requests come from the queue.
    second = run("second", "/nowhere", **settings)
    assert_went_well(second)
    assert set(site.paths) == {"/nowhere", *site.links}


@every_scheduler
def test_lost_in_the_middle(site: Site, run: Run, stored: Stored, scheduler: str) -> None:
    """A flushed filter is logged once, and no page is missed; some may be fetched again."""

    def lose(_: str) -> None:
        stored.lose()
        site.on.clear()

    site.on["/page/3"] = lose
    ended = run(SCHEDULER=scheduler)
    assert set(site.paths) == set(site.links)
    assert max(Counter(site.paths).values()) <= 2
    assert ended.exit_code == 0
    assert ended.stats["finish_reason"] == "finished"
    assert "Traceback" not in ended.log
    (warning,) = ours(ended, "WARNING", "ERROR")
    assert f"'{stored.key}" in warning
    assert stored.keys() == []
