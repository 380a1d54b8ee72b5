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
    """Each page is fetched once, each repeat counted, and no key left."""
    ended = run(SCHEDULER=scheduler)
    assert_each_once(site)
    assert_went_well(ended)
    assert len(ended.fetched) == PAGES
    assert set(stats.NAMES) - TROUBLES <= set(ended.stats)
    assert ended.stats["dupefilter/filtered"] == site.repeats
    assert ended.stats["bloomfilter/added"] == PAGES
    assert ended.stats["bloomfilter/cache_hits"] == site.repeats
    assert ended.stats["bloomfilter/round_trips"] < 2 * PAGES
    assert ended.stats["bloomfilter/count"] == PAGES
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


@every_scheduler
def test_growing_filter(site: Site, run: Run, scheduler: str) -> None:
    """A filter that is far too small grows in the middle of the crawl and loses no page."""
    # At 1e-12 the smallest filter has room for all. Here 0.00002 pages are expected to be missed.
    ended = run(SCHEDULER=scheduler, BLOOMFILTER_CAPACITY=5, BLOOMFILTER_ERROR_RATE=1e-6)
    assert_each_once(site)
    assert_went_well(ended)
    assert ended.stats["bloomfilter/layers"] >= 3


@every_scheduler
def test_flush_on_start(site: Site, run: Run, stored: Stored, scheduler: str) -> None:
    """With SCHEDULER_FLUSH_ON_START a crawl starts afresh over scrapy-redis's SET."""
    stored.client.sadd(stored.key, "a", "b")
    ended = run(SCHEDULER=scheduler, SCHEDULER_FLUSH_ON_START=True)
    assert_each_once(site)
    assert_went_well(ended)


def test_user_fingerprinter(site: Site, run: Run, tmp_path: Path) -> None:
    """REQUEST_FINGERPRINTER_CLASS defines repeats."""
    (tmp_path / "fingerprinters.py").write_text(
        "class Everything:\n    def fingerprint(self, request):\n        return b'one for all'\n"
    )
    ended = run(REQUEST_FINGERPRINTER_CLASS="fingerprinters.Everything")
    assert_went_well(ended)
    assert site.paths == ["/"]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"SCHEDULER": crawling.REDIS_SCHEDULER}, id="scrapy-redis"),
        pytest.param({"SCHEDULER": crawling.OWN_SCHEDULER, "JOBDIR": "job"}, id="scrapy-with-jobdir"),
    ],
)
def test_resumed_crawl(site: Site, run: Run, stored: Stored, settings: dict[str, str]) -> None:
    """A stopped crawl resumes: the remaining pages are fetched, and none twice."""
    settings = {**settings, "SCHEDULER_PERSIST": "True", "CONCURRENT_REQUESTS": "1"}
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


# Refused at the start.


def assert_refused(ended: Crawl, site: Site, *parts: str) -> None:
    """Assert that the process failed at its start, fetched no page, and logged each part once.

    The number of tracebacks depends on Scrapy's version and on the parts that it then cannot close.
    """
    assert ended.exit_code == crawling.REFUSED_EXIT_CODE
    assert site.paths == []
    assert ended.fetched == []
    errors = [line for line in ended.log.splitlines() if line.startswith("scrapy_bloom.errors.")]
    assert len(set(errors)) == 1
    assert "enqueue_request" not in ended.log
    assert [part for part in parts if part not in errors[0]] == []


@every_scheduler
def test_set_is_refused(site: Site, run: Run, stored: Stored, scheduler: str) -> None:
    """A SET that scrapy-redis left is refused at the start with advice, and survives the end."""
    stored.client.sadd(stored.key, *range(1234))
    ended = run(SCHEDULER=scheduler)
    assert_refused(ended, site, repr(stored.key), "scrapy bloom import", "SCHEDULER_FLUSH_ON_START")
    assert stored.client.scard(stored.key) == 1234


@every_scheduler
def test_unknown_setting_is_refused(site: Site, run: Run, stored: Stored, scheduler: str) -> None:
    """A misspelt setting is refused at the start with the nearest name, and no key is written."""
    ended = run(SCHEDULER=scheduler, BLOOMFILTER_CAPACTY="1e8")
    assert_refused(ended, site, "BLOOMFILTER_CAPACTY = '1e8'", "BLOOMFILTER_CAPACITY")
    assert stored.keys() == []


@every_scheduler
def test_other_parameters_are_refused(site: Site, run: Run, stored: Stored, scheduler: str) -> None:
    """A filter of other parameters is refused at the start with both values, and survives the end."""
    stored.replace().add("known")
    ended = run(SCHEDULER=scheduler, BLOOMFILTER_CAPACITY=88)
    assert_refused(ended, site, repr(stored.key), "capacity", "77", "88")
    assert "known" in BloomFilter(stored.client, stored.key, capacity=77)


# Faults in the middle.


@every_scheduler
@pytest.mark.parametrize("persist", [True, False])
def test_other_parameters_in_the_middle(site: Site, run: Run, stored: Stored, scheduler: str, persist: bool) -> None:
    """A filter replaced by one of other parameters ends the crawl, logged once.

    The crawl still logs its summary and leaves the other filter alone.
    """
    site.on["/page/3"] = lambda _: stored.replace().add("of the other")
    ended = run(SCHEDULER=scheduler, SCHEDULER_PERSIST=persist)
    assert ended.stats["finish_reason"] == "bloomfilter_error"
    # Scrapy itself would report success.
    assert ended.exit_code == 1
    assert ended.log.splitlines()[-1].startswith("scrapy_bloom: ")
    assert len(site.paths) < PAGES
    assert ended.log.count("Closing spider (bloomfilter_error)") == 1
    (why,) = ours(ended, "ERROR")
    assert [part for part in (repr(stored.key), "capacity", "77") if part not in why] == []
    assert "Traceback" not in ended.log
    assert len(told_of_the_filter(ended)) == 2
    assert set(stats.NAMES) - TROUBLES <= set(ended.stats)
    assert "of the other" in BloomFilter(stored.client, stored.key, capacity=77)


@every_scheduler
def test_memory_full_in_the_middle(site: Site, run: Run, scheduler: str) -> None:
    """A full server ends the crawl, under every scheduler, with a reason of its own and advice."""
    with running("valkey") as server, server.client() as client:
        site.on["/page/3"] = lambda _: client.config_set("maxmemory", 1)
        ended = run(REDIS_URL=server.url, SCHEDULER=scheduler)
    assert ended.stats["finish_reason"] == "bloomfilter_error"
    # Scrapy itself would report success.
    assert ended.exit_code == 1
    assert ended.log.splitlines()[-1].startswith("scrapy_bloom: ")
    assert len(site.paths) < PAGES
    assert "raise the server's maxmemory" in ours(ended, "ERROR")[0]


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


def test_password_is_not_logged(site: Site, run: Run) -> None:
    """The password in REDIS_URL is in no line of a crawl's log."""
    password = "pa55-w0rd-of-the-test"  # noqa: S105  # of a server that lives as long as the test
    with running("valkey", "--requirepass", password) as server:
        url = server.url.replace("//", f"//:{password}@")
        works = run(REDIS_URL=url, SCHEDULER_PERSIST=True)
        assert_each_once(site)
        assert_went_well(works)
        refused = run(REDIS_URL=url, SCHEDULER_PERSIST=True, BLOOMFILTER_CAPACITY=5)
        assert "MismatchError" in refused.log
        mistaken = run(REDIS_URL=server.url.replace("//", f"//:{password}-mistaken@"))
        assert "AuthenticationError" in mistaken.log
        assert_each_once(site)
    assert password not in works.log + refused.log + mistaken.log
