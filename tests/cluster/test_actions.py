"""`scrapy bloom import` on a cluster whose master dies, or whose slots move, in the middle."""

from collections.abc import Callable

import pytest

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli._filling import Filling
from tests.support import command
from tests.support.clusters import Cluster, cluster_client, kill, replicated_cluster, reshard
from tests.support.imports import OPTIONS, backup, fill

MEMBERS = 5000


@pytest.mark.long
@pytest.mark.parametrize("fault", [kill, pytest.param(reshard, marks=pytest.mark.cluster)])
def test_import(
    fault: Callable[[Cluster, str], None],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every member is in the filter, at the latest after the second run that the error asks for."""
    calls = 0
    add = Filling.add

    def add_amid_a_fault(filling: Filling, members: list[bytes]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            fault(cluster, key)
        add(filling, members)

    monkeypatch.setattr(Filling, "add", add_amid_a_fault)
    with replicated_cluster("valkey") as cluster:
        with cluster_client(cluster.nodes[0]) as client:
            members = fill(client, key, MEMBERS)
        arguments = ("import", "--key", key, "--redis-url", cluster.url, "--capacity", "1000")
        code = command.call(*arguments)
        if code:
            assert "again" in capsys.readouterr().err
            assert command.call(*arguments) == 0
        assert calls > 1
        # A replica, since the first master may have died.
        with cluster_client(cluster.nodes[-1]) as client:
            assert all(BloomFilter(client, key, **OPTIONS).contains_many(members))
            assert client.scard(backup(key)) == MEMBERS
