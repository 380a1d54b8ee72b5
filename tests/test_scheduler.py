"""BloomScheduler where little fails but little is simple: fed, flooded, in a cluster, in turns with scrapy-redis's."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from scrapy.settings import Settings

from scrapy_bloom import BloomScheduler
from scrapy_bloom.errors import ConfigError
from tests import crawling, spider_fed, spider_flood
from tests.faults import chain, tree, until
from tests.scenes import (
    FILTER_ALONE,
    LEASE,
    MIDDLE,
    OURS,
    PAGES,
    Kind,
    assert_ended_well,
    complaints_in,
    keys_of,
    scene,
)
from tests.servers import Server, free_port, running

KEEP: Kind = {"SCHEDULER_PERSIST": True}


@pytest.mark.parametrize(
    ("setting", "value", "instead"),
    [
        ("SCHEDULER_QUEUE_CLASS", "scrapy_redis.queue.FifoQueue", "scrapy_redis.queue.PriorityQueue"),
        ("SCHEDULER_QUEUE_CLASS", "scrapy_redis.queue.LifoQueue", "scrapy_redis.queue.PriorityQueue"),
        ("DUPEFILTER_CLASS", "scrapy_redis.dupefilter.RFPDupeFilter", "scrapy_bloom.BloomRFPDupeFilter"),
        ("DUPEFILTER_CLASS", "scrapy.dupefilters.RFPDupeFilter", "scrapy_bloom.BloomRFPDupeFilter"),
    ],
)
def test_unfit_parts_are_refused(setting: str, value: str, instead: str) -> None:
    """A queue or a filter that it cannot work with is an error that says why and what to set, before any connection."""
    settings = Settings({"DUPEFILTER_CLASS": crawling.BLOOM, "REDIS_URL": "redis://127.0.0.1:1", setting: value})
    with pytest.raises(ConfigError) as raised:
        BloomScheduler.from_settings(settings)
    assert f"{setting} = {value!r}" in str(raised.value)
    assert instead in str(raised.value)


@pytest.mark.parametrize("queue", [None, "scrapy_redis.queue.PriorityQueue", "scrapy_redis.queue.SpiderPriorityQueue"])
def test_fit_parts(valkey: Server, queue: str | None) -> None:
    """Its own filter and scrapy-redis's queue, by either of its names, or by its default, are taken."""
    settings = Settings({"DUPEFILTER_CLASS": crawling.BLOOM, "REDIS_URL": valkey.url})
    if queue is not None:
        settings.set("SCHEDULER_QUEUE_CLASS", queue)
    with contextlib.closing(BloomScheduler.from_settings(settings).server) as server:
        assert server.ping()


# How long a command may take: the setting's value, and what becomes of it.
TIMEOUTS: dict[str, tuple[dict[str, object], str, float]] = {
    "by default": ({}, "", 5),
    "REDIS_PARAMS": ({"REDIS_PARAMS": {"socket_timeout": 30}}, "", 30),
    "REDIS_URL": ({}, "?socket_timeout=7", 7),
    "both": ({"REDIS_PARAMS": {"socket_timeout": 9}}, "?socket_timeout=7", 7),
}


@pytest.mark.parametrize("way", TIMEOUTS)
def test_reactor_is_not_blocked_for_long(way: str, valkey: Server, key: str) -> None:
    """A command waits 5 s for its answer unless the user says otherwise, in either way."""
    given, query, expected = TIMEOUTS[way]
    settings = Settings({"DUPEFILTER_CLASS": crawling.BLOOM, "REDIS_URL": valkey.url + query, **given})
    with contextlib.closing(BloomScheduler.from_settings(settings).server) as server:
        assert server.connection_pool.connection_kwargs["socket_timeout"] == expected
    assert key not in settings


def test_redis_spider_goes_on_reading(valkey: Server, key: str, tmp_path: Path) -> None:
    """A worker that has nothing to do while another holds work does not finish, and still reads its start key."""
    start_key = f"{key}:queue:start_urls"
    held, release = threading.Event(), threading.Event()
    settings: Kind = {**OURS, "REDIS_START_URLS_KEY": start_key, "MAX_IDLE_TIME_BEFORE_CLOSE": 1}
    with valkey.client() as client, scene(tree(40), tmp_path, valkey.url, key) as played:
        played.spider = spider_fed.__file__
        by: dict[str, str] = {}

        def hold(worker: str) -> None:
            by["held"] = worker
            held.set()
            release.wait(crawling.LIMIT)

        played.site.on["/page/1"] = hold
        client.rpush(start_key, "/page/1")
        workers = {name: played.start(name, settings) for name in ("left", "right")}
        assert held.wait(crawling.LIMIT)
        idle = "left" if by["held"] == "right" else "right"
        until(lambda: client.zcard(f"{key}:queue:workers") == 2)
        # By then it has been idle for longer than it may be where nobody holds work.
        begin = time.monotonic()
        until(lambda: time.monotonic() > begin + 2)
        client.rpush(start_key, "/page/2", "/page/3")
        until(lambda: (idle, "/page/2") in played.site.fetched)
        release.set()
        assert_ended_well(*(worker.wait() for worker in workers.values()))
        assert played.missed == {"/"}
        assert played.twice == 0
        assert keys_of(client, key) == set()


REACTORS = {
    "asyncio": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "select": "twisted.internet.selectreactor.SelectReactor",
}


@pytest.mark.parametrize("reactor", REACTORS)
def test_start_is_held_back(reactor: str, durable: Server, key: str, tmp_path: Path) -> None:
    """While Redis is away no more is taken from start() than fits into a batch; later all of it is fetched."""
    given = tmp_path / "given"
    with scene(chain(1), tmp_path, durable.url, key, delay=0) as played:
        played.spider = spider_flood.__file__
        played.moments.when(10, lambda _: durable.kill())
        worker = played.start("worker", {**OURS, **LEASE, "TWISTED_REACTOR": REACTORS[reactor]})
        until(lambda: complaints_in(played.log("worker")))
        before = int(given.read_text())
        # Its thread has tried three times since.
        until(lambda: played.log("worker").count("No sign of life") >= 3)
        assert int(given.read_text()) <= before + 100 < spider_flood.NUMBER / 2
        durable.start()
        ended = worker.wait()
        assert len(played.fetched) == spider_flood.NUMBER + 1
    assert_ended_well(ended)


def test_changing_between_schedulers(valkey: Server, key: str, tmp_path: Path) -> None:
    """A crawl may go from scrapy-redis's Scheduler to BloomScheduler and back, with the same queue and filter."""
    kinds = {"first": FILTER_ALONE, "second": OURS, "third": FILTER_ALONE, "fourth": OURS}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        for name, kind in kinds.items():
            part: Kind = {**KEEP, "CONCURRENT_REQUESTS": 2, "CLOSESPIDER_PAGECOUNT": 20} if name != "fourth" else {}
            ended = played.crawl({**kind, **part}, name)
            assert "Traceback" not in ended.log
        assert played.missed == set()
        assert played.twice == 0
        assert keys_of(client, key) == set()


def test_unreadable_request(valkey: Server, key: str, tmp_path: Path) -> None:
    """A request that cannot be read is told of and kept for a spider that can; the others are fetched."""
    with valkey.client() as client, scene(tree(13), tmp_path, valkey.url, key) as played:
        played.moments.when(2, lambda _: client.zadd(f"{key}:queue", {b"not a request": -5}))
        ended = played.crawl({**OURS, **KEEP})
        assert played.missed == set()
        assert client.zrange(f"{key}:queue:unreadable", 0, -1) == [b"not a request"]
        assert ended.stats["finish_reason"] == "finished"
        assert "cannot be read" in ended.log


def test_unreadable_requests_keep_nobody(valkey: Server, key: str, tmp_path: Path) -> None:
    """Two workers with requests that they cannot read do not wait for each other; a third one tries again."""
    with valkey.client() as client, scene(tree(40), tmp_path, valkey.url, key, delay=0.05) as played:
        unreadable = {b"not a request %d" % number: -5 for number in range(20)}
        played.moments.when(2, lambda _: client.zadd(f"{key}:queue", unreadable))
        workers = [played.start(name, {**OURS, **KEEP}) for name in ("left", "right")]
        crawls = [worker.wait() for worker in workers]
        assert played.missed == set()
        assert {ended.stats["finish_reason"] for ended in crawls} == {"finished"}
        assert client.zcard(f"{key}:queue:unreadable") == 20
        third = played.crawl({**OURS, **KEEP}, "third")
        assert third.log.count("cannot be read") == 20


def test_idle_workers_do_not_ask_more_and_more(valkey: Server, key: str, tmp_path: Path) -> None:
    """A worker that waits for another one asks as often as it always did, however long it waits."""
    release = threading.Event()
    with valkey.client() as client, scene(chain(3), tmp_path, valkey.url, key) as played:
        played.site.on["/page/1"] = lambda _: release.wait(crawling.LIMIT)
        workers = [played.start(name, OURS) for name in ("left", "right")]
        until(lambda: client.zcard(f"{key}:queue:workers") == 2 and "/page/1" in played.site.paths)

        def asked() -> int:
            """How often a worker has listed the others."""
            return int(client.info("commandstats").get("cmdstat_eval", {"calls": 0})["calls"])

        begin, before = time.monotonic(), asked()
        # Three heartbeats of the engine, each of which began another round of questions once.
        until(lambda: time.monotonic() > begin + 16)
        assert asked() - before <= 16 * 2 + 10
        release.set()
        assert_ended_well(*(worker.wait() for worker in workers))


@pytest.fixture
def cluster() -> Iterator[Server]:
    """A node of a cluster of three, which all of them know."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for _ in range(3):
            bus = free_port()
            options = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--appendonly", "yes")
            nodes.append((stack.enter_context(running("valkey", *options)), bus))
        clients = [stack.enter_context(node.client()) for node, _ in nodes]
        for number, client in enumerate(clients):
            client.cluster("addslotsrange", number * 5461, min(16383, number * 5461 + 5460 + (number == 2)))
            client.cluster("meet", "127.0.0.1", nodes[0][0].port, nodes[0][1])
        until(lambda: all(client.cluster("info")["cluster_state"] == "ok" for client in clients))
        until(lambda: all(client.cluster("info")["cluster_known_nodes"] == "3" for client in clients))
        yield nodes[0][0]


def test_cluster(cluster: Server, key: str, tmp_path: Path) -> None:
    """Over a cluster of three nodes two workers fetch every page, also when one of them is killed, and clear all."""
    settings = {**OURS, **LEASE, "REDIS_PARAMS": json.dumps({"redis_cls": "redis.RedisCluster"})}
    with scene(tree(PAGES), tmp_path, cluster.url, key, delay=0.05) as played:
        workers = {name: played.start(name, settings) for name in ("left", "right")}
        played.moments.when(MIDDLE, lambda name: workers[name].process.kill())
        crawls = {name: worker.wait() for name, worker in workers.items()}
        assert played.missed == set()
    survivors = [ended for ended in crawls.values() if ended.exit_code == 0]
    assert_ended_well(*survivors)
    assert len(survivors) == 1
    with redis.RedisCluster.from_url(cluster.url) as client:
        assert list(client.scan_iter(match=f"{key}*")) == []
