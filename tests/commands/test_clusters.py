"""Moving, deleting and examining filters in a cluster, with a client that decodes replies."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.checks import server
from scrapy_bloom.cli.checks.case import MEANINGS, Level
from scrapy_bloom.cli.importing.import_state import ImportKeys
from scrapy_bloom.monitoring.reporter import warn_about_memory_policy
from scrapy_bloom.storage.filter_keys import forgotten_key
from scrapy_bloom.storage.stores import RedisStore
from tests.support import command
from tests.support.clusters import cluster_client, running_cluster
from tests.support.examining import OURS, examine, wrong
from tests.support.imports import OPTIONS, fill, keys_of, set_import
from tests.support.moving import SMALL, export, items, require, restore_file
from tests.support.servers import Server


@pytest.fixture(scope="module")
def node() -> Iterator[Server]:
    """A node of a cluster of two."""
    with running_cluster(2) as nodes:
        yield nodes[0]


@pytest.fixture
def cluster(node: Server) -> Iterator[Any]:
    """A client of the cluster."""
    with cluster_client(node, decode_responses=True) as client:
        yield client


def test_over_a_cluster(cluster: Any, tmp_path: Path) -> None:
    """A filter is restored to a key in another slot, and filters are deleted with a queue."""
    BloomFilter(cluster, "{crawl}:one", **SMALL).add_many(items(600))
    export(cluster, "{crawl}:one", tmp_path / "file")
    done = restore_file(cluster, "elsewhere", tmp_path / "file")
    assert done.layers == 3
    assert all(BloomFilter(cluster, "elsewhere", **SMALL).contains_many(items(600)))
    store = RedisStore(cluster)
    places = ["{crawl}:one", "elsewhere"]
    cluster.zadd("queue", {"request": 0})
    doomed = key_contents.plan_deletion(store, cluster, cluster, places, queues=[], flushed=["queue"])
    assert ([occupant.key for occupant, _ in doomed.filters], doomed.queues[0].waiting) == (places, 1)
    key_contents.execute_deletion(store, cluster, doomed, 60.0)
    assert not [*cluster.scan_iter()]


@pytest.mark.parametrize("name", ["{}", "{{{}}}:dupefilter"], ids=["in all slots", "in one slot"])
def test_import(cluster: Any, key: str, name: str) -> None:
    """A SET is imported into a filter whose shards are on all nodes, or on the node of the SET."""
    at = ImportKeys.of(name.format(key))
    members = fill(cluster, at.key, 2500)
    assert set_import(cluster, at.key, batch=500).run(copy_only=True).members == 2500
    report = set_import(cluster, at.key, batch=500).run(delete_source=True)
    assert (report.checked, report.is_finished) == (2500, True)
    bloom = BloomFilter(cluster, at.key, **OPTIONS)
    assert all(bloom.contains_many(members))
    found = require(RedisStore(cluster), at.key)
    assert found.identity.is_spread == (name == "{}")
    assert keys_of(cluster, key) == {at.key, *(shard for layer in found.layers for shard in layer.shard_keys)}


def test_doctor(cluster: Any, node: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every check runs on a cluster; a filter in another slot than its queue is reported."""
    settings = {
        **OURS,
        "REDIS_PARAMS": {"redis_cls": "redis.RedisCluster"},
        "SCHEDULER_QUEUE_KEY": f"{key}:%(spider)s",
        "REDIS_START_URLS_KEY": f"{key}:%(name)s",
    }
    BloomFilter(cluster, f"{{{key}:fed}}:dupefilter", fingerprint="scrapy-redis").add("a")
    url = f"redis://127.0.0.1:{node.port}"
    code, found = examine(url, capsys, "fed", **settings)
    assert (code, wrong(found)) == (1, {"persistence": "loss", "serializer": "advice"})
    assert MEANINGS.keys() - found.keys() <= {"flush", "import", "ttl", "replication"}
    bloom = BloomFilter(cluster, f"{{{key}:fed}}:dupefilter", fingerprint="scrapy-redis")
    assert bloom.forget("a")
    command.call("doctor", "--key", bloom.key, "--redis-url", f"redis+cluster://127.0.0.1:{node.port}")
    place = cluster.get_node_from_key(bloom.key).name
    assert f"1 forgotten request at {forgotten_key(bloom.key)!r} on {place}\n" in capsys.readouterr().out
    patient = {**settings, "REDIS_PARAMS": {"redis_cls": "redis.RedisCluster", "socket_timeout": 31}}
    assert examine(url, capsys, "fed", **patient)[1]["timeouts"][0] == "advice"
    elsewhere = {**settings, "SCHEDULER_DUPEFILTER_KEY": f"{key}:%(spider)s:dupefilter"}
    code, found = examine(url, capsys, "fed", **elsewhere)
    assert (code, found["slots"][0]) == (1, "advice")
    assert f"{{{key}:fed}}:dupefilter" in found["slots"][2]
    bloom.clear()


def test_info(cluster: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The shards of a filter are counted by node: all on one node, or spread."""
    url = f"redis+cluster://127.0.0.1:{cluster.get_primaries()[0].port}"
    masters = sorted(node.name for node in cluster.get_primaries())
    for name, nodes in ((key, masters), (f"{{{key}}}", [cluster.get_node_from_key(f"{{{key}}}").name])):
        bloom = BloomFilter(cluster, name, capacity=1_000_000, error_rate=1e-6, shard_bytes=1 << 20)
        bloom.add("a")
        assert command.call("info", "--key", name, "--redis-url", url, "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert list(report["nodes"]) == nodes
        for measure in ("shards", "memory_bytes"):
            assert sum(share[measure] for share in report["nodes"].values()) == report[measure]
        assert command.call("info", "--key", name, "--redis-url", url) == 0
        assert all(f"on {node} " in capsys.readouterr().out for node in nodes[:1])
        bloom.clear()


def test_every_node_is_asked(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The memory policy of every node is checked, and their `maxmemory` is added up."""
    for evicting in cluster.get_primaries():
        for node in cluster.get_primaries():
            policy, save = ("allkeys-lru", "3600 1") if node == evicting else ("noeviction", "")
            for name, value in {"maxmemory": 64_000_000, "maxmemory-policy": policy, "save": save}.items():
                cluster.config_set(name, value, target_nodes=node)
        caplog.clear()
        warn_about_memory_policy(cluster, "a filter", 128_000_000)
        assert ["allkeys-lru" in message for message in caplog.messages] == [True]
        warn_about_memory_policy(cluster, "a filter", 128_000_001)
        assert sum("maxmemory is 128,000,000" in message for message in caplog.messages) == 1
        found = [each for node in server.nodes_of(cluster) for each in node.examine(0, expires=False)]
        losses = [finding.check for finding in found if finding.level is Level.LOSS]
        assert sorted(losses) == ["eviction", "persistence"]
