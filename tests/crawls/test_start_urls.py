"""Crawls fed by Redis, with killed workers and outages: no start URL is lost."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from devtools.crawl_process import LIMIT
from devtools.site import path_of
from scrapy_bloom.queue import start_urls
from scrapy_bloom.queue.keys import QueueKeys, StartKeys
from tests.support.faults import proxying
from tests.support.outcomes import assert_complete, assert_ended_well, complaints_in
from tests.support.scenario import FILTER_ALONE, LEASE, OURS, Kind, Scene, scene
from tests.support.selection import long_unless
from tests.support.servers import Server
from tests.support.spiders import started, stock_started
from tests.support.waiting import until

KINDS: dict[str, Kind] = {"list": {}, "set": {"REDIS_START_URLS_AS_SET": 1}, "zset": {"REDIS_START_URLS_AS_ZSET": 1}}
NUMBER = 40
PATHS = [path_of(page) for page in range(NUMBER)]
DEADLY = path_of(7)
# The script of start URLs, as a proxy sees it.
SCRIPT = start_urls._EXCHANGE._hash.encode()


class FedScene:
    """A site of unlinked pages, and a start key with their URLs."""

    def __init__(self, played: Scene, client: redis.Redis, keys: StartKeys, directory: Path) -> None:
        self.played = played
        self.client = client
        self.keys = keys
        self._directory = directory

    @property
    def settings(self) -> Kind:
        """The settings of each worker, which ends after a second without work, or with the file `idle`."""
        return {**LEASE, "REDIS_START_URLS_KEY": self.keys.start, "MAX_IDLE_TIME_BEFORE_CLOSE": 1}

    def feed(self, kind: str, paths: list[str]) -> None:
        """Append paths to the start key."""
        if kind == "list":
            self.client.rpush(self.keys.start, *paths)
        elif kind == "set":
            self.client.sadd(self.keys.start, *paths)
        else:
            self.client.zadd(self.keys.start, {path: -place for place, path in enumerate(paths)})

    def tell(self, file: str, text: object) -> None:
        """Write a file that the spiders read."""
        (self._directory / file).write_text(f"{text}")

    @property
    def leased(self) -> int:
        """The number of leased start URLs."""
        return int(self.client.hlen(self.keys.leased))


@contextmanager
def fed_scene(
    url: str, key: str, directory: Path, client: redis.Redis, spider: str = started.__file__
) -> Iterator[FedScene]:
    """A scene fed by a start key."""
    with scene({path: [] for path in PATHS}, directory, url, key) as played:
        played.spider = spider
        fed = FedScene(played, client, StartKeys(f"{key}:start"), directory)
        # Scrapy asks every five seconds whether an idle spider is to end: it may at the first time.
        fed.tell("idle", "")
        yield fed


SPIDERS = {"ours": started.__file__, "scrapy-redis": stock_started.__file__}


@pytest.mark.parametrize("whose", ["ours", pytest.param("scrapy-redis", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", long_unless(lambda kind: kind == "list", KINDS))
def test_worker_killed(kind: str, whose: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A worker is killed between its start URLs and their requests: another one fetches all of them.

    The control: scrapy-redis's RedisSpider loses the start URLs that the worker had popped.
    """
    with valkey.client() as client, fed_scene(valkey.url, key, tmp_path, client, SPIDERS[whose]) as fed:
        fed.feed(kind, PATHS)
        fed.tell("deadly", DEADLY)
        settings = {**OURS, **fed.settings, **KINDS[kind], "SCHEDULER_PERSIST": True}
        assert fed.played.crawl(settings, "first").exit_code == -signal.SIGKILL
        assert_ended_well(fed.played.crawl(settings, "second"))
        assert bool(fed.played.missed) == (whose == "scrapy-redis")
        assert fed.leased == 0
        assert ("of dead workers" in fed.played.log("second")) == (whose == "ours")


def test_stopped(valkey: Server, key: str, tmp_path: Path) -> None:
    """A stopped worker returns its start URLs at once, in order."""
    with valkey.client() as client, fed_scene(valkey.url, key, tmp_path, client) as fed:
        fed.feed("list", PATHS)
        fed.tell("hesitate", 5)
        first = fed.played.start("first", {**OURS, **fed.settings, "SCHEDULER_PERSIST": True})
        until(lambda: len(fed.played.fetched) == 5)
        # Four are in the queue or done. The fifth is not acknowledged: the spider may yield more requests for it.
        until(lambda: fed.leased == 16 - 4)
        first.process.send_signal(signal.SIGTERM)
        ended = first.wait()
        assert "Traceback" not in ended.log
        assert fed.leased == 0
        assert client.lrange(fed.keys.start, 0, -1) == [path.encode() for path in PATHS[4:]]
        second = fed.played.crawl({**OURS, **fed.settings}, "second")
        assert_complete(fed.played, second)
        assert fed.played.twice == 0


def test_redis_killed(durable: Server, key: str, tmp_path: Path) -> None:
    """Redis is unreachable for a second: a worker without work waits, then continues."""
    with durable.client() as client, fed_scene(durable.url, key, tmp_path, client) as fed:
        fed.feed("list", PATHS)
        with fed.played.outage(durable, 1, at=20):
            ended = fed.played.crawl({**OURS, **fed.settings})
        assert_complete(fed.played, ended)
        assert fed.leased == 0


def test_idle_worker_goes_on_reading(valkey: Server, key: str, tmp_path: Path) -> None:
    """An idle worker beside a busy one does not finish, and reads its start key."""
    with valkey.client() as client, fed_scene(valkey.url, key, tmp_path, client) as fed:
        held, release = fed.played.hold(PATHS[0])
        fed.feed("list", PATHS[:1])
        settings = {**OURS, **fed.settings, "SCHEDULER_PERSIST": True}
        busy = fed.played.start("busy", settings)
        assert held.wait(LIMIT)
        idle = fed.played.start("idle", settings)
        until(lambda: "idle and waits for others" in fed.played.log("idle"))
        fed.feed("list", PATHS[1:])
        until(lambda: len(fed.played.fetched) == NUMBER - 1)
        release.set()
        assert_complete(fed.played, busy.wait(), idle.wait())
        assert fed.played.twice == 0


def test_others_are_waited_for(valkey: Server, key: str, tmp_path: Path) -> None:
    """No worker ends while another holds start URLs; they are fetched if it dies."""
    with (
        valkey.client() as client,
        proxying(valkey.port, "EVALSHA") as proxy,
        fed_scene(proxy.url, key, tmp_path, client) as fed,
    ):
        proxy.naming = SCRIPT
        fed.feed("list", PATHS[:1])
        fed.tell("deadly", PATHS[0])
        fed.played.crawl({**OURS, **fed.settings, "BLOOMFILTER_LEASE": 1000}, "other")
        crawl = QueueKeys(f"{key}:queue").crawl
        (dead,) = (field for field in client.hkeys(crawl) if field.startswith(b"@"))
        worker = fed.played.start("worker", {**OURS, **fed.settings})
        before = proxy.done.total()
        until(lambda: proxy.done.total() >= before + 3 or worker.process.poll() is not None)
        assert not fed.played.fetched
        assert fed.leased == 1
        client.hdel(crawl, dead)
        ended = worker.wait()
        assert list(fed.played.fetched) == PATHS[:1]
    assert_ended_well(ended)


def test_one_that_raises(valkey: Server, key: str, tmp_path: Path) -> None:
    """A start URL that makes the spider raise is logged and kept, and the others are fetched."""
    with valkey.client() as client, fed_scene(valkey.url, key, tmp_path, client) as fed:
        fed.feed("list", [*PATHS[:3], started.BAD, *PATHS[3:]])
        ended = fed.played.crawl({**OURS, **fed.settings})
        assert fed.played.missed == set()
        assert client.lrange(fed.keys.dead_letters, 0, -1) == [started.BAD.encode()]
        assert fed.leased == 0
    (error,) = [line for line in complaints_in(ended.log) if " ERROR: " in line]
    assert repr(started.BAD.encode()) in error
    assert fed.keys.dead_letters in error
    assert "it makes no sense" in error
    assert ended.stats["finish_reason"] == "finished"


def test_wrong_type(valkey: Server, key: str, tmp_path: Path) -> None:
    """A start key of another type ends the crawl with advice."""
    with valkey.client() as client, fed_scene(valkey.url, key, tmp_path, client) as fed:
        fed.feed("set", PATHS)
        ended = fed.played.crawl({**OURS, **fed.settings})
        assert ended.stats["finish_reason"] == "bloomfilter_error"
        assert "set REDIS_START_URLS_AS_SET" in ended.log.splitlines()[-1]
        assert client.scard(fed.keys.start) == NUMBER


def test_under_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """Under another scheduler start URLs are popped as in scrapy-redis, with one warning."""
    with valkey.client() as client, fed_scene(valkey.url, key, tmp_path, client) as fed:
        fed.feed("list", PATHS)
        ended = fed.played.crawl({**FILTER_ALONE, **fed.settings})
        assert fed.played.missed == set()
    (warning,) = [line for line in complaints_in(ended.log) if "[scrapy_bloom.spiders]" in line]
    assert "'scrapy_bloom.BloomScheduler'" in warning
    assert ended.exit_code == 0
