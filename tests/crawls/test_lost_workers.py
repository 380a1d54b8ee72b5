"""Crawls whose workers are killed, stopped, or leave early: every page is fetched.

In the trees each page is linked once: a lost request is a missed page, and so are all pages below it. Of a real site
only the lost pages are missed, because other pages link to those below.
"""

import itertools
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT, Crawl
from devtools.site import Links
from tests.support import command, real_links
from tests.support.killing import crawl_with_killed_workers
from tests.support.outcomes import assert_complete, assert_ended_well, complaints_in, keys_of_the_filter, tell
from tests.support.pages import tree
from tests.support.scenario import LEASE, MIDDLE, OURS, PAGES, STOCK, Kind, Scene, asyncio_first, keys_of, scene
from tests.support.servers import Server
from tests.support.spiders import deadly, storing
from tests.support.spiders.storing import StoringPipeline
from tests.support.waiting import until

TREE, REAL = tree(600), real_links.site()


@pytest.mark.parametrize(
    "crew",
    [
        pytest.param((TREE, 2), id="tree-2", marks=pytest.mark.long),
        pytest.param((TREE, 4), id="tree-4"),
        pytest.param((REAL, 2), id="real-2", marks=pytest.mark.long),
    ],
)
def test_workers_killed(
    crew: tuple[Links, int], valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers are killed at random moments and replaced: no page is missed."""
    links, workers = crew
    # The published figures have this lease.
    kind = {**OURS, "BLOOMFILTER_LEASE": 2}
    crawls, played = crawl_with_killed_workers(links, kind, valkey, key, tmp_path, workers=workers, kills=4)
    recovered = sum(ended.stats.get("bloomfilter/recovered", 0) for ended in crawls)
    tell(
        capsys,
        f"{workers} workers, 4 times one killed and replaced: BloomScheduler missed {len(played.missed)} of "
        f"{len(links)}, {played.twice} fetched twice, {recovered} put back",
    )
    assert played.missed == set()
    survivors = [ended for ended in crawls if ended.exit_code != -signal.SIGKILL]
    assert len(survivors) >= workers
    assert_ended_well(*survivors)
    assert recovered > 0
    with valkey.client() as client:
        of_crawl = {f"{{{key}:queue}}:{name}" for name in ("crawl", "departed")}
        assert keys_of(client, key) - of_crawl == keys_of_the_filter(client, key)


@pytest.mark.long
@pytest.mark.parametrize("links", [TREE, REAL], ids=["tree", "real"])
def test_workers_killed_under_scrapy_redis(
    links: Links, valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: the requests held by a killed worker are never fetched."""
    _, played = crawl_with_killed_workers(links, STOCK, valkey, key, tmp_path, workers=2, kills=1)
    tell(capsys, f"2 workers, one killed and replaced: scrapy-redis missed {len(played.missed)} of {len(links)}")
    assert played.missed


def test_killed_in_an_item_pipeline(valkey: Server, key: str, tmp_path: Path) -> None:
    """A request is acknowledged only after the item pipelines: a worker killed there loses no item.

    The killed worker waits at the item until the requests of twenty others are done.
    """
    stored = tmp_path / "stored.txt"
    kind: Kind = {**OURS, **LEASE, "SCHEDULER_PERSIST": True, "STORED": stored, "DEADLY": "/page/5"}
    kind["CONCURRENT_REQUESTS"] = 4
    pipelines = f'{{"{StoringPipeline.__module__}.{StoringPipeline.__qualname__}": 0}}'
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = storing.__file__
        assert played.crawl(kind, "killed", ITEM_PIPELINES=pipelines).exit_code == -signal.SIGKILL
        assert len(stored.read_text().split()) < PAGES
        assert_ended_well(played.crawl(kind, "heir", ITEM_PIPELINES=pipelines))
        assert set(stored.read_text().split()) == set(played.site.links)


@asyncio_first
def test_ctrl_c_during_an_outage(reactor: Kind, durable: Server, key: str, tmp_path: Path) -> None:
    """A crawl stopped while Redis is unreachable ends; the next one fetches all remaining pages.

    It does not wait as long as an active crawl would, which is longer than this test waits.
    """
    settings: Kind = {"SCHEDULER_PERSIST": True, "BLOOMFILTER_RETRY_TIMEOUT": 10 * LIMIT, **LEASE, **reactor}
    settings["CONCURRENT_REQUESTS"] = 4
    with scene(tree(PAGES), tmp_path, durable.url, key) as played:
        played.moments.when(MIDDLE, lambda _: durable.kill())
        worker = played.start("first", OURS, **settings)
        until(lambda: complaints_in(played.log("first")))
        worker.process.send_signal(signal.SIGINT)
        first = worker.wait()
        assert first.stats["finish_reason"] == "shutdown"
        assert "Traceback" not in first.log
        assert played.missed
        assert "could not leave the queue" in first.log
        assert first.exit_code == 1
        # The requests whose links were not delivered are leased, and wait again.
        durable.start()
        second = played.crawl(OURS, "second", **settings)
        assert_complete(played, second)
        assert max(played.fetched.values()) <= 2


@pytest.mark.parametrize("kind", [OURS, pytest.param(STOCK, marks=pytest.mark.long)], ids=["ours", "scrapy-redis"])
def test_first_to_finish_clears_nothing(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """With SCHEDULER_PERSIST=False the last worker, and no other, clears all keys.

    The control: under scrapy-redis the first worker to finish deletes the queue that the other uses.
    """
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        # A scrapy-redis worker that finds the queue empty leaves, so the queue must hold requests.
        played.crawl(kind, "first", SCHEDULER_PERSIST=True, CLOSESPIDER_PAGECOUNT=2, CONCURRENT_REQUESTS=1)
        both, alone = threading.Event(), threading.Event()
        arrived: Counter[str] = Counter()
        slow = played.site.before

        def meet(worker: str) -> None:
            slow(worker)
            arrived[worker] += 1
            if len(arrived) == 2:
                both.set()
            both.wait(LIMIT)
            if worker == "right" and arrived[worker] > 10:
                alone.wait(LIMIT)

        played.site.before = meet
        left = played.start("left", kind, CONCURRENT_REQUESTS=1, CLOSESPIDER_PAGECOUNT=10)
        right = played.start("right", kind, CONCURRENT_REQUESTS=1)
        assert left.wait().stats["finish_reason"] == "closespider_pagecount"
        rest = keys_of(client, key)
        alone.set()
        ended = right.wait()
        assert bool(played.missed) == (kind is STOCK)
        if kind is OURS:
            assert {key, f"{key}:queue"} <= rest
            assert [each for each in rest if each.endswith(":1:0")]
            assert played.twice == 0
            assert_ended_well(ended)
            assert keys_of(client, key) == set()


# A page that kills each worker that takes it: this page alone is dead-lettered.


DEADLY = "/page/100"
DEATHS = 3
# Pages ahead of the deadly one in the same worker, or running beside it.
MANY_AT_ONCE: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4, "DEADLY": DEADLY, "SCHEDULER_PERSIST": True}


def crawl_with_heirs(played: Scene, **settings: object) -> list[Crawl]:
    """Two workers crawl; dead workers are replaced, up to the allowed number of deaths."""
    names = (f"worker-{number}" for number in itertools.count())
    running = [played.start(next(names), MANY_AT_ONCE, **settings) for _ in range(2)]
    ended = []
    while running:
        crawl = running.pop(0).wait()
        ended.append(crawl)
        if crawl.exit_code == -signal.SIGKILL and len(ended) < 4 * DEATHS:
            running.append(played.start(next(names), MANY_AT_ONCE, **settings))
    return ended


def test_page_that_kills_its_process(valkey: Server, key: str, tmp_path: Path) -> None:
    """A deadly page kills the allowed number of workers, is logged and kept; all others are fetched.

    Requests prefetched with it, or running beside it, are not dead-lettered.
    """
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = deadly.__file__
        ended = crawl_with_heirs(played, BLOOMFILTER_MAX_DELIVERIES=DEATHS)
        deaths = [crawl for crawl in ended if crawl.exit_code == -signal.SIGKILL]
        assert len(deaths) == DEATHS
        assert_ended_well(*(crawl for crawl in ended if crawl not in deaths))
        told = [line for crawl in ended for line in complaints_in(crawl.log) if "died while they held it" in line]
        assert len(told) == 1
        assert f"<GET {played.site.url}{DEADLY}>: BLOOMFILTER_MAX_DELIVERIES workers" in told[0]
        assert played.missed <= {DEADLY}
        assert client.zcard(f"{{{key}:queue}}:dead-letter") == 1
        # A worker that starts leaves it there.
        assert_ended_well(played.crawl(MANY_AT_ONCE, "later"))
        assert client.zcard(f"{{{key}:queue}}:dead-letter") == 1
        # With other code it can be fetched.
        done = command.run("requeue", "--queue", f"{key}:queue", "--redis-url", valkey.url, cwd=tmp_path)
        assert done.returncode == 0
        before = played.fetched[DEADLY]
        assert_ended_well(played.crawl(MANY_AT_ONCE, "mended", DEADLY="/nowhere"))
        assert played.fetched[DEADLY] == before + 1
        assert client.hlen(f"{{{key}:queue}}:deaths") == 0


@pytest.mark.long
def test_page_that_holds_the_interpreter(valkey: Server, key: str, tmp_path: Path) -> None:
    """A callback that blocks heartbeats runs on the allowed number of workers only, and is a dead letter."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = deadly.__file__
        kind = {**MANY_AT_ONCE, "BLOOMFILTER_LEASE": 1, "BLOOMFILTER_MAX_DELIVERIES": 2, "HELD": 6}
        assert_complete(played, *played.crawl_by("left", "right", kind=kind))
        assert played.fetched[DEADLY] == 2
        assert client.zcard(f"{{{key}:queue}}:dead-letter") == 1
