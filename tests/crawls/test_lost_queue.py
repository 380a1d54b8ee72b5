"""Crawls that lose their queue or leases alone, or keep the queue alone: the log gives the fate of its requests."""

import re
import signal
import threading
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from devtools.waiting import until
from tests.crawls.test_lost_data import below, url_of
from tests.support.pages import star, tree
from tests.support.scenario import (
    FILTER_ALONE,
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

KIND: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4}
REQUESTS, LOST = "requests in the queue", "bloomfilter_queue_lost"


@pytest.mark.parametrize("with_audit", [False, True], ids=["alone", "with its audit"])
def test_queue_is_deleted(with_audit: bool, valkey: Server, key: str, tmp_path: Path) -> None:
    """Each worker logs the loss, with the number of lost requests if it is known, and ends with its own reason."""
    gone: set[str] = set()
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key, delay=0.1) as played:

        def delete(_: str) -> None:
            keys = (f"{key}:queue", f"{{{key}:queue}}:crawl")[: 1 + with_audit]
            members, _ = client.pipeline().zrange(f"{key}:queue", 0, -1).delete(*keys).execute()
            gone.update(url_of(member).removeprefix(played.site.url) for member in members)

        played.moments.when(MIDDLE, delete)
        played.site.on["/"] = lambda _: played.opened("left", "right")
        crawls = played.crawl_by("left", "right", kind=KIND)
        assert gone
        assert played.missed <= below(played.site.links, gone)
        assert keys_of(client, key) == set()
    for ended in crawls:
        errors = [line for line in complaints_in(ended.log) if " ERROR: " in line]
        assert errors
        assert ended.stats["finish_reason"] == LOST
        assert ended.exit_code == 1
        if not with_audit:
            assert len(errors) == 1
            assert f"{len(gone):,} {REQUESTS} '{key}:queue' or leased from it are gone" in errors[0]
            assert ended.stats["bloomfilter/queue_losses"] == 1


def test_leases_are_lost(valkey: Server, key: str, tmp_path: Path) -> None:
    """The leases alone are deleted, and their worker is killed: the other one logs the loss."""
    kind = {**KIND, "CONCURRENT_REQUESTS": 2}
    with valkey.client() as client, scene(star(40), tmp_path, valkey.url, key) as played:
        released = threading.Event()

        def hold(worker: str) -> None:
            if worker == "killed" and len(played.site.fetched) > 10:
                released.wait(LIMIT)

        played.site.before = hold
        killed = played.start("killed", kind)
        until(lambda: len(played.site.fetched) == 12)
        # No exchange of its own comes in between, which would find the loss.
        killed.process.send_signal(signal.SIGSTOP)
        lost = [member for each in leases_of(client, key) for member in client.zrange(each, 0, -1)]
        client.delete(*leases_of(client, key))
        killed.kill()
        released.set()
        ended = played.crawl(kind, "other")
        assert lost
        assert played.missed <= {url_of(member).removeprefix(played.site.url) for member in lost}
        assert keys_of(client, key) == set()
    (_, complaint) = sorted(complaints_in(ended.log), key=lambda line: "are gone" in line)
    assert f"ERROR: {len(lost)} {REQUESTS} '{key}:queue' or leased from it are gone" in complaint
    assert ended.stats["finish_reason"] == LOST
    assert ended.stats["bloomfilter/queue_losses"] == 1


def test_queue_is_deleted_between_two_crawls(valkey: Server, key: str, tmp_path: Path) -> None:
    """The worker that resumes a crawl logs that requests are lost."""
    kind = {**KIND, "SCHEDULER_PERSIST": True}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        worker = played.start("stopped", kind)
        played.moments.when(MIDDLE, lambda _: worker.process.send_signal(signal.SIGTERM))
        worker.wait()
        waiting = client.zcard(f"{key}:queue")
        client.delete(f"{key}:queue")
        ended = played.crawl(kind, "later")
    (complaint, *_) = complaints_in(ended.log)
    assert f"WARNING: The queue '{key}:queue' has lost requests before this worker began, {waiting} of" in complaint


def test_queue_is_shared_with_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """Requests taken by a scrapy-redis scheduler on the same queue do not count as lost."""
    kind = {"SCHEDULER_PERSIST": True}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        worker = played.start("stopped", {**KIND, **kind})
        played.moments.when(MIDDLE, lambda _: worker.process.send_signal(signal.SIGTERM))
        worker.wait()
        assert client.zcard(f"{key}:queue")
        assert_ended_well(played.crawl({**FILTER_ALONE, **kind}, "scrapy-redis"))
        assert played.missed == set()
        ended = played.crawl({**KIND, **kind}, "later")
    assert_ended_well(ended)
    assert "lost" not in ended.log


def test_spider_with_a_shared_filter_is_stopped(valkey: Server, key: str, tmp_path: Path) -> None:
    """A stopped spider's requests stay with the shared filter for the next start."""
    with valkey.client() as client, scene({**tree(PAGES), "/held": []}, tmp_path, valkey.url, key) as played:
        held, release = played.hold("/held")
        user = played.start_at("/held", "user", KIND, SCHEDULER_QUEUE_KEY=f"{key}:other:queue")
        assert held.wait(LIMIT)
        stopped = played.start("stopped", KIND)
        played.moments.when(MIDDLE, lambda _: stopped.process.send_signal(signal.SIGTERM))
        ended = stopped.wait()
        waiting = client.zcard(f"{key}:queue")
        assert waiting
        (complaint,) = complaints_in(ended.log)
        assert re.search(rf"WARNING: {waiting} requests still wait in the queue '{key}:queue', and stay", complaint)
        again = played.start("again", KIND)
        until(lambda: "/held" in played.missed and len(played.missed) == 1)
        release.set()
        assert_ended_well(user.wait(), again.wait())
        assert played.missed == set()
        assert keys_of(client, key) == set()
