"""Crawls of two workers on a cluster whose master dies or loses its slots, while a worker is killed."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.clusters import Cluster, kill, replicated_cluster, reshard
from tests.support.outcomes import assert_complete, tell
from tests.support.pages import tree
from tests.support.scenario import MIDDLE, OURS, PAGES, Kind, scene

pytestmark = [pytest.mark.crawl, pytest.mark.long]

WORKER: Kind = {**OURS, "BLOOMFILTER_LEASE": 2, "CONCURRENT_REQUESTS": 4}
# Pages between the fault and the kill of a worker.
FURTHER = 10


@pytest.mark.parametrize("partitions", [1, 6])
@pytest.mark.parametrize("fault", [kill, reshard], ids=lambda fault: fault.__name__)
def test_fault_and_lost_worker(
    fault: Callable[[Cluster, str], None], partitions: int, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The remaining worker fetches all pages."""
    in_one_slot, worker = f"{{{key}}}", {**WORKER, "BLOOMFILTER_PARTITIONS": partitions}
    with replicated_cluster("valkey") as cluster, scene(tree(PAGES), tmp_path, cluster.url, in_one_slot) as played:
        failing = threading.Thread(target=partial(fault, cluster, in_one_slot))
        lost, remaining = (played.start(name, worker) for name in ("lost", "remaining"))
        played.moments.when(MIDDLE, lambda _: failing.start())
        played.moments.when(MIDDLE + FURTHER, lambda _: lost.kill())
        ended = remaining.wait()
        failing.join()
    told = f"missed {len(played.missed)} of {PAGES}, {played.twice} twice"
    tell(capsys, f"cluster, {fault.__name__}, partitions: {partitions}: {told}")
    assert_complete(played, ended)
