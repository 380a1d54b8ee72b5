"""Crawls whose Redis loses all data: pages held by live workers are fetched."""

import pickle
import signal
import threading
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from devtools.site import Links
from devtools.waiting import until
from scrapy_bloom.queue.inspection import inspect
from tests.support.extensions import SlowToClose, enabling
from tests.support.pages import tree
from tests.support.scenario import (
    LEASE,
    MIDDLE,
    OURS,
    PAGES,
    Kind,
    Scene,
    assert_ended_well,
    asyncio_first,
    keys_of,
    scene,
)
from tests.support.servers import Server, running

pytestmark = pytest.mark.crawl

# The number of pages found after the data were lost.
FOUND_LATER = 25

LONG: dict[str, object] = {**OURS, "BLOOMFILTER_LEASE": 30, "CONCURRENT_REQUESTS": 1}


def below(links: Links, paths: set[str]) -> set[str]:
    """Return these pages and all pages below them."""
    return paths.union(*(below(links, set(links[path])) for path in paths))


def url_of(member: bytes) -> str:
    """Return the URL of a stored request."""
    return str(pickle.loads(member)["url"])  # noqa: S301  # pickled by a crawl of this test


def test_data_lost_in_the_middle(key: str, tmp_path: Path) -> None:
    """FLUSHDB while two workers crawl: only pages known to Redis alone are missed.

    The pages held by the workers lead to the whole rest of the site, and both workers end by themselves.
    """
    gone: set[str] = set()
    with (
        running("valkey") as server,
        server.client() as client,
        scene(tree(PAGES), tmp_path, server.url, key, delay=0.1) as played,
    ):

        def forget(_: str) -> None:
            members, _ = client.pipeline().zrange(f"{key}:queue", 0, -1).flushdb().execute()
            gone.update(url_of(member).removeprefix(played.site.url) for member in members)

        played.moments.when(MIDDLE, forget)
        played.site.on["/"] = lambda _: played.opened("left", "right")
        crawls = played.crawl_by("left", "right", kind={**OURS, **LEASE}, CONCURRENT_REQUESTS=4)
        assert played.missed <= below(played.site.links, gone)
        assert keys_of(client, key) == set()
    for ended in crawls:
        assert ended.stats["finish_reason"] == "bloomfilter_queue_lost"


def test_flushed_by_a_worker_that_starts(valkey: Server, key: str, tmp_path: Path) -> None:
    """SCHEDULER_FLUSH_ON_START beside another worker: both start afresh, and no page is missed.

    The old worker takes pages again that lead to pages which it has seen. They must be fetched, since the queue is
    gone.
    """
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key, delay=0.05) as played:
        kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4}
        played.moments.when(MIDDLE, lambda _: played.start("new", kind, SCHEDULER_FLUSH_ON_START=True))
        old = played.start("old", kind)
        ended = old.wait()
        crawls = [ended, *(worker.wait() for worker in played.workers if worker is not old)]
        assert played.missed == set()
        assert len(crawls) == 2
        assert keys_of(client, key) == set()
    assert_ended_well(*crawls)


@asyncio_first
@pytest.mark.parametrize("end", ["stopped", "idle"])
def test_worker_ends_after_data_were_lost(end: str, reactor: Kind, key: str, tmp_path: Path) -> None:
    """A worker that ends soon after FLUSHDB deletes no requests that another has queued since.

    Both hold a page at that moment, and the queue is empty: no page may be missed.
    """
    links = {"/": ["/leaf", "/many"], "/leaf": [], "/many": [f"/{number}" for number in range(FOUND_LATER)]}
    links |= {path: [] for path in links["/many"]}
    with running("valkey") as server, server.client() as client, scene(links, tmp_path, server.url, key) as played:
        holders: dict[str, str] = {}
        let_go = {path: threading.Event() for path in ("/leaf", "/many")}
        slow = threading.Event()

        def hold(path: str, worker: str) -> None:
            holders[path] = worker
            let_go[path].wait(LIMIT)

        played.site.on["/"] = lambda _: played.opened("left", "right")
        played.site.on["/leaf"] = lambda worker: hold("/leaf", worker)
        played.site.on["/many"] = lambda worker: hold("/many", worker)
        # The pages found later stay in the queue until the first worker has ended.
        played.site.on |= {path: lambda _: slow.wait(LIMIT) for path in links["/many"]}
        further = enabling("ITEM_PIPELINES", SlowToClose) if end == "idle" else {}
        workers = {name: played.start(name, {**LONG, **reactor}, **further) for name in ("left", "right")}
        until(lambda: len(holders) == 2)
        # Otherwise the first page, which is not acknowledged, would be fetched again.
        until(lambda: inspect(client, f"{key}:queue").leased == 2)
        client.flushdb()
        leaving, staying = workers[holders["/leaf"]], workers[holders["/many"]]
        if end == "stopped":
            _find_more(played, let_go["/many"], key, server)
            leaving.process.send_signal(signal.SIGTERM)
            let_go["/leaf"].set()
        else:
            let_go["/leaf"].set()
            until((tmp_path / "closing").exists)
            _find_more(played, let_go["/many"], key, server)
            (tmp_path / "go").touch()
            # It ends, or takes a page.
            until(lambda: leaving.process.poll() is not None or len(played.site.fetched) == 5)
        slow.set()
        crawls = [leaving.wait(), staying.wait()]
        assert played.missed == set()
        assert keys_of(client, key) == set()
    assert {ended.stats["finish_reason"] for ended in crawls} <= {"bloomfilter_queue_lost", "shutdown"}


def _find_more(played: Scene, release: threading.Event, key: str, server: Server) -> None:
    """Release the page with many links, and wait until these are queued, except those taken ahead."""
    release.set()
    with server.client() as client:
        until(lambda: client.zcard(f"{key}:queue") >= FOUND_LATER // 2 and len(played.site.fetched) >= 4)
