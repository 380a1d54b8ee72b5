"""Redis clients that a filter works over, and the refusal of others."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff
from redis.cluster import ClusterPipeline
from redis.retry import Retry
from scrapy.settings import Settings

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, BloomScheduler, ConfigError, UnavailableError
from tests.support import crawling
from tests.support.faults import Place, proxying
from tests.support.in_process import start
from tests.support.servers import Server

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
