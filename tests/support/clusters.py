"""Real clusters, whose nodes are processes of a test."""

import contextlib
from collections.abc import Iterator
from typing import Any

import redis

from devtools import clusters
from devtools.clusters import Cluster
from scrapy_bloom.transport.client import disconnect
from tests.support.servers import Server, running

# The other masters let a replica take over after 2 seconds without an answer.
_NODE_TIMEOUT = ("--cluster-node-timeout", "2000")


@contextlib.contextmanager
def running_cluster(number: int, *options: str) -> Iterator[list[Server]]:
    """Run a cluster of masters with equal shares of the slots, in their order."""
    with clusters.running_cluster("valkey", number, *options, run=running) as cluster:
        yield list(cluster.nodes)


@contextlib.contextmanager
def cluster_client(node: Server, **options: Any) -> Iterator[Any]:
    """A client of a node's cluster, in the block. Its own `close` leaves the connections of filters and queues open."""
    client: Any = redis.RedisCluster("127.0.0.1", node.port, **options)
    try:
        yield client
    finally:
        disconnect(client)


@contextlib.contextmanager
def replicated_cluster(kind: str) -> Iterator[Cluster]:
    """Run a cluster of three masters with a replica each."""
    with clusters.running_cluster(kind, 3, *_NODE_TIMEOUT, replicas=1, run=running) as cluster:
        yield cluster


def begin_move(slot: int, source: Server, target: Server) -> None:
    """Begin to move a slot: its keys are still on the old node."""
    with source.client() as old, target.client() as new:
        identities = [node.execute_command("CLUSTER", "MYID").decode() for node in (old, new)]
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", identities[0])
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", identities[1])


def kill(cluster: Cluster, key: str) -> None:
    """Kill the master of a key; its replica takes over."""
    cluster.kill(cluster.owner_of(key))


def reshard(cluster: Cluster, key: str) -> None:
    """Move all slots of the master of a key to another master."""
    source = cluster.owner_of(key)
    target = next(node for node in cluster.nodes[:3] if node is not source)
    cluster.move(cluster.slots_of(source), source, target)
