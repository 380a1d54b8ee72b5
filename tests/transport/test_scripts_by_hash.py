"""Scripts are sent by their hashes to servers that know them, else in full."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from devtools.proxy.faults import FaultProxy, Place, proxying
from scrapy_bloom import BloomFilter
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.retry import disable_client_retries
from scrapy_bloom.transport.transport import Transport
from tests.support.clusters import cluster_client, running_cluster
from tests.support.servers import KINDS, Server, running

PUSH = "return redis.call('RPUSH', KEYS[1], ARGV[1])"
LENGTH = "return redis.call('LLEN', KEYS[1])"


class Wrapped(redis.Redis):
    """A client whose commands go through code of the user's."""

    def execute_command(self, *args: object, **kwargs: object) -> object:
        return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module", params=KINDS)
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose scripts no other test loads."""
    with running(request.param) as server:
        yield server


@pytest.fixture
def proxy(own: Server) -> Iterator[FaultProxy]:
    """A proxy of a server that knows no script yet."""
    with own.client() as admin:
        admin.script_flush()
    with proxying(own.port, "EVAL", "EVALSHA") as proxy:
        yield proxy


@pytest.fixture(params=[redis.Redis, Wrapped])
def transport(request: pytest.FixtureRequest, proxy: FaultProxy) -> Iterator[Transport]:
    """A transport of each kind, over the proxy."""
    with request.param("127.0.0.1", proxy.port) as client:
        yield transport_for(disable_client_retries(client))


def push(key: str, value: object) -> Command:
    """Append to a list, which shows how often a script was executed, and in which order."""
    return Command("EVAL", PUSH, 1, key, str(value))


def login(user: str) -> dict[str, Any]:
    """Return the arguments of a client that logs in as this user."""
    return {"username": user, "password": "x"}


def sent(proxy: FaultProxy) -> list[str]:
    """Return the names of the commands that have reached the server, and forget them."""
    names = [command.split(b"\r\n", 3)[2].decode() for command in proxy.done.elements()]
    proxy.done.clear()
    return names


def test_the_text_goes_once(transport: Transport, proxy: FaultProxy, key: str) -> None:
    """The first call of each script carries its text, the others its hash."""
    assert [transport.execute([push(key, number)]) for number in range(3)] == [[1], [2], [3]]
    assert sent(proxy) == ["EVAL", "EVALSHA", "EVALSHA"]
    assert transport.execute([Command("EVAL", LENGTH, 1, key)]) == [3]
    assert sent(proxy) == ["EVAL"]


def test_script_flush(transport: Transport, proxy: FaultProxy, own: Server, key: str) -> None:
    """A server that has lost a script is sent its text in the same call, and the script runs once."""
    transport.execute([push(key, 1)])
    with own.client() as admin:
        admin.script_flush()
    sent(proxy)
    assert transport.execute([push(key, 2)]) == [2]
    assert transport.execute([push(key, 3)]) == [3]
    assert sent(proxy) == ["EVALSHA", "EVAL", "EVALSHA"]


@pytest.mark.parametrize("after", [[], [Command("PING")]])
def test_order_of_a_round_trip(transport: Transport, own: Server, key: str, after: list[Command]) -> None:
    """The commands of a round trip run in order, even if some scripts are lost."""
    transport.execute([push(key, 0)])
    with own.client() as admin:
        for loaded in (PUSH, LENGTH):
            transport.execute([Command("EVAL", LENGTH, 1, key)])
            admin.script_flush()
            admin.script_load(loaded)
            batch = [push(key, "a"), Command("RPUSH", key, "b"), push(key, "c"), Command("EVAL", LENGTH, 1, key)]
            replies = transport.execute([*batch, *after])
            assert replies[3] == replies[2] == replies[0] + 2
        assert admin.lrange(key, 0, -1) == [b"0", *[b"a", b"b", b"c"] * 2]


@pytest.mark.parametrize("client_class", [redis.Redis, Wrapped])
def test_another_server_behind_the_address(
    client_class: type[redis.Redis], proxy: FaultProxy, valkey: Server, key: str
) -> None:
    """A server that takes over, or has been restarted, is sent the text."""
    with client_class("127.0.0.1", proxy.port) as client, valkey.client() as other:
        transport = transport_for(client)
        transport.execute([push(key, 1)])
        other.script_flush()
        proxy.upstream = valkey.port
        client.connection_pool.disconnect()
        assert transport.execute([push(key, 2)]) == [1]
        assert other.lrange(key, 0, -1) == [b"2"]
    assert sent(proxy) == ["EVAL", "EVALSHA", "EVAL"]


def test_lost_reply(transport: Transport, proxy: FaultProxy, own: Server, key: str) -> None:
    """A script whose reply is lost is not sent again, neither by its hash nor in full."""
    transport.execute([push(key, 1)])
    proxy.fail(Place.AFTER)
    with pytest.raises(redis.ConnectionError):
        transport.execute([push(key, 2)])
    with own.client() as admin:
        assert admin.lrange(key, 0, -1) == [b"1", b"2"]
        # Nor is its text, sent after a reply that the hash is unknown.
        admin.script_flush()
        proxy.fail(None, Place.AFTER)
        with pytest.raises(redis.ConnectionError):
            transport.execute([push(key, 3)])
        assert admin.lrange(key, 0, -1) == [b"1", b"2", b"3"]


def test_an_error_of_another_command(transport: Transport, own: Server, key: str) -> None:
    """Of several errors the first is raised, and an unknown script beside it is not sent again."""
    transport.execute([push(key, 1)])
    with own.client() as admin:
        admin.script_flush()
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            transport.execute([Command("INCR", key), push(key, 2)])
        assert admin.lrange(key, 0, -1) == [b"1"]


def test_errors_of_a_script(transport: Transport, proxy: FaultProxy, key: str) -> None:
    """An error of a known script is raised, and the script is not run again."""
    failing = "redis.call('RPUSH', KEYS[1], 'x') return redis.call('INCR', KEYS[1])"
    for name in ("EVAL", "EVALSHA"):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            transport.execute([Command("EVAL", failing, 1, key)])
        assert sent(proxy) == [name]


@pytest.mark.parametrize("client_class", [redis.Redis, Wrapped])
def test_a_user_who_may_not_use_hashes(
    client_class: type[redis.Redis], proxy: FaultProxy, own: Server, key: str
) -> None:
    """Where an ACL allows EVAL alone, the text is sent with each call."""
    with own.client() as admin:
        admin.acl_setuser(key, enabled=True, passwords=["+x"], keys="*", commands=["+@all", "-evalsha"])
    with client_class("127.0.0.1", proxy.port, **login(key)) as client:
        transport = transport_for(client)
        assert [transport.execute([push(key, number)]) for number in range(4)] == [[1], [2], [3], [4]]
    assert sent(proxy) == ["EVAL", "EVALSHA", "EVAL", "EVAL", "EVAL"]


@pytest.mark.parametrize("client_class", [redis.Redis, Wrapped])
def test_a_command_that_a_script_may_not_use(
    client_class: type[redis.Redis], proxy: FaultProxy, own: Server, key: str
) -> None:
    """A permission that is missing inside a script does not have the script run again."""
    script = "redis.call('RPUSH', KEYS[1], 'x') return redis.call('INCR', KEYS[1])"
    with own.client() as admin:
        admin.acl_setuser(key, enabled=True, passwords=["+x"], keys="*", commands=["+@all", "-incr"])
    with client_class("127.0.0.1", proxy.port, **login(key)) as client:
        transport = transport_for(client)
        for name in ("EVAL", "EVALSHA"):
            with pytest.raises(redis.ResponseError, match=r"permission|can't run"):
                transport.execute([Command("EVAL", script, 1, key)])
            assert sent(proxy) == [name]


def test_cluster(key: str) -> None:
    """Each node of a cluster is sent the text once it says that it does not know the hash."""
    keys = [f"{{{number}}}{key}" for number in range(8)]
    with running_cluster(3) as nodes, cluster_client(nodes[0]) as client:
        transport = transport_for(client)
        for expected in (1, 2, 3):
            assert transport.execute([push(name, "x") for name in keys]) == [expected] * len(keys)
        stats = []
        for node in nodes:
            with node.client() as direct:
                stats.append(direct.info("commandstats"))
    assert all(counts["cmdstat_evalsha"]["calls"] > counts["cmdstat_eval"]["calls"] == 1 for counts in stats)


@pytest.mark.parametrize("lose", [lambda admin: admin.script_flush(), lambda _: None], ids=["flush", "known"])
def test_a_filter_has_no_doubt(proxy: FaultProxy, own: Server, key: str, lose: Callable[[Any], object]) -> None:
    """A script resent in full does not count as a lost reply."""
    with redis.Redis("127.0.0.1", proxy.port) as client, own.client() as admin:
        bloom = BloomFilter(client, key, capacity=100, expansion=1)
        for number in range(300):
            lose(admin)
            assert bloom.add(f"item {number}")
        assert bloom.counters.ambiguous == 0
    assert "EVALSHA" in sent(proxy)
