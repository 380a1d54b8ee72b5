"""Crawls by BloomScheduler in difficult setups: fed, flooded, in a cluster, by several workers."""

import threading
import time
from pathlib import Path

import pytest
import redis

from devtools.crawl_process import LIMIT
from devtools.waiting import until
from scrapy_bloom.delivery import MAX_PAUSE
from scrapy_bloom.queue.inspection import RegisteredWorker, inspect
from tests.support.pages import chain, tree
from tests.support.scenario import (
    FILTER_ALONE,
    LEASE,
    OURS,
    PAGES,
    SLOWER_THAN_SCRAPY,
    Kind,
    assert_ended_well,
    asyncio_first,
    complaints_in,
    keys_of,
    scene,
)
from tests.support.servers import Server
from tests.support.spiders import flood

KEEP: Kind = {"SCHEDULER_PERSIST": True}


def workers_of(client: redis.Redis, key: str) -> tuple[RegisteredWorker, ...]:
    """The registered workers of a crawl."""
    return inspect(client, f"{key}:queue").workers


@pytest.mark.parametrize("order", [1, pytest.param(-1, marks=pytest.mark.long)])
def test_depth_priority(order: int, valkey: Server, key: str, tmp_path: Path) -> None:
    """DEPTH_PRIORITY = 1 fetches a site level by level, -1 depth first."""
    settings: Kind = {**OURS, "DEPTH_PRIORITY": order, "CONCURRENT_REQUESTS": 1}
    with scene(tree(22), tmp_path, valkey.url, key, delay=SLOWER_THAN_SCRAPY) as played:
        assert_ended_well(played.crawl(settings))
        pages = [int(path.rpartition("/")[2] or 0) for path in played.site.paths]
    depths = [sum(page >= first for first in (1, 4, 13)) for page in pages]
    assert len(depths) == 22
    if order > 0:
        assert depths == sorted(depths)
    else:
        assert depths.index(3) < 10


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


def test_changing_between_schedulers(valkey: Server, key: str, tmp_path: Path) -> None:
    """A crawl can switch between scrapy-redis's Scheduler and BloomScheduler."""
    kinds = {"first": FILTER_ALONE, "second": OURS, "third": FILTER_ALONE, "fourth": OURS}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        for name, kind in kinds.items():
            part: Kind = {**KEEP, "CONCURRENT_REQUESTS": 2, "CLOSESPIDER_PAGECOUNT": 20} if name != "fourth" else {}
            ended = played.crawl({**kind, **part}, name)
            assert "Traceback" not in ended.log
        assert played.missed == set()
        assert played.twice == 0
        assert keys_of(client, key) == set()


@pytest.mark.long
def test_idle_workers_do_not_ask_more_and_more(valkey: Server, key: str, tmp_path: Path) -> None:
    """A worker that waits for another one polls at a constant rate, however long it waits."""
    release = threading.Event()
    with valkey.client() as client, scene(chain(3), tmp_path, valkey.url, key) as played:
        played.site.on["/page/1"] = lambda _: release.wait(LIMIT)
        workers = [played.start(name, OURS) for name in ("left", "right")]
        until(lambda: len(workers_of(client, key)) == 2 and "/page/1" in played.site.paths)

        def asked() -> int:
            """Count how often a worker has listed the others."""
            stats = client.info("commandstats")
            return sum(int(stats.get(name, {"calls": 0})["calls"]) for name in ("cmdstat_eval", "cmdstat_evalsha"))

        begin, before = time.monotonic(), asked()
        # Eight heartbeats of the engine, each of which once began another round of polls.
        until(lambda: time.monotonic() > begin + 4)
        found = asked() - before
        # Each of both asks at most once in the longest pause.
        assert found <= 2 * (time.monotonic() - begin) / MAX_PAUSE + 10
        release.set()
        assert_ended_well(*(worker.wait() for worker in workers))
