"""For every way to create a client, only the filter itself resends commands."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from scrapy import Request
from scrapy.settings import Settings

from devtools.waiting import LIMIT, until
from scrapy_bloom import BloomRFPDupeFilter
from scrapy_bloom.transport.client import disconnect
from tests.support.faults import FaultProxy, Place, proxying
from tests.support.retries import assert_waited_once, by_host, by_params, by_url
from tests.support.servers import Server, free_port, running
from tests.support.tls import make_certificate


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
