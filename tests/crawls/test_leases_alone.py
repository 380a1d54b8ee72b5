"""A part of the data in Redis is deleted during a crawl: the leases, the queue or the filter."""

import signal
import threading
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from devtools.waiting import until
from tests.crawls.test_lost_data import below, url_of
from tests.support.pages import star, tree
from tests.support.scenario import (
    LEASE,
    MIDDLE,
    OURS,
    PAGES,
    Kind,
    assert_ended_well,
    complaints_in,
    keys_of,
    leases_of,
    scene,
)
from tests.support.servers import Server

pytestmark = pytest.mark.crawl

LOST = "bloomfilter_queue_lost"


def test_leases_are_lost(valkey: Server, key: str, tmp_path: Path) -> None:
    """The leases alone are deleted, and their worker is killed: the other one logs the loss."""
    settings: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 2}
    with valkey.client() as client, scene(star(40), tmp_path, valkey.url, key) as played:
        released = threading.Event()

        def hold(worker: str) -> None:
            if worker == "killed" and len(played.site.fetched) > 10:
                released.wait(LIMIT)

        played.site.before = hold
        killed = played.start("killed", settings)
        until(lambda: len(played.site.fetched) == 12)
        # No exchange of its own comes in between, which would find the loss.
        killed.process.send_signal(signal.SIGSTOP)
        lost = [member for each in leases_of(client, key) for member in client.zrange(each, 0, -1)]
        client.delete(*leases_of(client, key))
        killed.kill()
        released.set()
        ended = played.crawl(settings, "other")
        assert lost
        assert played.missed <= {url_of(member).removeprefix(played.site.url) for member in lost}
        assert keys_of(client, key) == set()
    (_, *complaints) = sorted(complaints_in(ended.log), key=lambda line: "are gone" in line)
    assert len(complaints) == 1
    assert f"ERROR: {len(lost)} requests in the queue '{key}:queue' or leased from it are gone" in complaints[0]
    assert ended.stats["finish_reason"] == LOST
    assert ended.stats["bloomfilter/queue_losses"] == 1


@pytest.mark.parametrize("with_audit", [False, True], ids=["alone", "with its audit"])
def test_queue_is_deleted(with_audit: bool, valkey: Server, key: str, tmp_path: Path) -> None:
    """The queue is deleted: both workers log the loss, and their crawl is not `finished`."""
    gone: set[str] = set()
    settings: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key, delay=0.1) as played:

        def delete(_: str) -> None:
            keys = (f"{key}:queue", f"{{{key}:queue}}:crawl")[: 1 + with_audit]
            members, _ = client.pipeline().zrange(f"{key}:queue", 0, -1).delete(*keys).execute()
            gone.update(url_of(member).removeprefix(played.site.url) for member in members)

        played.moments.when(MIDDLE, delete)
        played.site.on["/"] = lambda _: played.opened("left", "right")
        crawls = [worker.wait() for worker in [played.start(name, settings) for name in ("left", "right")]]
        assert gone
        assert played.missed <= below(played.site.links, gone)
        assert keys_of(client, key) == set()
    for ended in crawls:
        assert [line for line in complaints_in(ended.log) if " ERROR: " in line]
        assert ended.stats["finish_reason"] == LOST
        assert ended.exit_code == 1


def test_filter_is_deleted(valkey: Server, key: str, tmp_path: Path) -> None:
    """The filter is deleted: no page is missed, and the log says that some may be fetched twice."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.moments.when(MIDDLE, lambda _: client.delete(key))
        ended = played.crawl({**OURS, **LEASE})
        assert played.missed == set()
    assert_ended_well(ended)
    (warning,) = complaints_in(ended.log)
    assert "The filter of the queue" in warning
