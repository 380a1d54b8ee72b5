"""Crawls by BloomScheduler in difficult setups: fed, flooded, started again, by workers that it refuses."""

from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from tests.support.outcomes import assert_ended_well, complaints_in
from tests.support.pages import chain, tree
from tests.support.scenario import FILTER_ALONE, LEASE, OURS, Kind, Scene, asyncio_first, scene
from tests.support.servers import Server
from tests.support.spiders import counted, flood
from tests.support.waiting import until


@asyncio_first
def test_start_is_held_back(reactor: Kind, durable: Server, key: str, tmp_path: Path) -> None:
    """While Redis is unreachable, start() is read only as far as a batch holds; later all of it is fetched."""
    given = tmp_path / "given"
    with scene(chain(1), tmp_path, durable.url, key, delay=0) as played:
        played.spider = flood.__file__
        worker = played.start("worker", {**OURS, **LEASE, **reactor})
        until((tmp_path / "halted").exists)
        durable.kill()
        (tmp_path / "go").touch()
        until(lambda: complaints_in(played.log("worker")))
        # Its thread has tried three times since.
        tried = played.log("worker").count("The heartbeat failed")
        until(lambda: played.log("worker").count("The heartbeat failed") >= tried + 3)
        assert int(given.read_text()) <= flood.HALT + 100 < flood.NUMBER
        durable.start()
        ended = worker.wait()
        missed = {"/", *(f"/flood/{number}" for number in range(flood.NUMBER))} - played.fetched.keys()
        told = [line for line in ended.log.splitlines() if line.endswith(("ERROR", *missed)) or "Gave up" in line]
        assert not missed, "\n".join([*told, ended.log[-5000:]])
    assert_ended_well(ended)


# BLOOMFILTER_ALWAYS: each run fetches the pages once, also if they link to themselves.


FRONT, LISTS, LEAVES = "/", {"/list/1", "/list/2"}, {"/page/1", "/page/2"}
# A front page that links to itself, and two lists that link to each other.
SITE = {
    FRONT: [FRONT, *LISTS],
    "/list/1": [FRONT, "/list/2", "/page/1"],
    "/list/2": [FRONT, "/list/1", "/page/2"],
    "/page/1": [FRONT, "/list/1"],
    "/page/2": ["/list/2"],
}
ALWAYS: Kind = {
    "BLOOMFILTER_ALWAYS": r"^http://[^/]+/?$|/list/\d$",
    "SCHEDULER_PERSIST": True,
    # Otherwise a crawl that fetches them again and again would run until the limit of the tests.
    "CLOSESPIDER_PAGECOUNT": 40,
}


def test_pages_that_link_to_each_other(valkey: Server, key: str, tmp_path: Path) -> None:
    """By the filter alone, each of two runs fetches them once, and the other pages only in the first one."""
    with scene(SITE, tmp_path, valkey.url, key, delay=0) as played:
        first = played.crawl({**FILTER_ALONE, **ALWAYS}, "first")
        assert played.fetched == dict.fromkeys(SITE, 1)
        second = played.crawl({**FILTER_ALONE, **ALWAYS}, "second")
        assert played.fetched == {**dict.fromkeys({FRONT, *LISTS}, 2), **dict.fromkeys(LEAVES, 1)}
    assert_ended_well(first, second)


@pytest.mark.parametrize("kind", [FILTER_ALONE, OURS], ids=["scrapy-redis", "scrapy-bloom"])
@pytest.mark.parametrize("serializer", ["scrapy_redis.picklecompat", "scrapy_bloom.serializer"], ids=["pickle", "ours"])
def test_requests_by_their_meta(kind: Kind, serializer: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A product is fetched once under all its URLs, also behind a redirect, and pages that are always new in each run.

    A request with another type of key counts as its URL, and the log says so.
    """
    leaves: dict[str, list[str]] = {"/a/1": [], "/b/1": [], "/new/2": [], "/faulty": []}
    lists = {"/": ["/faulty", "/a/1", "/b/1", "/old/2", "/list", "/"], "/list": ["/", "/a/1", "/list"]}
    with scene({**lists, **leaves}, tmp_path, valkey.url, key, delay=0) as played:
        played.site.answers["/old/2"] = "/new/2"
        played.spider = counted.__file__
        runs = [
            played.crawl({**kind, **ALWAYS, "BLOOMFILTER_ALWAYS": None}, name, SCHEDULER_SERIALIZER=serializer)
            for name in ("first", "second")
        ]
        found = played.fetched
    assert found.pop("/a/1", 0) + found.pop("/b/1", 0) == 1
    assert found == {"/": 2, "/list": 2, "/new/2": 1, "/faulty": 1}
    for run in runs:
        assert (run.exit_code, run.stats["finish_reason"]) == (0, "finished")
        (complaint,) = complaints_in(run.log)
        assert "meta['bloom_key'] = 42 of <GET http" in complaint


# Starts over a kept filter that knows all requests: no page is fetched, and the log says why.


KEPT: Kind = {"SCHEDULER_PERSIST": True}


@pytest.mark.parametrize("kind", [OURS, pytest.param(FILTER_ALONE, marks=pytest.mark.long)], ids=["ours", "stock"])
def test_complete_crawl(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """A complete crawl that is started again logs why nothing is fetched, and how to start afresh."""
    with scene(tree(4), tmp_path, valkey.url, key) as played:
        first = played.crawl({**kind, **KEPT}, "first")
        again = played.crawl({**kind, **KEPT}, "again", STATS_CLASS="scrapy.statscollectors.DummyStatsCollector")
        deleting = played.crawl(kind, "deleting")
        assert played.twice == 0
        anew = played.crawl({**kind, **KEPT}, "anew")
        assert played.twice == 4
        flushed = played.crawl({**kind, **KEPT}, "flushed", SCHEDULER_FLUSH_ON_START=True)
        assert played.twice == 8
    assert_ended_well(first, deleting, anew, flushed)
    hint = (
        f"Requests in the filter at {key!r} are not fetched again: the crawl continues with it. To start over, stop all"
    )
    assert all(hint in each.log for each in (again, deleting))
    assert "SCHEDULER_FLUSH_ON_START = True" in again.log
    assert "took 0 new requests and dropped 1 repeat of this process" in again.log
    assert hint not in first.log + anew.log


# Workers that a queue refuses, and schedulers and queue classes that BloomScheduler does.


OWN = """
from scrapy_bloom import BloomScheduler

class OwnScheduler(BloomScheduler):
    def enqueue_request(self, request):
        self.queue.push(request)
        return True
"""


def refused(played: Scene, parts: list[str], **settings: object) -> None:
    """Assert that a second worker is refused with these parts, and the first one ends well."""
    held, release = played.hold("/")
    first = played.start("first", OURS)
    assert held.wait(LIMIT)
    spider, played.spider = played.spider, str(settings.pop("spider", played.spider))
    ended = played.start("refused", OURS, **settings).wait()
    played.spider = spider
    release.set()
    line = ended.log.rstrip().splitlines()[-1]
    assert ended.exit_code == 1
    assert line.startswith("scrapy_bloom: ")
    assert [part for part in parts if part not in line] == []
    ended = first.wait()
    assert_ended_well(ended)
    assert complaints_in(ended.log) == []
    assert played.missed == set()
    assert played.twice == 0


@pytest.mark.parametrize("flush", [False, True])
def test_another_spider(flush: bool, valkey: Server, key: str, tmp_path: Path) -> None:
    """A spider that starts on another one's queue is refused, and deletes nothing."""
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        text = Path(played.spider).read_text().replace("LinksSpider", "OtherSpider")
        (tmp_path / "other.py").write_text(text)
        parts = [
            "workers of the spider 'links.LinksSpider' are ",
            f"'{key}:queue'",
            "'other.OtherSpider'",
            "%(spider)s",
        ]
        refused(played, parts, spider=tmp_path / "other.py", SCHEDULER_FLUSH_ON_START=flush)


def test_own_enqueue(valkey: Server, key: str, tmp_path: Path) -> None:
    """A scheduler with its own way to queue ends the crawl, with one line and an exit code."""
    (tmp_path / "own.py").write_text(OWN)
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS, SCHEDULER="own.OwnScheduler")
        assert played.site.fetched == []
    assert ended.exit_code == 1
    # Scrapy's own reason is "shutdown" if start() has failed.
    assert ended.stats["finish_reason"] != "finished"
    line = ended.log.rstrip().splitlines()[-1]
    assert line.startswith("scrapy_bloom: SCHEDULER = ")
    assert "super().enqueue_request(request)" in line


UNOPENED = """
from scrapy_bloom import BloomScheduler
from scrapy_bloom.dupefilter import BloomRFPDupeFilter

class OwnScheduler(BloomScheduler):
    def open(self, spider):
        self.spider = spider
        self.df = BloomRFPDupeFilter.from_settings(spider.settings)
"""


def test_own_open(valkey: Server, key: str, tmp_path: Path) -> None:
    """A scheduler whose own `open` sets up another queue ends the crawl, with one line and an exit code."""
    (tmp_path / "own.py").write_text(UNOPENED)
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS, SCHEDULER="own.OwnScheduler", SCHEDULER_DUPEFILTER_KEY=key)
        assert played.site.fetched == []
    assert ended.exit_code == 1
    assert ended.log.rstrip().splitlines()[-1].startswith("scrapy_bloom: SCHEDULER = 'own.OwnScheduler': its open does")
