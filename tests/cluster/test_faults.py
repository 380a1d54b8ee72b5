"""Processes add the same items to a filter while its cluster, or its master behind a Sentinel, fails."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from tests.support.additions import BATCH, PROCESSES, adding
from tests.support.clusters import Cluster, kill, replicated_cluster, reshard
from tests.support.outcomes import tell
from tests.support.servers import KINDS

ITEMS = 200_000
FEW_ITEMS = 20_000
# The last batch of each process that the dead master executed, and the batch in doubt.
AT_A_KILL = 2 * PROCESSES * BATCH
SILENT_SECONDS = 6.0

Fault = Callable[[Cluster, str], None]


def restart_empty(cluster: Cluster, key: str) -> None:
    """Kill the master of a key, and start it again without its data, before its replica takes over."""
    cluster.restart_empty(cluster.owner_of(key))


def silence(cluster: Cluster, key: str) -> None:
    """Stop its process for six seconds; its replica takes over."""
    cluster.silence(cluster.owner_of(key), SILENT_SECONDS)


def reshard_and_kill(cluster: Cluster, key: str) -> None:
    """Kill it when half of its slots are moved; the others are moved from its replica."""
    source = cluster.owner_of(key)
    target = cluster.other_than(source)
    slots = cluster.slots_of(source)
    half = len(slots) // 2
    cluster.move(slots[:half], source, target)
    cluster.kill(source)
    promoted = cluster.owner(slots[-1])
    cluster.move(slots[half:], promoted, target)


# A fault, and how many items it may make new twice.
FAULTS: dict[str, tuple[Fault, int | None]] = {
    "kill": (kill, AT_A_KILL),
    "restart empty": (restart_empty, None),
    "reshard": (reshard, 0),
    "silence": (silence, AT_A_KILL),
    "reshard and kill": (reshard_and_kill, AT_A_KILL),
}


def connect(port: int) -> Any:
    """Make a client of a cluster."""
    return redis.RedisCluster("127.0.0.1", port)


CASES = [
    *(pytest.param("valkey", name, FEW_ITEMS) for name in ("kill", "reshard")),
    *(pytest.param(kind, name, ITEMS, marks=pytest.mark.cluster) for kind in KINDS for name in FAULTS),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "name", "items"), CASES)
def test_fault(kind: str, name: str, items: int, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each item is new to a process; few are new to two, and none in a reshard."""
    fault, most = FAULTS[name]
    with replicated_cluster(kind) as cluster, adding(partial(connect, cluster.nodes[-1].port), key, items) as additions:
        additions.wait_for(items // 2)
        fault(cluster, key)
        outcome = additions.finish()
    tell(capsys, f"cluster of {kind}, {name}, {items:,} items: {outcome}")
    assert outcome.lost == 0
    # Everything that the node had may be new again.
    assert outcome.twice <= (items if most is None else most)
    # The processes wait, and do not ask again and again.
    assert outcome.cpu < max(0.25, outcome.longest / 2)
