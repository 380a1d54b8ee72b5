"""Scripts on a slot that is being moved to another node of a cluster are executed as a whole or not at all."""

from collections.abc import Iterator

import pytest
import redis
from redis import exceptions

from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.start_urls import StartUrls
from scrapy_bloom.transport.connect import disconnect
from tests.support.clusters import Cluster, begin_move, running_cluster, slot_of
from tests.support.driven import Driven

# redis-py repeats a refused command a few times.
_REFUSED = (exceptions.TryAgainError, exceptions.ClusterError)


@pytest.fixture(scope="module", params=["valkey", "redis"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of two masters."""
    with running_cluster(2, kind=request.param) as found:
        yield found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[redis.RedisCluster]:
    """A client of the cluster."""
    found = cluster.client()
    yield found
    disconnect(found)


def begin(cluster: Cluster, key: str) -> None:
    """Begin to move a key's slot."""
    source = cluster.owner_of(key)
    begin_move(slot_of(key), source, cluster.other_than(source))


def end_move(cluster: Cluster, key: str) -> None:
    """Leave the slot where it is."""
    for node in cluster.nodes:
        with node.client() as direct:
            direct.execute_command("CLUSTER", "SETSLOT", slot_of(key), "STABLE")


def test_exchange(cluster: Cluster, client: redis.RedisCluster, key: str) -> None:
    """An exchange that ends the last lease and takes the last request loses neither of them."""
    driven = Driven.on_server(client, key, "worker")
    driven.offer(b"leased", b"waiting")
    assert driven.take() == [b"leased"]
    # All keys of a queue exist in a crawl with dead letters and kept requests.
    keys = QueueKeys(key)
    client.zadd(keys.dead_letters, {"letter": 0})
    client.hset(keys.deliveries, "letter", "3")
    client.hset(keys.failed, "failed", "1 0 f")
    client.hset(keys.departed, "@other", "1 " * 13)
    client.hset(keys.suspects, "other", "letter")
    begin(cluster, key)
    driven.worker.finish(b"leased")
    with pytest.raises(_REFUSED):
        driven.step(1)
    assert client.zrange(key, 0, -1) == [b"waiting"]
    assert sum(client.zcard(name) for name in keys.of_worker("worker")) == 1
    end_move(cluster, key)
    driven.step(1)
    assert [entry.member for entry in driven.worker.ready] == [b"waiting"]


def test_start_urls(cluster: Cluster, client: redis.RedisCluster, key: str) -> None:
    """The dead letters of all start URLs are stored."""
    urls = StartUrls(client, key, "list", "worker", "queue")
    client.rpush(key, "a", "b", "c")
    client.rpush(urls.keys.dead_letters, "former")
    urls.lease(2)
    for url in urls.ready:
        urls.bury(url)
    begin(cluster, key)
    with pytest.raises(_REFUSED):
        urls.sync()
    end_move(cluster, key)
    urls.sync()
    assert client.lrange(urls.keys.dead_letters, 0, -1) == [b"former", b"a", b"b"]
