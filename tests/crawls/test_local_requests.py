"""Crawls of requests that cannot be serialized: their own process crawls them."""

import re
import signal
from pathlib import Path

from tests.support.outcomes import assert_cleared, assert_ended_well
from tests.support.pages import tree
from tests.support.scenario import LEASE, OURS, PAGES, Kind, Scene, scene
from tests.support.servers import Server
from tests.support.spiders import local_links


def test_each_kind(valkey: Server, key: str, tmp_path: Path) -> None:
    """Every page is fetched, and each callback has one warning."""
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = local_links.__file__
        crawl = played.crawl(OURS)
        assert_cleared(played, crawl)
        assert played.twice == 0
    local = sum(map(local_links.is_local, played.site.links))
    assert crawl.stats["scheduler/unserializable"] == local
    assert crawl.stats["scheduler/enqueued/redis"] == crawl.stats["scheduler/dequeued/redis"] == PAGES - local
    assert crawl.log.count("cannot be serialized: ") == local_links.WAYS
    assert f"{local} requests could not be serialized: this process crawled them itself" in crawl.log


def test_killed_while_one_runs(valkey: Server, key: str, tmp_path: Path) -> None:
    """A killed worker loses those that it had in memory, and what only they lead to; all other pages are fetched."""
    kind: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4}
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = local_links.__file__

        def kill(worker: str) -> None:
            del played.site.on["/page/8"]
            played.opened("left", "right")
            workers[worker].kill()

        played.site.on["/page/8"] = kill
        workers = {name: played.start(name, kind) for name in ("left", "right")}
        by_code = {crawl.exit_code: crawl for crawl in [worker.wait() for worker in played.workers]}
        assert by_code.keys() == {-signal.SIGKILL, 0}
        assert_behind_local(played)
        assert by_code[0].stats["bloomfilter/recovered"] > 0
        assert played.keys == set()


def assert_behind_local(played: Scene) -> None:
    """Assert that each missed page is a local one, or one that only such a page, or a missed one, leads to."""
    for missed in played.missed:
        parents = {path for path, links in played.site.links.items() if missed in links}
        lost = {path for path in parents if local_links.is_local(path) or path in played.missed}
        assert local_links.is_local(missed) or lost == parents


def test_stopped_while_some_wait(valkey: Server, key: str, tmp_path: Path) -> None:
    """A stopped worker says how many end with it; the others wait for the next one."""
    kind: Kind = {**OURS, "SCHEDULER_PERSIST": True, "CONCURRENT_REQUESTS": 1}
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = local_links.__file__
        worker = played.start("stopped", kind)
        played.site.on["/page/1"] = lambda _: worker.process.send_signal(signal.SIGTERM)
        stopped = worker.wait()
        assert stopped.stats["finish_reason"] == "shutdown"
        dropped = re.search(r"(\d+) requests? could not be serialized and were not crawled: they end with", stopped.log)
        assert dropped
        assert int(dropped[1]) > 0
        del played.site.on["/page/1"]
        assert_ended_well(played.crawl(kind, "later"))
        assert_behind_local(played)
        assert played.twice == 0


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
