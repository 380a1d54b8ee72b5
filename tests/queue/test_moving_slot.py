"""Scripts on a slot that is being moved to another node of a cluster are executed as a whole or not at all."""

from collections.abc import Iterator

import pytest
import redis
from redis import exceptions

from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.start_data import data_of
from scrapy_bloom.transport.connect import disconnect
from tests.support.clusters import Cluster, begin_move, running_cluster, slot_of
from tests.support.driven import Driven, in_queues

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


def test_sync(cluster: Cluster, client: redis.RedisCluster, key: str) -> None:
    """A sync that ends the last lease and takes the last request loses neither of them."""
    driven = Driven.on_server(client, key, "worker")
    driven.offer(b"leased", b"waiting")
    assert driven.take() == [b"leased"]
    # All keys of a queue exist in a crawl with dead letters and kept requests.
    keys = QueueKeys(key)
    client.zadd(keys.dead_letters, {"letter": 0})
    client.hset(keys.deaths, "letter", "3")
    client.hset(keys.failed, "failed", "1 0 f")
    begin(cluster, key)
    driven.worker.finish(b"leased")
    with pytest.raises(_REFUSED):
        driven.step(1)
    assert client.zrange(key, 0, -1) == [b"waiting"]
    assert sum(client.zcard(name) for name in keys.of_worker("worker")) == 1
    end_move(cluster, key)
    driven.step(1)
    assert [entry.member for entry, _ in driven.worker.ready] == [b"waiting"]


def test_start_data(cluster: Cluster, client: redis.RedisCluster, key: str) -> None:
    """No start URL is popped while its slot is on the move."""
    start = f"{{{key}}}:start"
    driven = Driven("one", in_queues([RequestQueue(client, key, f"{{{key}}}:dupefilter", [start])]), starts=2)
    driven.work_off()
    client.rpush(start, "a", "b", "c")
    begin(cluster, key)
    with pytest.raises(_REFUSED):
        driven.step(1)
    assert client.lrange(start, 0, -1) == [b"a", b"b", b"c"]
    end_move(cluster, key)
    assert [data_of(member)[1] for member in driven.take(2)] == [b"a", b"b"]
