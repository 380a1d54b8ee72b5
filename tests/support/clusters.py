"""Real clusters, and pairs behind a Sentinel: processes of a test."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from devtools import clusters
from devtools.clusters import Cluster
from devtools.sentinels import MASTER, knows_a_replica, watching
from devtools.servers import until_replicated
from devtools.waiting import until
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


class Pair:
    """A master and its replica, and the Sentinel that watches both."""

    def __init__(self, master: Server, replica: Server, sentinel: int) -> None:
        self.master = master
        self.replica = replica
        self.sentinel = sentinel

    def fail_over(self) -> None:
        """Kill the master, and start it again as a replica of the new one."""
        until_replicated(self.master, self.replica)
        self.master.kill()
        until(lambda: _role(self.replica) == "master")
        self.master, self.replica = self.replica, self.master
        self.replica.start()
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", self.master.port)
        until_replicated(self.master, self.replica)
        until(self._is_known)

    def _is_known(self) -> bool:
        with redis.Redis(port=self.sentinel) as client:
            replicas: Any = client.sentinel_slaves(MASTER)
            return any(each["port"] == self.replica.port and not each["is_sdown"] for each in replicas)


def _role(server: Server) -> str:
    with server.client() as client:
        return str(client.info("replication")["role"])


@contextlib.contextmanager
def watched_pair(kind: str, directory: Path) -> Iterator[Pair]:
    """Run a pair and its Sentinel in the block."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with (
        running(kind, *at_once) as master,
        running(kind, *at_once, "--replicaof", "127.0.0.1", f"{master.port}") as replica,
    ):
        until_replicated(master, replica)
        with watching(master, directory, knows_a_replica) as watch:
            yield Pair(master, replica, watch.port)
