"""Scripts on a slot that is being moved to another node of a cluster are executed as a whole or not at all."""

from collections.abc import Iterator

import pytest
import redis
from redis import exceptions

from devtools.clusters import Cluster, running_cluster, slot_of
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.operations import Join, RequestQueue, Status, Sync
from scrapy_bloom.start_urls.leases import StartUrls
from scrapy_bloom.storage.shards import MADE, CreateShard
from scrapy_bloom.storage.stores import RedisStore, RetryingStore
from scrapy_bloom.transport.client import disconnect
from tests.support.servers import running


@pytest.fixture(scope="module", params=["valkey", "redis"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of two masters."""
    with running_cluster(request.param, 2, run=running) as found:
        yield found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[redis.RedisCluster]:
    """A client of the cluster."""
    found = cluster.client()
    yield found
    disconnect(found)


def begin_move(cluster: Cluster, key: str) -> None:
    """Begin to move a key's slot; all keys are still on the old node."""
    source = cluster.owner_of(key)
    target = next(node for node in cluster.nodes if node is not source)
    with source.client() as old, target.client() as new:
        identities = [node.execute_command("CLUSTER", "MYID").decode() for node in (old, new)]
        new.execute_command("CLUSTER", "SETSLOT", slot_of(key), "IMPORTING", identities[0])
        old.execute_command("CLUSTER", "SETSLOT", slot_of(key), "MIGRATING", identities[1])


def end_move(cluster: Cluster, key: str) -> None:
    """Leave the slot where it is."""
    for node in cluster.nodes:
        with node.client() as direct:
            direct.execute_command("CLUSTER", "SETSLOT", slot_of(key), "STABLE")


def test_sync(cluster: Cluster, client: redis.RedisCluster, key: str) -> None:
    """A sync that ends the last lease and takes the last request loses neither of them."""
    queue = RequestQueue(client, key)
    queue.execute(Join("worker", "60", 0, True))
    leased, waiting = QueueEntry(0, b"leased"), QueueEntry(0, b"waiting")
    queue.execute(Sync("worker", 1, 0, leases=(leased,), pushes=(waiting,)))
    # All keys of a queue exist in a crawl with dead letters.
    client.zadd(queue.keys.dead_letters, {"letter": 0})
    client.hset(queue.keys.deliveries, "letter", "3")
    begin_move(cluster, key)
    sync = Sync("worker", 2, 1, acks=(b"leased",))
    with pytest.raises(exceptions.TryAgainError):
        queue.execute(sync)
    assert client.zrange(key, 0, -1) == [b"waiting"]
    assert client.zrange(queue.keys.leases("worker"), 0, -1) == [b"leased"]
    end_move(cluster, key)
    reply = queue.execute(sync)
    assert (reply.status, reply.entries) == (Status.OK, (waiting,))


def test_start_urls(cluster: Cluster, client: redis.RedisCluster, key: str) -> None:
    """The dead letters of all start URLs are stored."""
    urls = StartUrls(client, key, "list", "worker", "queue")
    client.rpush(key, "a", "b", "c")
    client.rpush(urls.keys.dead_letters, "former")
    urls.lease(2)
    for url in urls.ready:
        urls.bury(url)
    begin_move(cluster, key)
    with pytest.raises(exceptions.TryAgainError):
        urls.sync()
    end_move(cluster, key)
    urls.sync()
    assert client.lrange(urls.keys.dead_letters, 0, -1) == [b"former", b"a", b"b"]


def test_shard(cluster: Cluster, client: redis.RedisCluster, key: str) -> None:
    """The shard of an earlier filter is replaced: the node deletes the old string, the next one gets the new string."""
    store = RetryingStore(RedisStore(client), 10)
    create = [CreateShard(key, 128, epoch, sealed=False, expires=None) for epoch in (1, 2)]
    assert store.execute(create[:1])[0].outcome == MADE
    begin_move(cluster, key)
    assert store.execute(create[1:])[0].outcome == MADE
    client.unlink(key)
    end_move(cluster, key)
