"""Redis clients that a filter works over, and the refusal of others."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from scrapy.settings import Settings

from devtools.proxy.faults import Place, proxying
from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, BloomScheduler, ConfigError
from scrapy_bloom.transport.client import transport_for
from tests.support import crawling
from tests.support.in_process import start
from tests.support.servers import Server

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of no server


class Wrapped(redis.Redis):
    """A client whose commands pass through user code, and then through redis-py's own retries."""

    def execute_command(self, *args: object, **kwargs: object) -> object:
        return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def blocking(port: int, client_class: type[redis.Redis] = redis.Redis, **options: Any) -> Any:
    """A client over a pool that lets callers wait for a connection."""
    pool_class: Any = redis.BlockingConnectionPool
    pool = pool_class(host="127.0.0.1", port=port, max_connections=2, timeout=1, **options)
    with contextlib.closing(pool):
        yield client_class(connection_pool=pool)


@pytest.mark.parametrize("protocol", [2, 3])
def test_blocking_pool(server: Server, key: str, protocol: int) -> None:
    """A filter works over redis-py's BlockingConnectionPool, and keeps none of its connections."""
    with blocking(server.port, protocol=protocol) as client:
        filters = [BloomFilter(client, key, capacity=20) for _ in range(5)]
        assert filters[0].add_many([str(number) for number in range(100)]) == [True] * 100
        assert not any(each.add("7") for each in filters)
        filters[0].clear()


@pytest.mark.parametrize("client_class", [redis.Redis, Wrapped])
def test_hidden_resending_is_off_in_a_blocking_pool(client_class: type[redis.Redis], valkey: Server, key: str) -> None:
    """Hidden retries are disabled for existing and for later connections of the pool."""
    retry, faults = Retry(ConstantBackoff(0), 3), (redis.ConnectionError,)
    with (
        proxying(valkey.port, "BITFIELD") as proxy,
        blocking(proxy.port, client_class, retry=retry, retry_on_error=list(faults)) as client,
    ):
        assert client.ping()
        bloom = BloomFilter(client, key, capacity=1000)
        for number in range(3):
            proxy.fail(Place.AFTER)
            assert bloom.add(str(number))
            client.connection_pool.disconnect()
            client.connection_pool.reset()
        assert bloom.counters.ambiguous == proxy.faults == 3


def asynchronous(_: Server) -> Any:
    return redis.asyncio.Redis(password=PASSWORD)


def asynchronous_cluster(_: Server) -> Any:
    return redis.asyncio.RedisCluster("127.0.0.1", password=PASSWORD)


def in_utf_16(server: Server) -> Any:
    return server.client(encoding="utf-16", decode_responses=True, password=PASSWORD)


def in_ebcdic(server: Server) -> Any:
    return server.client(encoding="cp500", decode_responses=True, password=PASSWORD)


def in_no_encoding(server: Server) -> Any:
    return server.client(encoding="utf-88", decode_responses=True, password=PASSWORD)


def url(_: Server) -> Any:
    return f"redis://:{PASSWORD}@127.0.0.1"


def nothing(_: Server) -> Any:
    return None


UNFIT: dict[Callable[[Server], Any], tuple[str, str]] = {
    asynchronous: ("server = redis.asyncio.client.Redis", "pass a redis.Redis or redis.RedisCluster"),
    asynchronous_cluster: ("server = redis.asyncio.cluster.RedisCluster", "pass a redis.Redis or redis.RedisCluster"),
    in_utf_16: ("encoding = 'utf-16'", "decode_responses=False"),
    in_ebcdic: ("encoding = 'cp500'", "decode_responses=False"),
    in_no_encoding: ("encoding = 'utf-88'", "decode_responses=False"),
    url: ("server = builtins.str", "pass a redis.Redis or redis.RedisCluster"),
    nothing: ("server = builtins.NoneType", "pass a redis.Redis or redis.RedisCluster"),
}


@pytest.mark.parametrize("client", UNFIT)
def test_unfit_clients_are_refused(client: Callable[[Server], Any], valkey: Server, key: str) -> None:
    """An unsuitable client is refused before any command, without a password."""
    given = client(valkey)
    for use in (lambda: BloomFilter(given, key), lambda: transport_for(given)):
        with pytest.raises(ConfigError) as refusal:
            use()
        assert [part for part in UNFIT[client] if part not in str(refusal.value)] == []
        assert PASSWORD not in str(refusal.value)


@pytest.mark.parametrize("client", [asynchronous, in_utf_16])
def test_unfit_client_of_a_dupefilter(client: Callable[[Server], Any], valkey: Server, key: str) -> None:
    """A dupefilter that was built directly refuses at its first use."""
    with pytest.raises(ConfigError):
        BloomRFPDupeFilter(client(valkey), key).filter  # noqa: B018  # it is opened


UNFIT_SETTINGS: dict[str, tuple[dict[str, object], str]] = {
    "asynchronous": ({"REDIS_PARAMS": {"redis_cls": "redis.asyncio.Redis"}}, "redis.asyncio.client.Redis"),
    "encoding": ({"REDIS_ENCODING": "utf-16", "REDIS_DECODE_RESPONSES": True}, "encoding = 'utf-16'"),
}


@pytest.mark.parametrize("unfit", UNFIT_SETTINGS)
def test_unfit_settings_are_refused(unfit: str, valkey: Server, key: str) -> None:
    """Settings for such a client are refused by the filter and by BloomScheduler."""
    given, part = UNFIT_SETTINGS[unfit]
    url = valkey.url.replace("//", f"//:{PASSWORD}@")
    settings = {"REDIS_URL": url, "DUPEFILTER_CLASS": crawling.BLOOM, "SCHEDULER_DUPEFILTER_KEY": key, **given}
    for build in (
        lambda: BloomRFPDupeFilter.from_crawler(start(settings)),
        lambda: BloomScheduler.from_settings(Settings(settings)),
    ):
        with pytest.raises(ConfigError) as refusal:
            build()
        assert part in str(refusal.value)
        assert "REDIS_" in str(refusal.value)
        assert PASSWORD not in str(refusal.value)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"encoding": "utf-16"}, id="not-decoded"),
        pytest.param({"encoding": "latin-1", "decode_responses": True}, id="latin-1"),
        pytest.param({"encoding": "ascii", "decode_responses": True}, id="ascii"),
    ],
)
def test_encodings_that_work(server: Server, key: str, options: dict[str, Any]) -> None:
    """An encoding works if it is compatible with ASCII, or if replies are not decoded."""
    with server.client(**options) as client:
        bloom = BloomFilter(client, key, capacity=20)
        assert bloom.add_many([str(number) for number in range(100)]) == [True] * 100
        assert not BloomFilter(client, key, capacity=20).add("7")
