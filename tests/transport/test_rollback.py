"""A server returns to an older state: a worker asks again for cached items of the lost time.

A snapshot is older than later additions, and a replica may lack the last second of its master. The filter's epoch is
the same in both, so the data do not show the rollback.
"""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel
from scrapy_redis.scheduler import Scheduler

from devtools.waiting import until
from scrapy_bloom import BloomFilter, BloomScheduler
from scrapy_bloom.transport.client import disconnect
from tests.support.clusters import cluster_client, running_cluster
from tests.support.crawling import BLOOM
from tests.support.dupefilters import KEY, build, crawler_of, page
from tests.support.servers import BINARIES, KINDS, Server, free_port, running

MASTER = "crawl"
LOST = [f"lost {number}" for number in range(50)]


class Wrapped(redis.Redis):
    """A client whose commands pass through user code."""

    def execute_command(self, *args: object, **kwargs: object) -> object:
        return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]


class CommandsAlone:
    """A user's own client that shows its errors, but none of its connections."""

    def __init__(self, port: int) -> None:
        self._client: Any = redis.Redis(port=port, single_connection_client=True, retry=Retry(NoBackoff(), 0))

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return self._client.execute_command(*args, **options)

    def close(self) -> None:
        self._client.close()


Making = Callable[[Server, Path], AbstractContextManager[Any]]


def over(make: Callable[[int], Any]) -> Making:
    """Make clients of a single server."""
    return lambda server, _: contextlib.closing(make(server.port))


def pooled(client_class: Any, pool_class: Any = redis.ConnectionPool) -> Making:
    """Make clients of this class over a pool of that one."""
    return over(lambda port: client_class.from_pool(pool_class(host="127.0.0.1", port=port, max_connections=3)))


@contextlib.contextmanager
def by_sentinel(server: Server, directory: Path) -> Iterator[Any]:
    """A client of the current master according to a Sentinel."""
    port, config = free_port(), directory / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor {MASTER} 127.0.0.1 {server.port} 1\n"
    )
    process = subprocess.Popen([str(BINARIES["valkey"]), str(config), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        sentinel: Any = Sentinel
        watching = sentinel([("127.0.0.1", port)])
        until(lambda: is_known(watching))
        client = watching.master_for(MASTER)
        yield client
        disconnect(client)
    finally:
        process.kill()
        process.wait()


def is_known(sentinel: Any) -> bool:
    with contextlib.suppress(redis.RedisError):
        return bool(sentinel.discover_master(MASTER))
    return False


CLIENTS: dict[str, Making] = {
    "pool": pooled(redis.Redis),
    "blocking pool": pooled(redis.Redis, redis.BlockingConnectionPool),
    "single connection": over(lambda port: redis.Redis(port=port, single_connection_client=True)),
    "wrapped": pooled(Wrapped),
    "wrapped, blocking pool": pooled(Wrapped, redis.BlockingConnectionPool),
    "commands alone": over(CommandsAlone),
    "sentinel": by_sentinel,
    "cluster": lambda server, _: cluster_client(server),
}


@contextlib.contextmanager
def clients(kind: str, directory: Path) -> Iterator[tuple[Server, Any]]:
    """A server of this test's own, and a client of this kind."""
    with contextlib.ExitStack() as stack:
        (server,) = (
            stack.enter_context(running_cluster(1)) if kind == "cluster" else [stack.enter_context(running("valkey"))]
        )
        yield server, stack.enter_context(CLIENTS[kind](server, directory))


def save(server: Server) -> None:
    """Make a server write the snapshot that it starts from."""
    with server.client() as client:
        client.save()


def roll_back(server: Server) -> None:
    """Kill a server and start it from its last snapshot."""
    server.kill()
    server.start()


@pytest.mark.parametrize("kind", CLIENTS)
def test_what_the_server_lost_is_new(kind: str, key: str, tmp_path: Path) -> None:
    """After a reconnect each item that the server lost is new to one call."""
    with clients(kind, tmp_path) as (server, client):
        bloom = BloomFilter(client, key, capacity=20_000)
        assert bloom.add("kept")
        save(server)
        assert all(bloom.add_many(LOST))
        roll_back(server)
        assert bloom.add("asked")
        assert all(bloom.add_many(LOST))
        assert not any(bloom.add_many(["kept", "asked", *LOST]))


@pytest.mark.parametrize("kind", ["pool", "cluster"])
def test_one_batch_of_known_and_unknown(kind: str, key: str, tmp_path: Path) -> None:
    """A batch that finds the connection new also sends the items that it had found in the cache."""
    with clients(kind, tmp_path) as (server, client):
        bloom = BloomFilter(client, key, capacity=20_000)
        assert bloom.add("kept")
        save(server)
        for harm in (bloom.add_many, bloom.contains_many):
            bloom.add_many(LOST)
            roll_back(server)
            assert harm(["asked", "kept", *LOST, LOST[0]]) == (
                [True, False, *[True] * len(LOST), False]
                if harm == bloom.add_many
                else [False, True, *[False] * (len(LOST) + 1)]
            )


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_connection_that_stays_is_no_reason_to_forget(kind: str, key: str, tmp_path: Path) -> None:
    """On the same connection each repeat is answered from the cache."""
    with clients(kind, tmp_path) as (_, client):
        bloom = BloomFilter(client, key, capacity=20_000)
        for number in range(100):
            assert bloom.add(str(number))
            assert all(bloom.is_cached(str(before)) for before in range(number + 1))


@pytest.mark.parametrize("kind", [kind for kind in CLIENTS if "pool" in kind or kind == "wrapped"])
def test_further_connections_of_a_pool(kind: str, key: str, tmp_path: Path) -> None:
    """Each connection of a pool is new once: turns between three of them do not empty the cache."""
    with clients(kind, tmp_path) as (_, client):
        bloom, pool = BloomFilter(client, key, capacity=20_000), client.connection_pool
        for number in range(60):
            taken = [pool.get_connection() for _ in range(number % 3)]
            try:
                assert bloom.add(str(number))
            finally:
                for connection in taken:
                    pool.release(connection)
        assert all(bloom.is_cached(str(number)) for number in range(3, 60))


def test_health_checks_are_no_reason_to_forget(valkey: Server, key: str) -> None:
    """A health check by redis-py on an idle connection does not count as a new connection."""
    with valkey.client(health_check_interval=1e-6) as client:
        bloom = BloomFilter(client, key, capacity=20_000)
        before = client.info("commandstats")["cmdstat_ping"]["calls"]
        for number in range(20):
            assert bloom.add(str(number))
        assert all(bloom.is_cached(str(number)) for number in range(20))
        assert client.info("commandstats")["cmdstat_ping"]["calls"] >= before + 20


@pytest.mark.parametrize("kind", KINDS)
def test_under_scrapy_redis(kind: str, key: str) -> None:
    """Under scrapy-redis's scheduler the links to lost pages are taken again."""
    with running(kind) as server:
        dupefilter = build(server, key)
        dupefilter.request_seen(page(0))
        save(server)
        assert not any(dupefilter.request_seen(page(number)) for number in range(1, 50))
        roll_back(server)
        assert not dupefilter.request_seen(page(50))
        assert not any(dupefilter.request_seen(page(number)) for number in range(1, 50))
        assert dupefilter.request_seen(page(0))
        assert all(dupefilter.request_seen(page(number)) for number in range(51))


@pytest.mark.parametrize("scheduler_class", [Scheduler, BloomScheduler])
def test_a_scheduler_at_work_is_no_reason_to_forget(
    scheduler_class: Any, valkey: Server, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many commands of the queue and heartbeats leave the cache as it is."""
    monkeypatch.chdir(tmp_path)
    keys = {KEY: key, "SCHEDULER_QUEUE_KEY": f"{key}:queue"}
    crawler = crawler_of(valkey, DUPEFILTER_CLASS=BLOOM, BLOOMFILTER_LEASE=0.1, **keys)
    scheduler = scheduler_class.from_crawler(crawler)
    scheduler.open(crawler.spider)
    try:
        for number in range(200):
            assert scheduler.enqueue_request(page(number))
            until(scheduler.next_request)
        assert all(scheduler.df.filter.is_cached(scheduler.df.fingerprint_of(page(number))) for number in range(200))
    finally:
        scheduler.close("finished")
