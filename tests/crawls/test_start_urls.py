"""Crawls fed by Redis, with killed and stopped workers and outages: no start URL is lost."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devtools.crawl_process import LIMIT
from devtools.site import path_of
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.start_data import data_of
from tests.support.clusters import Cluster, running_cluster
from tests.support.outcomes import assert_complete, assert_ended_well, complaints_in, number_kept
from tests.support.scenario import FILTER_ALONE, LEASE, OURS, Kind, Scene, scene
from tests.support.servers import Server
from tests.support.spiders import started, stock_started
from tests.support.waiting import until

NUMBER = 40
PATHS = [path_of(page) for page in range(NUMBER)]
SPIDERS = {"ours": started.__file__, "scrapy-redis": stock_started.__file__}


class FedScene:
    """A site of unlinked pages, and a start key with their URLs."""

    def __init__(self, played: Scene, client: Any, key: str, directory: Path) -> None:
        self.played, self.client = played, client
        self.start, self.queue = f"{key}:start", f"{key}:queue"
        self._signals = directory / "signals"

    def settings(self, **more: object) -> Kind:
        """The settings of each worker, which ends after a second without work."""
        return {**OURS, **LEASE, "REDIS_START_URLS_KEY": self.start, "MAX_IDLE_TIME_BEFORE_CLOSE": 1, **more}

    def send(self, path: str, *signals: int) -> None:
        """Let these signals be sent to the workers that open a path."""
        self._signals.write_text(" ".join((path, *(str(int(number)) for number in signals))))

    @property
    def waiting(self) -> list[str]:
        """The start URLs that wait in the list."""
        return [path.decode() for path in self.client.lrange(self.start, 0, -1)]

    @property
    def dead_letters(self) -> set[str]:
        """The start URLs that are dead letters."""
        members = self.client.zrange(QueueKeys(self.queue).dead_letters, 0, -1)
        return {data_of(member)[1].decode() for member in members}


@contextmanager
def fed_scene(server: Server | Cluster, key: str, directory: Path, whose: str = "ours") -> Iterator[FedScene]:
    """A scene fed by a start key."""
    links: dict[str, list[str]] = {path: [] for path in PATHS}
    with server.client() as client, scene(links, directory, server.url, key) as played:
        played.spider = SPIDERS[whose]
        yield FedScene(played, client, key, directory)


WORKERS = [
    ("ours", "zset", "1"),
    ("scrapy-redis", "list", "1"),
    pytest.param(("scrapy-redis", "set", "3"), marks=pytest.mark.long),
]


@pytest.mark.parametrize("worker", WORKERS, ids="-".join)
def test_worker_killed(worker: tuple[str, str, str], valkey: Server, key: str, tmp_path: Path) -> None:
    """A worker is killed between its start URLs and their requests: another one fetches all of them."""
    whose, kind, partitions = worker
    with fed_scene(valkey, key, tmp_path, whose) as fed:
        if kind == "zset":
            fed.client.zadd(fed.start, {path: -place for place, path in enumerate(PATHS)})
        else:
            (fed.client.rpush if kind == "list" else fed.client.sadd)(fed.start, *PATHS)
        fed.send(PATHS[7], signal.SIGKILL)
        settings = fed.settings(BLOOMFILTER_PARTITIONS=partitions, SCHEDULER_PERSIST=True)
        settings[f"REDIS_START_URLS_AS_{kind.upper()}"] = 1
        assert fed.played.crawl(settings, "first").exit_code == -signal.SIGKILL
        assert_complete(fed.played, fed.played.crawl(settings, "second"))


def test_dead_letters(valkey: Server, key: str, tmp_path: Path) -> None:
    """A start URL that kills workers, and one that raises, become dead letters, and the others are fetched."""
    with fed_scene(valkey, key, tmp_path) as fed:
        deadly, *others = PATHS
        fed.client.rpush(fed.start, *others[:9], deadly, started.BAD, *others[9:])
        fed.send(deadly, signal.SIGKILL, signal.SIGKILL)
        settings = fed.settings(BLOOMFILTER_MAX_DELIVERIES=2, SCHEDULER_PERSIST=True)
        for name in ("first", "second"):
            assert fed.played.crawl(settings, name).exit_code == -signal.SIGKILL
        ended = fed.played.crawl(settings, "third")
        assert fed.played.missed == {deadly}
        assert fed.dead_letters == {deadly, started.BAD}
    assert ended.stats["finish_reason"] == "finished"
    (error,) = [line for line in complaints_in(ended.log) if repr(started.BAD.encode()) in line]
    assert "ValueError: it makes no sense" in error


def test_stopped(valkey: Server, key: str, tmp_path: Path) -> None:
    """A stopped worker gives the start URLs that it has leased, and not opened, back in their order."""
    with fed_scene(valkey, key, tmp_path) as fed:
        fed.client.rpush(fed.start, *PATHS)
        fed.send(PATHS[2], signal.SIGTERM)
        settings = fed.settings(SCHEDULER_PERSIST=True)
        # Opens one start URL between two pages.
        stopped = fed.played.crawl(settings, "first", BLOOMFILTER_BATCH_SIZE=1, CONCURRENT_REQUESTS=1)
        assert stopped.stats["finish_reason"] == "shutdown"
        assert NUMBER - 16 < len(fed.waiting) < NUMBER
        assert fed.waiting == PATHS[-len(fed.waiting) :]
        assert_complete(fed.played, fed.played.crawl(settings, "second"))
        assert fed.played.twice == 0


def test_redis_killed(durable: Server, key: str, tmp_path: Path) -> None:
    """Redis is unreachable for a second: the worker waits, then continues."""
    with fed_scene(durable, key, tmp_path) as fed:
        fed.client.rpush(fed.start, *PATHS)
        with fed.played.outage(durable, 1, at=20):
            ended = fed.played.crawl(fed.settings())
        assert_complete(fed.played, ended)
        assert fed.waiting == []


def test_idle_worker(valkey: Server, key: str, tmp_path: Path) -> None:
    """An idle worker beside a busy one does not finish, and opens new start URLs."""
    with fed_scene(valkey, key, tmp_path) as fed:
        held, release = fed.played.hold(PATHS[0])
        fed.client.rpush(fed.start, PATHS[0])
        busy = fed.played.start("busy", fed.settings(SCHEDULER_PERSIST=True))
        assert held.wait(LIMIT)
        idle = fed.played.start("idle", fed.settings(SCHEDULER_PERSIST=True))
        until(lambda: "idle and waits for others" in fed.played.log("idle"))
        fed.client.rpush(fed.start, *PATHS[1:])
        until(lambda: len(fed.played.fetched) == NUMBER - 1)
        release.set()
        assert_complete(fed.played, busy.wait(), idle.wait())
        assert fed.played.twice == 0
        assert number_kept(fed.client, fed.queue) == 0


def test_wrong_type(valkey: Server, key: str, tmp_path: Path) -> None:
    """A start key of another type ends the crawl with advice, in its last line."""
    with fed_scene(valkey, key, tmp_path) as fed:
        fed.client.sadd(fed.start, *PATHS)
        ended = fed.played.crawl(fed.settings())
        assert ended.stats["finish_reason"] == "bloomfilter_error"
        assert ended.exit_code == 1
        assert "set REDIS_START_URLS_AS_SET" in ended.log.splitlines()[-1]
        assert fed.client.scard(fed.start) == NUMBER


def test_under_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """Under scrapy-redis's scheduler start URLs are popped as there."""
    with fed_scene(valkey, key, tmp_path) as fed:
        fed.client.rpush(fed.start, *PATHS)
        ended = fed.played.crawl(fed.settings(**FILTER_ALONE))
        assert fed.played.missed == set()
        assert_ended_well(ended)


@pytest.mark.parametrize("partitions", [1, pytest.param(3, marks=pytest.mark.long)])
def test_cluster(partitions: int, tmp_path: Path) -> None:
    """On a cluster the default keys are refused; with the key that the error names all is crawled."""
    with running_cluster(3) as cluster, fed_scene(cluster, "started", tmp_path) as fed:
        keys = {"SCHEDULER_QUEUE_KEY": None, "SCHEDULER_DUPEFILTER_KEY": None, "REDIS_START_URLS_KEY": None}
        fed.client.rpush("started:start_urls", *PATHS)
        settings = fed.settings(**keys, BLOOMFILTER_PARTITIONS=partitions)
        refused = fed.played.crawl(settings, "refused").log.splitlines()[-1]
        (key,) = re.findall(r"set SCHEDULER_QUEUE_KEY = '(\S+)'", refused)
        assert_complete(fed.played, fed.played.crawl(settings, "second", SCHEDULER_QUEUE_KEY=key))
        assert not fed.client.exists("started:start_urls", "{started:start_urls}:dupefilter")
