"""Moving, merging and deleting filters over a cluster, whose client decodes replies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.waiting import until
from scrapy_bloom import BloomFilter
from scrapy_bloom.admin import clearing
from scrapy_bloom.admin.merging.merge import merge
from scrapy_bloom.storage.redis import RedisStore
from tests.support.moving import SMALL, export, items, restore_file
from tests.support.servers import free_port, running


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A client of a cluster of one node."""
    with running("valkey", "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        with server.client() as client:
            client.cluster("addslotsrange", 0, 16383)
            until(lambda: client.cluster("info")["cluster_state"] == "ok")
        with redis.RedisCluster(host="127.0.0.1", port=server.port, decode_responses=True) as client:
            yield client


def test_over_a_cluster(cluster: Any, tmp_path: Path) -> None:
    """A filter goes to a key in another slot; filters in one slot are merged; both go with a queue."""
    first = BloomFilter(cluster, "{crawl}:one", **SMALL)
    first.add_many(items(600))
    export(cluster, "{crawl}:one", tmp_path / "file")
    done = restore_file(cluster, "elsewhere", tmp_path / "file")
    assert (done.layers, done.replicas) == (3, [])
    assert all(BloomFilter(cluster, "elsewhere", **SMALL).contains_many(items(600)))
    two, three = (BloomFilter(cluster, f"{{crawl}}:{name}", key_of=first, **SMALL) for name in ("two", "three"))
    two.add("in two")
    three.add("in three")
    store = RedisStore(cluster)
    merge(store, "{crawl}:two", ["{crawl}:three"])
    assert two.contains_many(["in two", "in three"]) == [True, True]
    places = ["{crawl}:one", "{crawl}:two", "{crawl}:three", "elsewhere"]
    cluster.zadd("queue", {"request": 0})
    doomed = clearing.look(store, cluster, places, [], ["queue"])
    assert ([occupant.key for occupant, _ in doomed.filters], doomed.queues[0].waiting) == (places, 1)
    clearing.delete(store, cluster, doomed)
    assert not [*cluster.scan_iter()]
