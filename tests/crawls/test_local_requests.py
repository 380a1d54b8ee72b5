"""Crawls of requests that cannot be serialized: their own process crawls them."""

import signal
from pathlib import Path

import pytest

from tests.support.outcomes import assert_cleared, assert_complete
from tests.support.pages import tree
from tests.support.scenario import LEASE, OURS, PAGES, Kind, scene
from tests.support.selection import long_unless
from tests.support.servers import Server
from tests.support.spiders import local_links

# A lambda, a closure, a partial, and an object in meta: half of the pages.
KINDS = 4


def test_each_kind(valkey: Server, key: str, tmp_path: Path) -> None:
    """Every page is fetched, and each callback has one warning."""
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = local_links.__file__
        crawl = played.crawl(OURS)
        assert_cleared(played, crawl)
        assert played.twice == 0
    local = sum(page % (2 * KINDS) < KINDS for page in range(1, PAGES))
    assert crawl.stats["scheduler/unserializable"] == local
    assert crawl.stats["scheduler/enqueued/redis"] == crawl.stats["scheduler/dequeued/redis"] == PAGES - local
    assert crawl.log.count("cannot be serialized: ") == KINDS
    assert f"{local} requests could not be serialized: this process crawled them itself" in crawl.log


@pytest.mark.parametrize(
    "serializer",
    long_unless(lambda name: name.endswith("serializer"), ["scrapy_redis.picklecompat", "scrapy_bloom.serializer"]),
)
@pytest.mark.parametrize("page", ["/page/8", "/page/40"], ids=["of-a-local-one", "of-the-queue"])
def test_killed_while_one_runs(page: str, serializer: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A worker is killed while it runs one: the other one fetches the pages before it again, and so every page."""
    kind: Kind = {**OURS, **LEASE, "SCHEDULER_SERIALIZER": serializer, "CONCURRENT_REQUESTS": 4}
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = local_links.__file__

        def kill(worker: str) -> None:
            del played.site.on[page]
            played.opened("left", "right")
            workers[worker].kill()

        played.site.on[page] = kill
        workers = {name: played.start(name, kind) for name in ("left", "right")}
        by_code = {crawl.exit_code: crawl for crawl in [worker.wait() for worker in played.workers]}
        assert by_code.keys() == {-signal.SIGKILL, 0}
        assert_cleared(played, by_code[0])
        assert by_code[0].stats["bloomfilter/recovered"] > 0


def test_stopped_while_some_wait(valkey: Server, key: str, tmp_path: Path) -> None:
    """A stopped worker forgets some, and the next worker fetches the pages that led to them again."""
    kind: Kind = {**OURS, "SCHEDULER_PERSIST": True, "CONCURRENT_REQUESTS": 1}
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = local_links.__file__
        worker = played.start("stopped", kind)
        played.site.on["/page/1"] = lambda _: worker.process.send_signal(signal.SIGTERM)
        stopped = worker.wait()
        assert stopped.stats["finish_reason"] == "shutdown"
        assert "2 requests could not be serialized and were not crawled: the pages that led to them" in stopped.log
        del played.site.on["/page/1"]
        assert_complete(played, played.crawl(kind, "later"))
        assert (played.fetched["/"], played.fetched["/page/2"]) == (2, 1)


def test_one_that_fails(valkey: Server, key: str, tmp_path: Path) -> None:
    """It is retried, but BLOOMFILTER_RETRY_FAILED cannot keep it, and a warning says so."""
    kind: Kind = {**OURS, "BLOOMFILTER_RETRY_FAILED": True, "RETRY_TIMES": 1}
    with scene(tree(4), tmp_path, valkey.url, key) as played:
        played.spider = local_links.__file__
        played.site.answers["/page/1"] = None
        crawl = played.crawl(kind)
        assert played.missed == {"/page/1"}
        assert played.keys == set()
    assert crawl.stats["retry/count"] == 1
    assert "bloomfilter/failed" not in crawl.stats
    assert crawl.log.count("/page/1> failed, and is not kept for the next run: it cannot be serialized") == 1
