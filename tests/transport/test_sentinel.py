"""The client behind Sentinels: their order and timeout, and the other parts of the URL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.connection import SSLConnection
from scrapy.settings import Settings

from scrapy_bloom import FromSentinel
from scrapy_bloom.transport.connect import connect
from tests.support.sentinels import MASTER, Watch, knows_master, watching
from tests.support.servers import Server, free_port, running

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of a server that lives as long as the test
# Seconds.
TIMEOUT = 0.6


@pytest.fixture
def master() -> Iterator[Server]:
    """A master with a password."""
    with running("valkey", "--requirepass", PASSWORD) as server:
        yield server


@pytest.fixture
def sentinel(master: Server, tmp_path: Path) -> Iterator[Watch]:
    """A Sentinel that watches it."""
    with watching(master, tmp_path, knows_master, PASSWORD) as watch:
        yield watch


@pytest.fixture
def silenced(valkey: Server, tmp_path: Path) -> Iterator[Watch]:
    """A Sentinel that a test silences, of another master."""
    with watching(valkey, tmp_path, knows_master) as watch:
        yield watch


def settings_of(*ports: int, rest: str = "/3", **params: Any) -> dict[str, Any]:
    """The settings of a crawl behind Sentinels at these ports."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    common = {"redis_cls": "scrapy_bloom.FromSentinel", "service_name": MASTER, "socket_timeout": TIMEOUT}
    return {"REDIS_URL": f"redis://:{PASSWORD}@{hosts}{rest}", "REDIS_PARAMS": {**common, **params}}


def connected(*ports: int, rest: str = "/3", **params: Any) -> Any:
    """The client that a crawl has of such settings."""
    return connect(Settings(settings_of(*ports, rest=rest, **params)))


def connections_of(watch: Watch) -> int:
    """Return how many connections a Sentinel has accepted; it accepts them in turn, this one last."""
    with watch.client() as client:
        return int(client.info("stats")["total_connections_received"])


def test_silent_sentinel_is_asked_once(silenced: Watch) -> None:
    """A command waits for a silent Sentinel once, without redis-py's own retries."""
    with connected(silenced.port) as client:
        before = connections_of(silenced)
        with silenced.silent(), pytest.raises(redis.ConnectionError, match="No master found"):
            client.ping()
        assert connections_of(silenced) == before + 1 + 1


def test_sentinels_share_the_timeout() -> None:
    """All Sentinels together take at most `socket_timeout`, which also bounds a silent master."""
    for timeout, bound in ((TIMEOUT, TIMEOUT), (None, 5)):
        pool = connected(1, 2, 3, socket_timeout=timeout).connection_pool
        asked = [each.get_connection_kwargs() for each in pool.sentinel_manager.sentinels]
        for name in ("socket_timeout", "socket_connect_timeout"):
            assert sum(options[name] for options in asked) == pytest.approx(bound)


def test_silent_and_closed_sentinels_are_passed_over(silenced: Watch, sentinel: Watch) -> None:
    """The next one is asked, and from then on first: the crawl waits for the silent one no more."""
    with connected(silenced.port, free_port(), sentinel.port, socket_timeout=6) as client:
        before = connections_of(silenced)
        with silenced.silent():
            for _ in range(3):
                assert client.ping()
                client.connection_pool.disconnect()
        assert connections_of(silenced) == before + 1 + 1


def test_rest_of_the_url() -> None:
    """The URL's parts are the master's; `sentinel_kwargs` are the Sentinels' own."""
    client = FromSentinel.from_url(
        "rediss://shop:p%40ss@one,two:7000,[::1]:7001/5?socket_timeout=9", sentinel_kwargs={"password": "theirs"}
    )
    pool = client.connection_pool
    names = ("username", "password", "db", "socket_timeout")
    assert [pool.connection_kwargs[name] for name in names] == ["shop", "p@ss", 5, 9]
    assert issubclass(pool.connection_class, SSLConnection)
    assert pool.service_name == "mymaster"
    asked = [each.get_connection_kwargs() for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("one", 26379), ("two", 7000), ("::1", 7001)]
    assert {each["password"] for each in asked} == {"theirs"}
    assert {each["socket_timeout"] for each in asked} == {3}
