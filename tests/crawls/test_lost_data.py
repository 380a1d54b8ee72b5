"""Crawls whose Redis loses the queue, leases, the filter or all data, or keeps the queue alone: the loss is told.

Pages are missed only if Redis alone knew them. Each page is linked once: one lost request is one missed page.
"""

import pickle
import re
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from devtools.site import Links
from tests.support import crawling
from tests.support.extensions import FaultyLog, enabling
from tests.support.outcomes import (
    assert_cleared,
    assert_complete,
    assert_ended_well,
    complaints_in,
    keys_of_the_filter,
    tell,
)
from tests.support.pages import linked, star, tree
from tests.support.scenario import (
    FILTER_ALONE,
    LEASE,
    MIDDLE,
    OURS,
    PAGES,
    SCRAPY,
    STOCK,
    Kind,
    every_scheduler,
    keys_of,
    scene,
)
from tests.support.selection import long_unless
from tests.support.servers import Server, running
from tests.support.spiders import starts
from tests.support.waiting import until

KIND: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4}
LOST = "bloomfilter_queue_lost"
# Pages of a worker: that run, or are done and not acknowledged.
IN_HAND = 12


def below(links: Links, paths: set[str]) -> set[str]:
    """Return these pages and all pages below them."""
    return paths.union(*(below(links, set(links[path])) for path in paths))


def url_of(member: bytes) -> str:
    """Return the URL of a stored request."""
    return str(pickle.loads(member)["url"])  # noqa: S301  # pickled by a crawl of this test


WAYS = ["the queue", "the queue, beside a log that fails", "the queue and its audit", "all data"]


@pytest.mark.parametrize("what", long_unless(lambda what: "audit" not in what, WAYS))
def test_queue_is_deleted(what: str, own: Server, key: str, tmp_path: Path) -> None:
    """Each worker logs the loss, with the number of lost requests if it is known, and ends with its own reason.

    Only pages known to Redis alone are missed: the pages held by the workers lead to the whole rest of the site.
    """
    gone: set[str] = set()
    names = [f"{key}:queue", f"{{{key}:queue}}:crawl"][: 1 + what.endswith("audit")]
    with own.client() as client, scene(tree(PAGES), tmp_path, own.url, key, delay=0.1) as played:

        def delete(_: str) -> None:
            pipeline = client.pipeline().zrange(names[0], 0, -1)
            members, _ = (pipeline.flushdb() if what == "all data" else pipeline.delete(*names)).execute()
            gone.update(url_of(member).removeprefix(played.site.url) for member in members)

        played.moments.when(MIDDLE, delete)
        played.site.on["/"] = lambda _: played.opened("left", "right")
        crawls = played.crawl_by("left", "right", kind={**KIND, **(enabling(FaultyLog) if "log" in what else {})})
        assert gone
        assert played.missed <= below(played.site.links, gone)
        assert keys_of(client, key) == set()
    for ended in crawls:
        errors = [line for line in complaints_in(ended.log) if " ERROR: " in line]
        assert errors or "log" in what
        assert ended.stats["finish_reason"] == LOST
        assert ended.exit_code == 1
        if what == "the queue":
            assert len(errors) == 1
            assert f"'{key}:queue' or leased from it are gone, {len(gone):,} of them known" in errors[0]
            assert ended.stats["bloomfilter/queue_losses"] == 1


def test_start_requests_of_a_rollback(key: str, tmp_path: Path) -> None:
    """A worker queues the requests of its start() again that a server without its last writes has forgotten.

    Those that were fetched since then are fetched again, and those that the worker has in hand.
    """
    with running("valkey") as server, server.client() as client, scene(star(40), tmp_path, server.url, key) as played:

        def go_back(_: str) -> None:
            server.kill()
            server.start()

        played.spider = starts.__file__
        played.site.on["/"] = lambda _: client.save()
        played.moments.when(12, go_back)
        ended = played.crawl(KIND, START_PATHS=",".join(path for path in played.site.links if path != "/"))
        assert_complete(played, ended)
        assert 0 < played.twice <= 12 + IN_HAND


def test_flushed_by_a_worker_that_starts(valkey: Server, key: str, tmp_path: Path) -> None:
    """SCHEDULER_FLUSH_ON_START beside another worker: both start afresh, and no page is missed.

    The old worker takes pages again that lead to pages which it has seen. They must be fetched, since the queue is
    gone.
    """
    with scene(tree(PAGES), tmp_path, valkey.url, key, delay=0.05) as played:
        played.moments.when(MIDDLE, lambda _: played.start("new", KIND, SCHEDULER_FLUSH_ON_START=True))
        old = played.start("old", KIND)
        # The list has grown when the old worker has ended.
        crawls = [old.wait(), *(worker.wait() for worker in played.workers[1:])]
        assert_cleared(played, *crawls)
        assert len(crawls) == 2


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
        leases = [each for each in keys_of(client, key) if ":leases:" in each or ":taken:" in each]
        lost = [member for each in leases for member in client.zrange(each, 0, -1)]
        client.delete(*leases)
        killed.kill()
        released.set()
        ended = played.crawl(kind, "other")
        assert lost
        assert played.missed <= {url_of(member).removeprefix(played.site.url) for member in lost}
        assert keys_of(client, key) == set()
    (_, complaint) = sorted(complaints_in(ended.log), key=lambda line: "are gone" in line)
    assert f"'{key}:queue' or leased from it are gone, {len(lost)} of them known" in complaint
    assert ended.stats["finish_reason"] == LOST
    assert ended.stats["bloomfilter/queue_losses"] == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_crawl_ends_without_a_frozen_worker(is_lost: bool, own: Server, key: str, tmp_path: Path) -> None:
    """A worker that wakes up when the others have ended the crawl knows whether Redis has lost its data."""
    with own.client() as client, scene(tree(PAGES), tmp_path, own.url, key) as played:
        frozen = played.start("frozen", KIND)
        is_frozen = threading.Event()

        def freeze(_: str) -> None:
            frozen.process.send_signal(signal.SIGSTOP)
            is_frozen.set()

        played.moments.when(12, freeze)
        assert is_frozen.wait(LIMIT)
        if is_lost:
            client.flushdb()
        assert_complete(played, played.crawl(KIND, "other"))
        assert 0 <= client.pttl(f"{{{key}:queue}}:ended") <= 3_600_000 or is_lost
        frozen.process.send_signal(signal.SIGCONT)
        ended = frozen.wait()
        assert keys_of(client, key) == set()
    if is_lost:
        assert "Redis has lost the crawl" in " ".join(complaints_in(ended.log))
        assert (ended.exit_code, ended.stats["finish_reason"]) == (1, LOST)
    else:
        (warning,) = complaints_in(ended.log)
        assert "WARNING: Other workers presumed this one dead, and finished the crawl" in warning
        assert_ended_well(ended)


@pytest.mark.parametrize("what", ["the queue", "the queue and its audit"])
def test_queue_is_deleted_between_two_crawls(what: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """The worker that resumes a crawl tells that requests are lost, even if a killed worker is still registered."""
    kind = {**KIND, "SCHEDULER_PERSIST": True}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        worker = played.start("killed", kind)
        played.moments.when(MIDDLE, lambda _: worker.kill())
        worker.process.wait(LIMIT)
        waiting = client.zcard(f"{key}:queue")
        client.delete(*[f"{key}:queue", f"{{{key}:queue}}:crawl"][: 1 + what.endswith("audit")])
        ended = played.crawl(kind, "later")
    (complaint, *_) = complaints_in(ended.log)
    number = 0 if what.endswith("audit") else waiting
    assert f"leased from it are gone, {number} of them known" in complaint
    assert ended.stats["finish_reason"] == LOST
    assert ended.exit_code == 1


@pytest.mark.parametrize("serializer", [None, "scrapy_bloom.serializer"])
def test_switch_between_schedulers(serializer: str | None, valkey: Server, key: str, tmp_path: Path) -> None:
    """A stopped crawl goes on under scrapy-redis's scheduler, and under this one again: no page or loss is missed."""
    kind: Kind = {"SCHEDULER_PERSIST": True, "SCHEDULER_SERIALIZER": serializer}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        for at, name, scheduler in ((20, "first", KIND), (60, "second", {**FILTER_ALONE}), (90, "third", KIND)):
            worker = played.start(name, {**scheduler, **kind})
            stop = partial(worker.process.send_signal, signal.SIGTERM)
            played.moments.when(at, lambda _, stop=stop: stop())  # type: ignore[misc]
            assert worker.wait().stats["finish_reason"] == "shutdown"
            assert client.zcard(f"{key}:queue")
        emptied = played.crawl({**FILTER_ALONE, **kind}, "fourth")
        assert_complete(played, emptied)
        ended = played.crawl({**KIND, **kind}, "fifth")
        assert max(played.fetched.values()) == 1
    assert_ended_well(ended)
    assert all("are gone" not in played.log(name) for name in ("third", "fifth"))


def test_spider_with_a_shared_filter_is_stopped(valkey: Server, key: str, tmp_path: Path) -> None:
    """A stopped spider's requests stay with the shared filter for the next start; no end deletes the filter."""
    shared: Kind = {**KIND, "SCHEDULER_DUPEFILTER_KEY": key}
    with valkey.client() as client, scene({**tree(PAGES), "/held": []}, tmp_path, valkey.url, key) as played:
        held, release = played.hold("/held")
        user = played.start_at("/held", "user", shared, SCHEDULER_QUEUE_KEY=f"{key}:other:queue")
        assert held.wait(LIMIT)
        stopped = played.start("stopped", shared)
        played.moments.when(MIDDLE, lambda _: stopped.process.send_signal(signal.SIGTERM))
        ended = stopped.wait()
        waiting = client.zcard(f"{key}:queue")
        assert waiting
        (complaint,) = complaints_in(ended.log)
        assert re.search(
            rf"WARNING: Left {waiting} requests? in the queue '{key}:queue'\. Start this spider", complaint
        )
        assert ended.log.count(f"The filter at '{key}' is shared: ") == 1
        again = played.start("again", shared)
        until(lambda: "/held" in played.missed and len(played.missed) == 1)
        release.set()
        assert_complete(played, user.wait(), again.wait())
        assert all(name == key or name.startswith(f"{{{key}}}:") for name in keys_of(client, key))
        assert [field for field in client.hkeys(key) if field.startswith(b"queue:")] == []
        assert (client.hget(key, "count"), played.twice) == (b"%d" % len(played.site.links), 0)


@every_scheduler
def test_the_end_of_a_crawl_keeps_a_shared_filter(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """A finished crawl deletes its queue, and no shared filter; the next crawl fetches nothing."""
    shared: Kind = {**kind, "SCHEDULER_DUPEFILTER_KEY": key}
    with valkey.client() as client, scene(star(5), tmp_path, valkey.url, key) as played:
        assert_complete(played, played.crawl(shared, "first"))
        assert not client.exists(f"{key}:queue")
        played.crawl(shared, "second")
        assert played.twice == 0
    assert f"The filter at '{key}' is shared: SCHEDULER_DUPEFILTER_KEY has no %(spider)s in it" in played.log("first")


@every_scheduler
def test_a_flush_of_a_shared_filter(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """A crawl that would delete a filter that others share is refused, and deletes nothing."""
    shared: Kind = {**kind, "SCHEDULER_DUPEFILTER_KEY": key}
    with valkey.client() as client, scene(star(5), tmp_path, valkey.url, key) as played:
        assert_complete(played, played.crawl(shared, "first"))
        refused = played.crawl(shared, "second", SCHEDULER_FLUSH_ON_START=True)
        assert client.exists(key)
        assert played.twice == 0
    assert refused.exit_code == crawling.REFUSED_EXIT_CODE
    assert f"SCHEDULER_FLUSH_ON_START = True and SCHEDULER_DUPEFILTER_KEY = '{key}'" in refused.log
    assert f"scrapy bloom clear --key {key} --yes" in refused.log


def test_a_stop_under_scrapy_redis_tells_what_its_end_deletes(valkey: Server, key: str, tmp_path: Path) -> None:
    """scrapy-redis's scheduler deletes the waiting requests of a stopped crawl, which a shared filter calls seen."""
    shared: Kind = {**FILTER_ALONE, "SCHEDULER_DUPEFILTER_KEY": key}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        worker = played.start("stopped", shared)
        played.moments.when(MIDDLE, lambda _: worker.process.send_signal(signal.SIGTERM))
        ended = worker.wait()
        assert (client.exists(key), client.exists(f"{key}:queue")) == (1, 0)
    assert ", but not the shared filter, so that their pages are missed" in ended.log


# The filter is deleted, evicted or replaced half-way: no page is missed.


@pytest.mark.parametrize(
    ("kind", "part"), [*((kind, "replaced") for kind in (FILTER_ALONE, SCRAPY, OURS)), (OURS, "shards (evicted?)")]
)
def test_deleted(kind: Kind, part: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A deleted filter, or an evicted shard, is noticed and recreated, with one warning."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:

        def lose(_: str) -> None:
            names = keys_of_the_filter(client, key)
            client.unlink(*(name for name in names if part == "replaced" or name.endswith(":1:0")))

        played.moments.when(MIDDLE, lose)
        ended = played.crawl(kind)
        assert_cleared(played, ended)
        assert max(played.fetched.values()) <= 2
    warning, *repeats = complaints_in(ended.log)
    assert part in warning
    assert all("since the last such line" in each for each in repeats)
    # The next check noticed it, not the final report.
    assert ended.log.index(warning) < ended.log.index("Closing spider")


@pytest.mark.long
def test_filter_deleted_under_scrapy_redis(
    valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: scrapy-redis does not notice, and logs nothing."""
    with valkey.client() as client, scene(linked(60), tmp_path, valkey.url, key) as played:
        played.moments.when(MIDDLE, lambda _: client.unlink(key))
        ended = played.crawl(STOCK)
    tell(capsys, f"filter deleted: scrapy-redis fetched {played.twice} of 60 pages twice, and warned of nothing")
    assert played.twice
    assert not [line for line in ended.log.splitlines() if " WARNING: " in line and "[py.warnings]" not in line]
