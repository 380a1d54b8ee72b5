"""The shards of a filter on a cluster: their slots and their size."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.placement import CLUSTER_SHARD_BYTES
from scrapy_bloom.filter.sizing import MAX_SHARD_BYTES
from tests.support.clusters import cluster_client, running_cluster
from tests.support.moving import SMALL, export, items, restore_file
from tests.support.servers import Server

MASTERS = 3
MEBIBYTE = 1 << 20
# 63 shards of a mebibyte, or 16 of four.
LARGE: dict[str, Any] = {"capacity": 17_000_000, "error_rate": 1e-6, "cache_size": 0}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Server]]:
    """The masters of a cluster."""
    with running_cluster(MASTERS) as servers:
        yield servers


@pytest.fixture
def cluster(nodes: list[Server]) -> Iterator[Any]:
    """A client of the cluster."""
    with cluster_client(nodes[0]) as client:
        yield client


def shards_by_master(nodes: list[Server], key: str) -> list[set[bytes]]:
    found = []
    for node in nodes:
        with node.client() as client:
            found.append(set(client.scan_iter(f"{key}:[0-9]*")))
    return found


def test_shards_spread(cluster: Any, nodes: list[Server], key: str) -> None:
    """With 20 shards a master and more, each master has its share within 5 %."""
    bloom = BloomFilter(cluster, key, shard_bytes=MEBIBYTE, **LARGE)
    bloom.add("a")
    counts = [len(names) for names in shards_by_master(nodes, key)]
    assert sum(counts) >= 20 * MASTERS
    assert max(abs(count * MASTERS / sum(counts) - 1) for count in counts) <= 0.05
    stored = json.loads(cluster.hget(key, "filter"))
    assert (stored["format"], json.loads(cluster.hget(key, "layer:0"))["spread"]) == (3, True)
    bloom.clear()
    assert not any(shards_by_master(nodes, key))


def test_growth_and_a_lost_hash(cluster: Any, nodes: list[Server], key: str) -> None:
    """A filter grows, is found by later workers, restores its hash, and is deleted, as on a single server."""
    bloom = BloomFilter(cluster, key, **SMALL)
    assert sum(bloom.add_many(items(3000))) > 2980
    assert bloom.info().layers > 2
    joined = BloomFilter(cluster, key, **SMALL)
    assert sum(joined.add_many(items(3000))) == 0
    cluster.unlink(key)
    joined.add_many(items(1000, "other"))
    assert sum(BloomFilter(cluster, key, **SMALL).add_many(items(3000))) == 0
    cluster.unlink(key)
    BloomFilter(cluster, key, flush=True, **SMALL)
    assert not any(shards_by_master(nodes, key))


def test_braces_keep_a_filter_together(cluster: Any, nodes: list[Server], key: str) -> None:
    """A key with braces decides on the slot of all shards, which have the usual names."""
    bloom = BloomFilter(cluster, f"{{{key}}}:x", shard_bytes=MEBIBYTE, **LARGE)
    bloom.add("a")
    assert json.loads(cluster.hget(bloom.key, "filter"))["format"] == 2
    assert sorted(map(bool, shards_by_master(nodes, bloom.key))) == [False, False, True]
    bloom.clear()


def test_size_of_a_shard(cluster: Any, valkey: Server, key: str) -> None:
    """Shards are small on a cluster, large on a server, and as small as the worker asks for."""
    with valkey.client() as single:
        for client, shard_bytes, largest in (
            (cluster, None, CLUSTER_SHARD_BYTES),
            (single, None, MAX_SHARD_BYTES),
            (single, MEBIBYTE, MEBIBYTE),
        ):
            bloom = BloomFilter(client, key, shard_bytes=shard_bytes, **LARGE)
            bloom.add("a")
            layer = json.loads(client.hget(key, "layer:0"))
            assert largest / 2 < layer["bits"] / 8 / layer["shards"] <= largest
            bloom.clear()


def test_restored(cluster: Any, nodes: list[Server], valkey: Server, key: str, tmp_path: Path) -> None:
    """A filter of a single server spreads when it is restored on a cluster, and the other way round."""
    with valkey.client() as single:
        BloomFilter(single, key, **SMALL).add_many(items(3000))
        export(single, key, tmp_path / "single")
        restore_file(cluster, key, tmp_path / "single")
        assert all(name.endswith(b"}") for names in shards_by_master(nodes, key) for name in names)
        moved = BloomFilter(cluster, key, **SMALL)
        assert sum(moved.add_many(items(3000))) == 0
        export(cluster, key, tmp_path / "cluster")
        restore_file(single, f"{key}:back", tmp_path / "cluster")
        assert not any(name.endswith(b"}") for name in single.scan_iter(f"{key}:back*"))
        back = BloomFilter(single, f"{key}:back", **SMALL)
        assert sum(back.add_many(items(3000))) == 0
        for bloom in (moved, back, BloomFilter(single, key, **SMALL)):
            bloom.clear()
