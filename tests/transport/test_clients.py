"""Redis clients that a filter works over, the refusal of others, and who resends: the filter alone."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff, ExponentialBackoff
from redis.cluster import ClusterPipeline
from redis.retry import Retry
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, ConfigError, UnavailableError
from scrapy_bloom.transport.connect import bound_clients, disconnect
from tests.support.faults import FaultProxy, Place, proxying
from tests.support.retries import by_host, by_params, by_url
from tests.support.servers import Server, free_port, running
from tests.support.waiting import until

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of no server


@contextlib.contextmanager
def blocking(port: int, **options: Any) -> Any:
    """A client over a pool that lets callers wait for a connection."""
    pool_class: Any = redis.BlockingConnectionPool
    pool = pool_class(host="127.0.0.1", port=port, max_connections=2, timeout=1, **options)
    with contextlib.closing(pool):
        yield redis.Redis(connection_pool=pool)


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


@pytest.mark.parametrize("given", [30, 0.5, None])
def test_clients_of_other_packages(valkey: Server, given: float | None) -> None:
    """A used client of another package gets short timeouts, unless its own are shorter, and no retries."""
    with valkey.client(socket_timeout=given) as client:
        client.ping()
        assert bound_clients(type("Part", (), {})()) is False
        part = type("Part", (), {})()
        part.name, part.server = "collector", client
        assert bound_clients(part) is True
        (connection,) = [client.connection_pool.get_connection()]
        try:
            assert (connection.socket_timeout, connection.socket_connect_timeout) == (given if given == 0.5 else 5, 5)
            assert connection.retry._retries == 0
        finally:
            client.connection_pool.release(connection)
