"""A filter over a cluster whose slots move: each item is new to one call, and no script runs twice."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from devtools.waiting import until
from scrapy_bloom import BloomFilter, UnavailableError
from scrapy_bloom.transport.client import disconnect
from tests.support.clusters import begin_move, running_cluster
from tests.support.retries import when_away
from tests.support.servers import Server

NODES = 3
SMALL: dict[str, Any] = {"capacity": 100, "error_rate": 1e-12, "cache_size": 0}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Server]]:
    """The nodes of a cluster."""
    with running_cluster(NODES) as nodes:
        yield nodes


@contextmanager
def client_of(nodes: list[Server]) -> Iterator[Any]:
    """A client of a cluster."""
    client = redis.RedisCluster("127.0.0.1", nodes[0].port, socket_timeout=2)
    yield client
    disconnect(client)


@pytest.fixture
def client(nodes: list[Server]) -> Iterator[Any]:
    """A client of the cluster."""
    with client_of(nodes) as client:
        yield client


@pytest.fixture
def name(nodes: list[Server], client: Any, key: str) -> str:
    """A key of the first node."""
    names = (f"{key}{number}" for number in count())
    return next(each for each in names if client.get_node_from_key(each).port == nodes[0].port)


def identity(node: Server) -> str:
    with node.client() as direct:
        return str(direct.execute_command("CLUSTER", "MYID").decode())


def is_owner(client: Any, slot: int, owner: str) -> bool:
    """Return whether a node knows this one as a slot's owner."""
    ranges = client.execute_command("CLUSTER", "SLOTS")
    return any(first <= slot <= last and master[2].decode() == owner for first, last, master, *_ in ranges)


def is_ok(client: Any) -> bool:
    """Return whether a node considers its cluster complete."""
    return bool(client.cluster("info")["cluster_state"] == "ok")


def end_move(slot: int, nodes: list[Server], source: Server, target: Server) -> None:
    """Move all keys of a slot, and then the slot."""
    owner = identity(target)
    with source.client() as old:
        keys = old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for node in (target, *nodes):
        with node.client() as direct:
            direct.execute_command("CLUSTER", "SETSLOT", slot, "NODE", owner)
            if node is target:
                # Without a newer epoch of its own, a node that has not heard of the move yet may undo it.
                direct.execute_command("CLUSTER", "BUMPEPOCH")
    for node in nodes:
        with node.client() as direct:
            until(partial(is_owner, direct, slot, owner))


def test_a_slot_on_the_move(nodes: list[Server], client: Any, name: str) -> None:
    """Additions wait while keys of the slot are on two nodes, and then go to the new one."""
    slot, source, target = key_slot(name.encode()), nodes[0], nodes[-1]
    bloom, other = (BloomFilter(client, name, **SMALL) for _ in range(2))
    assert bloom.add_many(["a", "b"]) == [True, True]
    begin_move(slot, source, target)
    with source.client() as old:
        old.execute_command("MIGRATE", "127.0.0.1", target.port, name, 0, 5000)
    with when_away(lambda: end_move(slot, nodes, source, target)):
        assert bloom.add_many(["a", "c"]) == [False, True]
    assert other.add_many(["a", "b", "c", "d"]) == [False, False, False, True]
    assert bloom.counters.losses == 0


def test_shards_on_the_move(nodes: list[Server], client: Any, name: str) -> None:
    """Nothing is called seen, and nothing is called absent, while the shards are on another node than the hash."""
    slot, source, target = key_slot(name.encode()), nodes[0], nodes[-1]
    bloom, other = (BloomFilter(client, name, **SMALL) for _ in range(2))
    items = [f"item {number}" for number in range(500)]
    assert all(bloom.add_many(items))
    begin_move(slot, source, target)
    with source.client() as old:
        shards = list(old.scan_iter(match=f"{{{name}}}*", count=1000))
        old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *shards)
    with when_away(lambda: end_move(slot, nodes, source, target)):
        assert all(other.contains_many(items))
    assert bloom.add_many([*items, "a"]) == [False] * 500 + [True]
    assert bloom.counters.losses == 0


def test_a_slot_that_no_node_serves(nodes: list[Server], client: Any, name: str) -> None:
    """It is waited for; once a node serves it, the call is executed."""
    slot = key_slot(name.encode())
    bloom = BloomFilter(client, name, **SMALL, retry_timeout=0)
    bloom.add("a")
    for node in nodes:
        with node.client() as direct:
            direct.config_set("cluster-require-full-coverage", "no")
            direct.execute_command("CLUSTER", "DELSLOTS", slot)
    with pytest.raises(UnavailableError):
        bloom.add("b")
    with nodes[0].client() as direct:
        direct.execute_command("CLUSTER", "ADDSLOTS", slot)
        until(lambda: direct.cluster("info")["cluster_slots_assigned"] == "16384")
    until(lambda: tried(bloom))
    assert bloom.add_many(["a", "b"]) == [False, True]


def tried(bloom: BloomFilter) -> bool:
    """Return whether a lookup succeeds."""
    try:
        return "a" in bloom
    except UnavailableError:
        return False


def test_a_node_that_has_left_the_cluster() -> None:
    """A node that answers but knows no slots is passed over, although it is the first one of the client."""
    with running_cluster(NODES) as nodes, client_of(nodes) as client:
        check_that_it_is_passed_over(nodes, client)


def check_that_it_is_passed_over(nodes: list[Server], client: Any) -> None:
    """Let the first node leave its cluster, with a key that it has."""
    name = next(each for each in map(str, count()) if key_slot(each.encode()) < 16_384 // NODES)
    bloom = BloomFilter(client, name, **SMALL)
    assert bloom.add("a")
    number = identity(nodes[0])
    with nodes[0].client() as left:
        left.flushall()
        left.cluster("reset")
    for node in nodes[1:]:
        with node.client() as other:
            other.cluster("forget", number)
    with nodes[1].client() as direct:
        direct.cluster("addslotsrange", 0, 16_384 // NODES - 1)
    for node in nodes[1:]:
        with node.client() as other:
            until(partial(is_ok, other))
    # Its data are gone.
    assert bloom.add("a")
    assert not bloom.add("a")
