"""Redis clients that a filter works over, the refusal of others, and who resends: the filter alone."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff, ExponentialBackoff
from redis.cluster import ClusterPipeline
from redis.retry import Retry
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, BloomScheduler, ConfigError, UnavailableError
from scrapy_bloom.transport.connect import disconnect
from tests.support import crawling
from tests.support.faults import FaultProxy, Place, proxying
from tests.support.in_process import start
from tests.support.retries import assert_waited_once, by_host, by_params, by_url
from tests.support.servers import Server, free_port, running
from tests.support.tls import make_certificate
from tests.support.waiting import LIMIT, until

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of no server


@contextlib.contextmanager
def blocking(port: int, **options: Any) -> Any:
    """A client over a pool that lets callers wait for a connection."""
    pool_class: Any = redis.BlockingConnectionPool
    pool = pool_class(host="127.0.0.1", port=port, max_connections=2, timeout=1, **options)
    with contextlib.closing(pool):
        yield redis.Redis(connection_pool=pool)


@pytest.mark.parametrize("protocol", [2, 3])
def test_blocking_pool(server: Server, key: str, protocol: int) -> None:
    """A filter works over redis-py's BlockingConnectionPool, and keeps none of its connections."""
    with blocking(server.port, protocol=protocol) as client:
        filters = [BloomFilter(client, key, capacity=20) for _ in range(5)]
        assert filters[0].add_many([str(number) for number in range(100)]) == [True] * 100
        assert not any(each.add("7") for each in filters)
        filters[0].clear()


def test_hidden_resending_is_off_in_a_blocking_pool(valkey: Server, key: str) -> None:
    """Hidden retries are disabled for existing and for later connections of the pool."""
    retry, faults = Retry(ConstantBackoff(0), 3), (redis.ConnectionError,)
    with (
        proxying(valkey.port, "EVALSHA") as proxy,
        blocking(proxy.port, retry=retry, retry_on_error=list(faults)) as client,
    ):
        assert client.ping()
        bloom = BloomFilter(client, key, capacity=1000, retry_timeout=0)
        bloom.add("first")
        for number in range(3):
            proxy.fail(Place.AFTER)
            with pytest.raises(UnavailableError):
                bloom.add(str(number))
            client.connection_pool.disconnect()
            client.connection_pool.reset()
        assert proxy.faults == 3


# No clients, by the names that the errors show.
UNFIT: dict[str, Callable[[Any], Any]] = {
    "redis.asyncio.client.Redis": lambda _: redis.asyncio.Redis(password=PASSWORD),
    "redis.asyncio.cluster.RedisCluster": lambda _: redis.asyncio.RedisCluster("127.0.0.1", password=PASSWORD),
    "builtins.str": lambda _: f"redis://:{PASSWORD}@127.0.0.1",
    "builtins.NoneType": lambda _: None,
    "redis.client.Pipeline": lambda client: client.pipeline(),
    "redis.client.PubSub": lambda client: client.pubsub(),
    "redis.cluster.ClusterPipeline": lambda _: object.__new__(ClusterPipeline),
    "the class redis.client.Redis": type,
}


@pytest.mark.parametrize("name", UNFIT)
def test_unfit_clients_are_refused(name: str, valkey: Server, key: str) -> None:
    """An unsuitable client is refused before any command, without a password; a dupefilter refuses at its first use."""
    with valkey.client() as client:
        given = UNFIT[name](client)
        dupefilter = BloomRFPDupeFilter(given, key)
        uses: list[Callable[[], object]] = [lambda: BloomFilter(given, key), lambda: dupefilter.filter]
        for use in uses:
            with pytest.raises(ConfigError) as refusal:
                use()
            assert str(refusal.value).startswith(f"server = {name}: must be a synchronous Redis client")
            assert "pass a redis.Redis or redis.RedisCluster" in str(refusal.value)
            assert PASSWORD not in str(refusal.value)


def factory(**options: Any) -> redis.Redis:
    """A function that makes a client."""
    return redis.Redis(**options)


@pytest.mark.parametrize("redis_cls", ["redis.asyncio.Redis", "redis.client.Pipeline", f"{__name__}.factory"])
def test_unfit_classes_are_refused(redis_cls: str, valkey: Server, key: str) -> None:
    """Another class in REDIS_PARAMS is refused by the filter and by BloomScheduler, by the name of the setting."""
    url = valkey.url.replace("//", f"//:{PASSWORD}@")
    settings = {"REDIS_URL": url, "DUPEFILTER_CLASS": crawling.BLOOM, "REDIS_PARAMS": {"redis_cls": redis_cls}}
    settings |= {"SCHEDULER_DUPEFILTER_KEY": key}
    for build in (
        lambda: BloomRFPDupeFilter.from_crawler(start(settings)),
        lambda: BloomScheduler.from_settings(Settings(settings)),
    ):
        with pytest.raises(ConfigError) as refusal:
            build()
        assert str(refusal.value).startswith(f"REDIS_PARAMS['redis_cls'] = {redis_cls!r}: must be redis.Redis, ")
        assert PASSWORD not in str(refusal.value)


@pytest.mark.parametrize(("encoding", "decodes"), [("utf-16", False), ("latin-1", True)])
def test_encodings(server: Server, key: str, encoding: str, decodes: bool) -> None:
    """Neither the encoding of a client matters, nor whether it decodes replies."""
    with server.client(encoding=encoding, decode_responses=decodes) as client:
        bloom = BloomFilter(client, key, capacity=20)
        assert bloom.add_many([str(number) for number in range(100)]) == [True] * 100
        assert not BloomFilter(client, key, capacity=20).add("7")


# For every way to create a client, only the filter itself resends commands.


class OwnRedis(redis.Redis):
    """A redis_cls of the user's own."""


WAYS: dict[str, Callable[[FaultProxy], dict[str, object]]] = {
    "REDIS_URL": by_url,
    "REDIS_HOST": by_host,
    "REDIS_PARAMS": by_params,
    "a retry of the user's": lambda proxy: by_params(
        proxy, retry=Retry(ExponentialBackoff(), 5), retry_on_error=[redis.ConnectionError, redis.TimeoutError]
    ),
    "a single connection": lambda proxy: by_params(proxy, single_connection_client=True),
    "class": lambda proxy: by_params(proxy, redis_cls=OwnRedis),
    "class and URL": lambda proxy: {"REDIS_URL": proxy.url, "REDIS_PARAMS": {"redis_cls": OwnRedis}},
    "path": lambda proxy: by_params(proxy, redis_cls=f"{__name__}.{OwnRedis.__qualname__}"),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def assert_resent_by_us_alone(proxy: FaultProxy, dupefilter: BloomRFPDupeFilter) -> None:
    """A command is sent once more than its reply is cut: redis-py makes none of these attempts."""
    assert not dupefilter.request_seen(Request("http://shop.test/0"))
    for number, cuts in enumerate(([Place.AFTER], [Place.REPLY, Place.AFTER, Place.REPLY]), 1):
        proxy.done.clear()
        proxy.fail(*cuts)
        request = Request(f"http://shop.test/{number}")
        assert not dupefilter.request_seen(request)
        # The first attempt is not marked as a repetition.
        assert sum(proxy.done.values()) == 1 + len(cuts)
        assert dupefilter.request_seen(request)


@every_way
def test_hidden_resending_is_off(proxy: FaultProxy, key: str, way: Callable[[FaultProxy], dict[str, object]]) -> None:
    """Under every configuration of the client, only the filter itself resends a command."""
    settings = {"SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_CAPACITY": 1000, **way(proxy)}
    assert_resent_by_us_alone(proxy, BloomRFPDupeFilter.from_settings(Settings(settings)))


@pytest.fixture
def cluster() -> Iterator[FaultProxy]:
    """A proxy of a cluster of one node, which sends its clients to the proxy."""
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with running("valkey", *options) as server, proxying(server.port, "EVALSHA") as proxy:
        with server.client() as client:
            client.config_set("cluster-announce-port", proxy.port)
            client.cluster("addslotsrange", 0, 16383)
            until(lambda: client.cluster("info")["cluster_state"] == "ok")
        yield proxy


def test_hidden_resending_is_off_in_a_cluster(cluster: FaultProxy, key: str) -> None:
    """A cluster client has its own retries; they are disabled, too."""
    settings = {"REDIS_URL": cluster.url, "REDIS_PARAMS": {"redis_cls": redis.RedisCluster}}
    common = {"SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_CAPACITY": 1000}
    dupefilter = BloomRFPDupeFilter.from_settings(Settings({**settings, **common}))
    assert_resent_by_us_alone(cluster, dupefilter)
    disconnect(dupefilter.server)


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A server, and the URL of its TLS port."""
    certificate, port = make_certificate(tmp_path), free_port()
    with running("redis", *certificate.options(port)) as server:
        yield server, f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate.public}"


def test_tls_connection_cut(encrypted: tuple[Server, str], key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A TLS connection cut before a reply is like any other."""
    server, url = encrypted
    settings = {"REDIS_URL": url, "SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_CAPACITY": 1000}
    dupefilter = BloomRFPDupeFilter.from_settings(Settings(settings))
    bloom = dupefilter.filter
    with closing(dupefilter.server), server.client() as admin, ThreadPoolExecutor(1) as thread:
        for work, answer in ((lambda: bloom.add("a"), True), (lambda: bloom.add_many(["b", "c"]), [True, True])):
            admin.execute_command("CLIENT", "PAUSE", int(LIMIT * 1000), "WRITE")
            added = thread.submit(work)
            until(lambda: admin.info("clients")["blocked_clients"])
            admin.client_kill_filter(_type="normal", skipme=True)
            admin.client_unpause()
            assert added.result(LIMIT) == answer
            assert_waited_once(caplog, "ConnectionError")
            caplog.clear()
    assert bloom.add_many(["a", "b", "c"]) == [False, False, False]
