"""Crawls that lose their queue alone, or keep it alone: the log gives the fate of its requests."""

import re
import signal
import threading
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from devtools.waiting import until
from tests.crawls.test_lost_data import below, url_of
from tests.support.pages import chain, tree
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
    scene,
)
from tests.support.servers import Server

pytestmark = pytest.mark.crawl

KIND: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4}
LOST = "requests in the queue"


def test_queue_is_deleted(valkey: Server, key: str, tmp_path: Path) -> None:
    """Each worker logs the number of lost requests and ends with its own reason."""
    gone: list[str] = []
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key, delay=0.1) as played:

        def delete(_: str) -> None:
            members, _ = client.pipeline().zrange(f"{key}:queue", 0, -1).delete(f"{key}:queue").execute()
            gone.extend(url_of(member).removeprefix(played.site.url) for member in members)

        played.moments.when(MIDDLE, delete)
        played.site.on["/"] = lambda _: played.opened("left", "right")
        crawls = [worker.wait() for worker in [played.start(name, KIND) for name in ("left", "right")]]
        assert gone
        assert played.missed <= below(played.site.links, set(gone))
        assert keys_of(client, key) == set()
    for ended in crawls:
        (complaint,) = complaints_in(ended.log)
        assert f"ERROR: {len(gone):,} {LOST} '{key}:queue' or leased from it are gone" in complaint
        assert ended.stats["bloomfilter/queue_losses"] == 1
        assert ended.stats["finish_reason"] == "bloomfilter_queue_lost"


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
        held, release = threading.Event(), threading.Event()

        def hold(_: str) -> None:
            held.set()
            release.wait(LIMIT)

        played.site.on["/held"] = hold
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


@pytest.mark.parametrize("flush", [False, True], ids=["as it is", "begun anew"])
def test_another_spider_is_refused(flush: bool, valkey: Server, key: str, tmp_path: Path) -> None:
    """A spider that starts on another one's queue is refused, and deletes no key."""
    with scene(chain(5), tmp_path, valkey.url, key) as played:
        held, release = threading.Event(), threading.Event()

        def hold(_: str) -> None:
            held.set()
            release.wait(LIMIT)

        played.site.on["/"] = hold
        first = played.start("first", KIND)
        assert held.wait(LIMIT)
        text = Path(played.spider).read_text().replace('name = "links"', 'name = "other closing"')
        (tmp_path / "other.py").write_text(text)
        own, played.spider = played.spider, str(tmp_path / "other.py")
        refused = played.start("refused", KIND, SCHEDULER_FLUSH_ON_START=flush).wait()
        played.spider = own
        last = refused.log.rstrip().splitlines()[-1]
        assert refused.exit_code == 1
        assert last.startswith("scrapy_bloom: SCHEDULER_QUEUE_KEY: workers of the spider 'links.LinksSpider' are ")
        assert f"registered with the queue '{key}:queue'" in last
        release.set()
        ended = first.wait()
        assert_ended_well(ended)
        assert complaints_in(ended.log) == []
        assert played.missed == set()
        assert played.twice == 0
