"""A filter over a cluster whose slots move: each item is new to one call, and no script runs twice."""

from collections.abc import Iterator
from typing import Any

import pytest

from devtools.waiting import until
from scrapy_bloom import BloomFilter, UnavailableError
from scrapy_bloom.transport.client import disconnect
from tests.support.clusters import Cluster, begin_move, cluster_client, running_cluster, slot_of
from tests.support.retries import when_away

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


def test_a_slot_that_no_node_serves(cluster: Cluster, client: Any, key: str) -> None:
    """It is waited for; once a node serves it, the call is executed."""
    bloom = BloomFilter(client, key, **SMALL, retry_timeout=0)
    bloom.add("a")
    owner = cluster.owner_of(key)
    for node in cluster.nodes:
        with node.client() as direct:
            direct.config_set("cluster-require-full-coverage", "no")
            direct.execute_command("CLUSTER", "DELSLOTS", slot_of(key))
    with pytest.raises(UnavailableError):
        bloom.add("b")
    with owner.client() as direct:
        direct.execute_command("CLUSTER", "ADDSLOTS", slot_of(key))
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
    with running_cluster(3) as cluster:
        left, *others = cluster.nodes
        with cluster_client(left) as client, left.client() as direct:
            slots = cluster.slots_of(left)
            name = next(each for each in map(str, range(1000)) if slot_of(each) in slots)
            bloom = BloomFilter(client, name, **SMALL)
            assert bloom.add("a")
            number = direct.execute_command("CLUSTER", "MYID")
            direct.flushall()
            direct.cluster("reset")
            for node in others:
                with node.client() as other:
                    other.cluster("forget", number)
            with others[0].client() as other:
                other.cluster("addslotsrange", slots[0], slots[-1])
            for node in others:
                with node.client() as other:
                    until(lambda other=other: other.cluster("info")["cluster_state"] == "ok")  # type: ignore[misc]
            # Its data are gone.
            assert [bloom.add("a"), bloom.add("a")] == [True, False]
