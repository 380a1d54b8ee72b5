"""Over a cluster a permanent refusal is an immediate error, too, unless most nodes are only away."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations
from typing import Any

import pytest
import redis
from redis.exceptions import AuthenticationError
from scrapy.settings import Settings

from devtools.proxy.faults import FaultProxy, proxying
from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler, RefusedError, UnavailableError
from scrapy_bloom.transport.client import disconnect, transport_for
from scrapy_bloom.transport.commands import Command, Failure
from scrapy_bloom.transport.from_url import FromUrl
from tests.support.clusters import running_cluster
from tests.support.retries import PASSWORD, said, told
from tests.support.servers import Server, free_port
from tests.support.sockets import disconnect_all

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
        yield nodes


def hosts(nodes: list[Server]) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def at(server: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a crawl whose queue, or whose filter alone, is on the server."""
    if server == "BLOOMFILTER_":
        settings = {f"{server}{name}": value for name, value in settings.items()}
        settings["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}"
    return {"DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter", "BLOOMFILTER_RETRY_TIMEOUT": 0.2, **settings}


LOGINS = {
    "wrong password": (f":{PASSWORD}-mistaken@", "the password in {}REDIS_URL or {}REDIS_PARAMS"),
    "no password": ("", "the password in {}REDIS_URL or {}REDIS_PARAMS"),
    "no permission": (f"denied:{PASSWORD}@", "allow CLUSTER SLOTS and COMMAND"),
}
every_login = pytest.mark.parametrize("login", LOGINS)
# The filter of a server of its own is the dupefilter's.
every_kind = pytest.mark.parametrize(
    ("kind", "server"), [(BloomScheduler, ""), (BloomRFPDupeFilter, ""), (BloomRFPDupeFilter, "BLOOMFILTER_")]
)


def refused(kind: Any, server: str, advice: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Assert that the crawl is refused without a wait, with advice, and that no password is shown."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(RefusedError) as caught:
        kind.from_settings(Settings(at(server, settings)))
    assert advice.format(server, server) in str(caught.value)
    assert f"{server}REDIS_URL" in str(caught.value)
    assert said(caplog, "Redis is unreachable") == []
    assert PASSWORD not in told(caught.value) + caplog.text


@every_kind
@every_login
def test_login(login: str, kind: Any, server: str, nodes: list[Server], caplog: pytest.LogCaptureFixture) -> None:
    """The error names the settings of the cluster's user and password."""
    credentials, advice = LOGINS[login]
    refused(kind, server, advice, {"REDIS_URL": f"redis+cluster://{credentials}{hosts(nodes)}"}, caplog)


@every_kind
@every_login
def test_login_with_a_client_class(
    login: str, kind: Any, server: str, nodes: list[Server], caplog: pytest.LogCaptureFixture
) -> None:
    """It also does if REDIS_PARAMS selects the client."""
    credentials, advice = LOGINS[login]
    url = f"redis://{credentials}{hosts(nodes[:1])}"
    settings = {"REDIS_URL": url, "REDIS_PARAMS": {"redis_cls": "redis.RedisCluster"}}
    refused(kind, server, advice, settings, caplog)
    disconnect_all()  # redis-py has dropped the client that it could not make, and left its connection open


@every_kind
def test_no_cluster(kind: Any, server: str, valkey: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A server outside a cluster is refused; the error says how a URL names it."""
    advice = "belongs to no cluster: begin {}REDIS_URL with redis://, or rediss:// for TLS, and omit redis_cls in {}"
    refused(kind, server, advice, {"REDIS_URL": f"redis+cluster://{hosts([valkey])}"}, caplog)


@pytest.mark.parametrize("order", [*permutations(range(NODES))])
def test_most_nodes_of_the_url_decide(order: tuple[int, ...], nodes: list[Server]) -> None:
    """A crawl waits while more nodes are away than refuse, in any order, and is refused in the opposite case."""

    def settings(number: int) -> Settings:
        """Name so many nodes of the cluster, and no server at the other addresses."""
        places = [hosts([node]) for node in nodes[:number]] + [f"127.0.0.1:{free_port()}"] * (NODES - number)
        return Settings(at("", {"REDIS_URL": f"redis+cluster://{','.join(places[each] for each in order)}"}))

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
            assert transport_for(client).execute([Command("PING")]) == [b"PONG"]
            disconnect(client)


@pytest.fixture
def proxies(nodes: list[Server]) -> Iterator[list[FaultProxy]]:
    """A proxy of each node."""
    with ExitStack() as stack:
        yield [stack.enter_context(proxying(node.port)) for node in nodes]


@pytest.mark.parametrize("away", range(NODES + 1))
def test_most_nodes_decide_in_a_crawl(away: int, nodes: list[Server], proxies: list[FaultProxy]) -> None:
    """While the slots are read again, a password that most nodes refuse ends the wait."""
    ports = {node.port: proxy.port for node, proxy in zip(nodes, proxies, strict=True)}
    client: Any = redis.RedisCluster(
        "127.0.0.1",
        nodes[0].port,
        password=PASSWORD,
        address_remap=lambda address: (address[0], ports.get(address[1], address[1])),
    )
    transport = transport_for(client)
    assert transport.execute([Command("PING")]) == [b"PONG"]
    disconnect(client)
    transport._slots.is_stale = True  # type: ignore[attr-defined]
    for proxy in proxies[:away]:
        proxy.upstream = 1
    for node in nodes[away:]:
        with node.client(password=PASSWORD) as admin:
            admin.config_set("requirepass", f"{PASSWORD}-changed")
    try:
        (outcome,) = transport.attempt([Command("PING")])
    finally:
        for node in nodes[away:]:
            with node.client(password=f"{PASSWORD}-changed") as admin:
                admin.config_set("requirepass", PASSWORD)
    disconnect(client)
    assert isinstance(outcome, Failure)
    assert not outcome.is_in_doubt
    assert isinstance(outcome.error, AuthenticationError) == (away < NODES - away)
