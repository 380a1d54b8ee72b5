"""A filter over a cluster: its slots move, no script runs twice, and a permanent refusal is an immediate error."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, BloomScheduler, RefusedError, UnavailableError
from scrapy_bloom.transport.connect import FromUrl, disconnect
from tests.support.clusters import Cluster, begin_move, running_cluster, slot_of
from tests.support.retries import PASSWORD, said, told, when_away
from tests.support.servers import Server, free_port
from tests.support.sockets import disconnect_all

SMALL: dict[str, Any] = {"capacity": 100, "error_rate": 1e-12, "cache_size": 0}
ITEMS = [f"item {number}" for number in range(500)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of three masters."""
    with running_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Any]:
    """A client of the cluster."""
    client = cluster.client(socket_timeout=2)
    yield client
    disconnect(client)


@pytest.mark.parametrize("moved", ["the hash", "the shards"])
def test_a_slot_on_the_move(moved: str, cluster: Cluster, client: Any, key: str) -> None:
    """Nothing is called seen, and nothing absent, while keys of the slot are on two nodes: the calls wait."""
    source = cluster.owner_of(key)
    target = cluster.other_than(source)
    bloom, other = (BloomFilter(client, key, **SMALL) for _ in range(2))
    assert all(bloom.add_many(ITEMS))
    begin_move(slot_of(key), source, target)
    with source.client() as old:
        names = [key] if moved == "the hash" else list(old.scan_iter(match=f"{{{key}}}*", count=1000))
        old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *names)
    with when_away(lambda: cluster.move([slot_of(key)], source, target)):
        if moved == "the hash":
            assert bloom.add_many([ITEMS[0], "a"]) == [False, True]
        else:
            assert all(other.contains_many(ITEMS))
    assert other.add_many([*ITEMS, "b"]) == [False] * 500 + [True]
    assert bloom.counters.losses == 0


# A refusal is an error at once, unless most nodes are only away.


NODES = 3


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Server]]:
    """The nodes of a cluster with a password, and with a user who may not ask for its nodes."""
    with running_cluster(NODES) as nodes:
        for node in nodes:
            with node.client() as client:
                commands = ["+@all", "-cluster"]
                client.acl_setuser("denied", enabled=True, passwords=[f"+{PASSWORD}"], keys="*", commands=commands)
                client.config_set("requirepass", PASSWORD)
        yield [*nodes]


def hosts(nodes: list[Server]) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def crawl(**settings: Any) -> Settings:
    """The settings of a crawl."""
    common = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter", "SCHEDULER_DUPEFILTER_KEY": "filter"}
    return Settings({**common, "BLOOMFILTER_RETRY_TIMEOUT": 0.2, **settings})


LOGINS = {
    "wrong password": (f":{PASSWORD}-mistaken@", "the password of the client (REDIS_URL or REDIS_PARAMS)"),
    "no password": ("", "the password of the client (REDIS_URL or REDIS_PARAMS)"),
    "no permission": (f"denied:{PASSWORD}@", "allow CLUSTER SLOTS and COMMAND"),
}
# Who connects, the URL's scheme and REDIS_PARAMS: either selects the client.
WAYS: dict[str, tuple[Any, str, dict[str, str]]] = {
    "scheduler": (BloomScheduler, "redis+cluster", {}),
    "dupefilter": (BloomRFPDupeFilter, "redis+cluster", {}),
    "client class": (BloomScheduler, "redis", {"redis_cls": "redis.RedisCluster"}),
}


def refused(kind: Any, advice: str, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that the crawl is refused without a wait, with advice, and that no password is shown."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(RefusedError) as caught:
        kind.from_settings(settings)
    assert advice in str(caught.value)
    assert said(caplog, "Redis is unreachable") == []
    assert PASSWORD not in told(caught.value) + caplog.text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("login", LOGINS)
def test_login(login: str, way: str, nodes: list[Server], caplog: pytest.LogCaptureFixture) -> None:
    """The error names the settings of the cluster's user and password."""
    (credentials, advice), (kind, scheme, params) = LOGINS[login], WAYS[way]
    url = f"{scheme}://{credentials}{hosts(nodes[:1])}"
    refused(kind, advice, crawl(REDIS_URL=url, REDIS_PARAMS=params), caplog)
    disconnect_all()  # redis-py has dropped the client that it could not make, and left its connection open


@pytest.mark.parametrize("kind", [BloomScheduler, BloomRFPDupeFilter])
def test_no_cluster(kind: Any, valkey: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A server outside a cluster is refused; the error says how a URL names it."""
    advice = "belongs to no cluster: begin REDIS_URL with redis://, or rediss:// for TLS, and omit redis_cls in "
    refused(kind, advice, crawl(REDIS_URL=f"redis+cluster://{hosts([valkey])}"), caplog)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_most_nodes_of_the_url_decide(order: tuple[int, ...], nodes: list[Server]) -> None:
    """A crawl waits while more nodes are away than refuse, in any order, and is refused in the opposite case."""

    def settings(number: int) -> Settings:
        """Name so many nodes of the cluster, and no server at the other addresses."""
        places = [hosts([node]) for node in nodes[:number]] + [f"127.0.0.1:{free_port()}"] * (NODES - number)
        return crawl(REDIS_URL=f"redis+cluster://{','.join(places[each] for each in order)}")

    with pytest.raises(UnavailableError, match="Connection refused"):
        BloomScheduler.from_settings(settings(1))
    with pytest.raises(RefusedError, match="AuthenticationError"):
        BloomScheduler.from_settings(settings(2))


def test_a_node_that_knows_no_slots(nodes: list[Server]) -> None:
    """It is passed over, whether or not the client insists on all slots."""
    with running_cluster(1) as (left,):
        with left.client() as client:
            client.cluster("reset")
        url = f"redis+cluster://:{PASSWORD}@{hosts([left, *nodes])}"
        for option in ({}, {"require_full_coverage": False}):
            client = FromUrl.from_url(url, **option)
            assert client.ping()
            disconnect(client)
