"""Actions of `scrapy bloom` on a cluster whose master dies, or whose slots move, in the middle."""

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from devtools.clusters import Cluster
from scrapy_bloom import BloomFilter
from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.archive import exporting, file_format
from scrapy_bloom.cli.archive.file_format import Archive
from scrapy_bloom.cli.archive.restoring import restore
from scrapy_bloom.cli.importing.set_import import SetImport
from scrapy_bloom.storage.stores import RedisStore, RetryingStore
from scrapy_bloom.transport.client import disconnect
from tests.support.clusters import kill, replicated_cluster, reshard
from tests.support.examining import examine
from tests.support.imports import OPTIONS, PARAMETERS, Silent, backup, fill
from tests.support.moving import SMALL, items, keys_at, require

pytestmark = pytest.mark.long

ITEMS, MEMBERS = 5000, 5000
WAIT_SECONDS = 60.0

Fault = Callable[[Cluster, str], None]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of this test's own."""
    with replicated_cluster("valkey") as running:
        yield running


@contextlib.contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """A client of the cluster, whose connections are closed at the end."""
    client = cluster.client()
    try:
        yield client
    finally:
        disconnect(client)


# Moving all slots takes longer than the tests of each commit may.
FAULTS = [pytest.param(kill, id="kill"), pytest.param(reshard, id="reshard", marks=pytest.mark.cluster)]


class Once(Silent):
    """Runs a fault at a report of progress with a given number."""

    def __init__(self, at: int, fault: Callable[[], None]) -> None:
        self._left = at
        self._fault = fault

    def advance(self, _: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._fault()

    @property
    def has_happened(self) -> bool:
        return self._left <= 0


def store_of(client: Any) -> RetryingStore:
    return RetryingStore(RedisStore(client), WAIT_SECONDS)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", [2, 8], ids=["copying", "checking"])
def test_import(cluster: Cluster, fault: Fault, at: int, key: str) -> None:
    """The node of the SET and of the filter's hash fails: every member is in the filter."""
    with connected(cluster) as client:
        members = fill(client, key, MEMBERS)
        progress = Once(at, lambda: fault(cluster, key))
        report = SetImport(client, key, PARAMETERS, progress, retry_timeout=WAIT_SECONDS, save_seconds=0.0).run()
        assert (progress.has_happened, report.is_finished, report.checked) == (True, True, MEMBERS)
    with connected(cluster) as client:
        assert all(BloomFilter(client, key, **OPTIONS).contains_many(members))
        assert client.scard(backup(key)) == MEMBERS


@pytest.mark.parametrize("fault", FAULTS)
def test_export_and_restore(cluster: Cluster, fault: Fault, key: str, tmp_path: Path) -> None:
    """A node fails during the export, and another one during the restore: the restored filter has every item."""
    path = tmp_path / "file"
    with connected(cluster) as client:
        BloomFilter(client, key, **SMALL).add_many(items(ITEMS))
        store = store_of(client)
        found = require(store, key)
        progress = Once(2, lambda: fault(cluster, found.layers[-1].shard_keys[0]))
        exporting.export(store, found, path, advance=progress.advance)
        assert progress.has_happened
        # The replica that has taken over has no replica itself.
        owner = cluster.owner_of(found.layers[-1].shard_keys[0])
        copy = next(name for name in (f"{key}:{number}" for number in count()) if cluster.owner_of(name) is not owner)
        progress = Once(len(found.layers) + 1, lambda: fault(cluster, copy))
        with path.open("rb") as file:
            saved = file_format.read(Archive(path, file))
            restore(store, client, copy, saved, overwrite=False, advance=progress.advance)
        assert progress.has_happened
        assert all(BloomFilter(client, copy, **SMALL).contains_many(items(ITEMS)))


@pytest.mark.parametrize("fault", FAULTS)
def test_clear(cluster: Cluster, fault: Fault, key: str) -> None:
    """A node fails between the listing and the deletion: all of the filter is deleted."""
    with connected(cluster) as client:
        BloomFilter(client, key, **SMALL).add_many(items(ITEMS))
        store = store_of(client)
        plan = key_contents.plan_deletion(store, client, client, [key], queues=[], flushed=[])
        fault(cluster, key)
        assert key_contents.execute_deletion(store, client, plan, WAIT_SECONDS) == []
    with connected(cluster) as client:
        assert not keys_at(client, key)


def test_doctor_without_nodes(cluster: Cluster, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Doctor names each node: a dead replica, then a dead master, and the checks that need it."""
    place = ("--key", f"{{{key}}}", "--queue", f"{{{key}}}:queue")
    master = next(node for node in cluster.nodes[:3] if node is not cluster.owner_of(key))
    replica = cluster._replica_of(master)
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("appendonly", "yes")
            client.config_set("cluster-replica-no-failover", "yes")
    cluster.until_ready()
    assert examine(cluster.url, capsys, *place)[1]["replication"][0] == "ok"
    replica.kill()
    level, text, _ = examine(cluster.url, capsys, *place)[1]["server"]
    assert (level, f"127.0.0.1:{replica.port}: the replica" in text) == ("advice", True)
    master.kill()
    code, found = examine(cluster.url, capsys, *place)
    level, text, _ = found["server"]
    assert (code, level, f"127.0.0.1:{master.port}: the master cannot be asked" in text) == (1, "loss", True)
    assert found["leases"][0] == "loss"
    assert "not checked" in found["leases"][1]
