"""Crawls in the middle of which something fails: every page is fetched, and scrapy-redis as it is shows what is lost.

Each page of the sites is linked once, so that one lost request is a page that nobody fetches.
"""

import json
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from devtools.crawl_process import LIMIT, Crawl, CrawlProcess
from devtools.site import serving
from devtools.waiting import until
from tests.support import crawling
from tests.support.crawling import crawl
from tests.support.fault_proxy import CUTS, Place, at_random, proxying
from tests.support.pages import chain, linked, tree
from tests.support.scenario import (
    FILTER_ALONE,
    LEASE,
    MIDDLE,
    OURS,
    PAGES,
    STOCK,
    Kind,
    Scene,
    assert_ended_well,
    complaints_in,
    keys_of,
    keys_of_the_filter,
    scene,
    tell,
)
from tests.support.servers import Server, running

# Redis goes and comes back.


class Outage:
    """Kills a server, and starts it again after some seconds."""

    def __init__(self, server: Server, seconds: float) -> None:
        self._server = server
        self._timer = threading.Timer(seconds, server.start)

    def __call__(self, _: str) -> None:
        self._server.kill()
        self._timer.start()

    def join(self) -> None:
        """Wait until the server is back."""
        self._timer.join()


OUTAGES = {"chain, 2 s": (chain, 2.0), "tree, 2 s": (tree, 2.0), "tree, 15 s": (tree, 15.0)}


def crawl_with_outage(kind: Kind, durable: Server, key: str, directory: Path, outage: str) -> tuple[Crawl, Scene]:
    """A crawl in the middle of which Redis is killed and comes back."""
    shape, seconds = OUTAGES[outage]
    with scene(shape(PAGES), directory, durable.url, key) as played:
        away = Outage(durable, seconds)
        played.moments.when(MIDDLE, away)
        ended = played.crawl(kind)
        away.join()
    return ended, played


@pytest.mark.parametrize("outage", OUTAGES)
def test_redis_killed(
    outage: str, durable: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Redis is killed and comes back: the crawl pauses, goes on, and fetches every page."""
    ended, played = crawl_with_outage(OURS, durable, key, tmp_path, outage)
    tell(capsys, f"Redis killed ({outage}): BloomScheduler missed {len(played.missed)}, {played.twice} fetched twice")
    assert played.missed == set()
    assert_ended_well(ended)
    assert played.twice == 0
    with durable.client() as client:
        assert keys_of(client, key) == set()


@pytest.mark.parametrize("outage", ["chain, 2 s", "tree, 2 s"])
def test_redis_killed_under_scrapy_redis(
    outage: str, durable: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: scrapy-redis misses pages."""
    ended, played = crawl_with_outage(STOCK, durable, key, tmp_path, outage)
    reason = ended.stats["finish_reason"]
    tell(capsys, f"Redis killed ({outage}): scrapy-redis missed {len(played.missed)} of {PAGES}, {reason!r}")
    assert played.missed


def test_demoted_and_promoted(key: str, tmp_path: Path) -> None:
    """Redis becomes a replica, whose data may only be read, and a master again after 2 s: the crawl waits."""
    with (
        running("valkey") as server,
        server.client() as client,
        scene(tree(PAGES), tmp_path, server.url, key) as played,
    ):
        promotion = threading.Timer(2, lambda: client.replicaof("NO", "ONE"))

        def demote(_: str) -> None:
            # Its master does not answer, so that it keeps what it has.
            with socket.create_server(("127.0.0.1", 0)) as silent:
                client.replicaof("127.0.0.1", silent.getsockname()[1])
            promotion.start()

        played.moments.when(MIDDLE, demote)
        ended = played.crawl(OURS)
        promotion.join()
        assert played.missed == set()
        assert played.twice == 0
    assert_ended_well(ended)
    assert [line for line in complaints_in(ended.log) if "ReadOnlyError" in line]


def fill_up(client: redis.Redis) -> None:
    """Give the server less memory than it has in use."""
    client.config_set("maxmemory", 1)


def make_room(client: redis.Redis) -> None:
    """Undo that."""
    client.config_set("maxmemory", 0)


def forbid(client: redis.Redis) -> None:
    """Take BITFIELD from everybody."""
    client.acl_setuser("default", enabled=True, commands=["-bitfield"], reset=False)


def allow(client: redis.Redis) -> None:
    """Undo that."""
    client.acl_setuser("default", enabled=True, commands=["+bitfield"], reset=False)


def lock_out(client: redis.Redis) -> None:
    """Ask for a password from now on, and everybody for it."""
    client.config_set("requirepass", "another")
    client.client_kill_filter(_type="normal", skipme=True)


def let_in(client: redis.Redis) -> None:
    """Undo that."""
    client.config_set("requirepass", "")


REFUSALS: dict[str, tuple[Callable[[redis.Redis], None], Callable[[redis.Redis], None], str]] = {
    "memory full": (fill_up, make_room, "maxmemory"),
    "permission taken": (forbid, allow, "allow BITFIELD"),
    "password changed": (lock_out, let_in, "password in REDIS_URL"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_redis_refuses(refusal: str, key: str, tmp_path: Path) -> None:
    """A Redis that refuses from one moment on ends the crawl with advice; the next crawl fetches all that is left."""
    refuse, relent, advice = REFUSALS[refusal]
    settings: dict[str, object] = dict(LEASE)
    with (
        running("valkey") as server,
        server.client() as client,
        scene(tree(PAGES), tmp_path, server.url, key) as played,
    ):
        played.moments.when(MIDDLE, lambda _: refuse(client))
        first = played.crawl(OURS, "first", **settings)
        assert played.missed
        assert first.stats["finish_reason"] == "bloomfilter_error"
        assert "Traceback" not in first.log
        assert [line for line in complaints_in(first.log) if advice in line]
        relent(client)
        # Without SCHEDULER_PERSIST too: only a crawl that is finished clears what others would go on with.
        assert {key, f"{key}:queue"} <= keys_of(client, key)
        second = played.crawl(OURS, "second", **settings)
        assert played.missed == set()
        assert max(played.fetched.values()) <= 2
        assert keys_of(client, key) == set()
    assert_ended_well(second)


def test_redis_not_up(durable: Server, key: str, tmp_path: Path) -> None:
    """A crawl that is started before Redis waits for it, and then fetches every page."""
    durable.kill()
    with scene(tree(13), tmp_path, durable.url, key) as played:
        worker = played.start("worker", OURS)
        until(lambda: complaints_in(played.log("worker")))
        durable.start()
        ended = worker.wait()
        assert played.missed == set()
    assert_ended_well(ended)


def test_redis_never_up(durable: Server, key: str, tmp_path: Path) -> None:
    """Without Redis a crawl waits for as long as it is told, and then fails with one clear error."""
    durable.kill()
    with scene(tree(13), tmp_path, durable.url, key) as played:
        ended = played.crawl(OURS, BLOOMFILTER_RETRY_TIMEOUT=0.5)
        assert ended.exit_code == crawling.REFUSED_EXIT_CODE
        assert played.site.fetched == []
    errors = {line for line in ended.log.splitlines() if line.startswith("scrapy_bloom.errors.")}
    assert len(errors) == 1
    assert "BLOOMFILTER_RETRY_TIMEOUT = 0.5" in errors.pop()


# Replies are lost.


def crawl_with_lost_replies(kind: Kind, valkey: Server, key: str, directory: Path) -> tuple[Crawl, Scene, int]:
    """A crawl with 20 replies to the filter lost; gives how many commands were carried out again."""
    with (
        proxying(valkey.port, "BITFIELD", "SADD") as proxy,
        scene(tree(PAGES), directory, proxy.url, key) as played,
    ):
        # Never two in a row, so that scrapy-redis's one further attempt gets through, and nobody hears of it.
        proxy.plan = iter([None, None, None, Place.AFTER, None, None, Place.REPLY] * 10)
        ended = played.crawl(kind)
        return ended, played, proxy.resent


def test_replies_lost_to_the_filter_alone(valkey: Server, key: str, tmp_path: Path) -> None:
    """The filter under scrapy-redis's Scheduler: no reply that is lost loses a page, and each is counted."""
    ended, played, resent = crawl_with_lost_replies(FILTER_ALONE, valkey, key, tmp_path)
    assert played.missed == set()
    assert played.twice == 0
    assert_ended_well(ended)
    assert ended.stats["bloomfilter/ambiguous"] == resent == 20


def test_replies_lost_to_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """The control: scrapy-redis ends its crawl well, and has missed pages."""
    ended, played, _ = crawl_with_lost_replies(STOCK, valkey, key, tmp_path)
    assert played.missed
    assert_ended_well(ended)


def test_bad_line(valkey: Server, key: str, tmp_path: Path) -> None:
    """Whatever the scheduler sends may be cut anywhere, the signs of life included: no page is lost."""
    with proxying(valkey.port) as proxy, scene(tree(PAGES), tmp_path, proxy.url, key) as played:
        # Not while it starts, which has another way to wait.
        plan = at_random(random.Random(5), CUTS, 16, 15)
        played.moments.when(2, lambda _: setattr(proxy, "plan", plan))
        ended = played.crawl(OURS)
        assert played.missed == set()
        assert proxy.faults == 16
    assert_ended_well(ended)


def test_clients_killed(valkey: Server, key: str, tmp_path: Path) -> None:
    """All connections are killed every 100 ms for 3 seconds, and no page is lost."""
    killed = 0
    stop = threading.Event()

    def kill() -> None:
        nonlocal killed
        with valkey.client() as client:
            for _ in range(30):
                killed += client.client_kill_filter(_type="normal", skipme=True)
                stop.wait(0.1)

    killer = threading.Thread(target=kill)
    with scene(chain(PAGES), tmp_path, valkey.url, key) as played:
        played.moments.when(MIDDLE, lambda _: killer.start())
        ended = played.crawl(OURS)
        stop.set()
        killer.join()
        assert played.missed == set()
    assert killed >= 5
    assert_ended_well(ended)


# The filter is lost.


def warning_of_loss(valkey: Server, key: str, directory: Path, lost: Callable[[set[str]], set[str]]) -> str:
    """The one warning of a crawl in the middle of which some of the filter's keys are deleted; no page is missed."""
    with valkey.client() as client, scene(tree(PAGES), directory, valkey.url, key) as played:

        def lose(_: str) -> None:
            assert client.unlink(*lost(keys_of_the_filter(client, key))) > 0

        played.moments.when(MIDDLE, lose)
        ended = played.crawl(OURS)
        assert played.missed == set()
        assert max(played.fetched.values()) <= 2
        assert keys_of(client, key) == set()
    assert_ended_well(ended)
    (warning,) = complaints_in(ended.log)
    # It was the next check that noticed, not the look back at the end.
    assert ended.log.index(warning) < ended.log.index("Closing spider")
    return warning


def test_filter_deleted(valkey: Server, key: str, tmp_path: Path) -> None:
    """A filter that is deleted is noticed and made anew, with one warning."""
    assert "replaced" in warning_of_loss(valkey, key, tmp_path, lambda keys: keys)


def test_shard_deleted(valkey: Server, key: str, tmp_path: Path) -> None:
    """A shard that is evicted is noticed and made anew, with one warning."""
    assert "1 of 1 shards" in warning_of_loss(valkey, key, tmp_path, lambda keys: keys - {key})


def test_everything_deleted(valkey: Server, key: str, tmp_path: Path) -> None:
    """When the queue and what workers hold go with the filter, the crawl still goes on with what it has, and ends."""
    queued = 0
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:

        def lose(_: str) -> None:
            nonlocal queued
            queue = f"{key}:queue"
            queued, _ = client.pipeline().zcard(queue).unlink(queue, *keys_of(client, key)).execute()

        played.moments.when(MIDDLE, lose)
        ended = played.crawl(OURS)
        # What was in the queue is nowhere else, and lost with what it leads to; what was being fetched is not. How
        # much was in it is the chance of that moment: it may have been empty.
        assert len(played.fetched) >= MIDDLE
        assert len(played.missed) >= queued
        assert bool(played.missed) == bool(queued)
        assert keys_of(client, key) == set()
    assert_ended_well(ended)
    assert [line for line in complaints_in(ended.log) if "replaced" in line]


def test_filter_deleted_under_scrapy_redis(
    valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: scrapy-redis does not notice, and says nothing."""
    with valkey.client() as client, serving(linked(60)) as site:

        def lose(_: str) -> None:
            del site.on["/page/3"]
            assert client.unlink(key)

        site.on["/page/3"] = lose
        settings = {**STOCK, "REDIS_URL": valkey.url, "SCHEDULER_DUPEFILTER_KEY": key}
        ended = crawl("worker", site.url, tmp_path, SCHEDULER_QUEUE_KEY=f"{key}:queue", **settings)
        twice = len(site.paths) - len(set(site.paths))
    tell(capsys, f"filter deleted: scrapy-redis fetched {twice} of 60 pages twice, and warned of nothing")
    assert twice
    assert not [line for line in ended.log.splitlines() if " WARNING: " in line and "[py.warnings]" not in line]


@pytest.mark.parametrize("kind", ["scrapy-redis", "scrapy-bloom"])
def test_set_in_the_place_of_a_filter(
    kind: str, valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A SET of an earlier crawl: scrapy-redis takes all pages for seen and ends well; here it is refused."""
    with valkey.client() as client, scene(tree(61), tmp_path, valkey.url, key) as played:
        played.crawl(STOCK, "earlier", SCHEDULER_PERSIST=True)
        assert client.type(key) == b"set"
        before = played.fetched.total()
        ended = played.crawl(STOCK if kind == "scrapy-redis" else OURS, "later", SCHEDULER_PERSIST=True)
        fetched = played.fetched.total() - before
        tell(capsys, f"a SET at the filter's key: {kind} fetched {fetched} of 61, exit code {ended.exit_code}")
        assert fetched == 0
        assert client.scard(key) == 61
    if kind == "scrapy-redis":
        assert_ended_well(ended)
    else:
        assert ended.exit_code == crawling.REFUSED_EXIT_CODE
        assert f"the key {key!r} holds a SET of 61 members" in ended.log


# Workers go.


def crawl_with_killed_workers(
    kind: Kind, valkey: Server, key: str, directory: Path, *, workers: int, kills: int
) -> tuple[list[Crawl], Scene]:
    """A tree of 600 pages; at random moments the worker that asks for a page is killed, and another started."""
    source = random.Random(6)
    crawls: list[Crawl] = []
    with scene(tree(600), directory, valkey.url, key, delay=0.05) as played:
        by_name: dict[str, CrawlProcess] = {}

        def start() -> None:
            name = f"worker-{len(by_name)}"
            # What is cleared at the end would be crawled anew by one that is still starting then.
            by_name[name] = played.start(name, kind, CONCURRENT_REQUESTS=8, SCHEDULER_PERSIST=True)

        def kill(victim: str) -> None:
            process = by_name[victim].process
            if process.poll() is not None:  # it was killed while this page was on its way: another one will do
                played.moments.when(played.moments.asked + 1, kill)
                return
            # In this order the list has grown before the last of the others can have ended.
            start()
            process.kill()
            process.wait()

        for part in range(kills):
            played.moments.when(source.randrange(30, 100) + 100 * part, kill)
        for _ in range(workers):
            start()
        # The list grows while they are killed.
        crawls.extend(worker.wait() for worker in played.workers)
    assert len(crawls) == workers + kills
    return crawls, played


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_killed(
    workers: int, valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers are killed at random moments and replaced: no page is missed, and the crawl ends by itself."""
    crawls, played = crawl_with_killed_workers({**OURS, **LEASE}, valkey, key, tmp_path, workers=workers, kills=4)
    recovered = sum(ended.stats.get("bloomfilter/recovered", 0) for ended in crawls)
    tell(
        capsys,
        f"{workers} workers, 4 times one killed and replaced: BloomScheduler missed {len(played.missed)} of 600, "
        f"{played.twice} fetched twice, {recovered} put back",
    )
    assert played.missed == set()
    assert_ended_well(*(ended for ended in crawls if ended.exit_code != -signal.SIGKILL))
    assert recovered > 0
    with valkey.client() as client:
        assert keys_of(client, key) == keys_of_the_filter(client, key)


def test_workers_killed_under_scrapy_redis(
    valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: what a worker held when it was killed is never fetched."""
    _, played = crawl_with_killed_workers(STOCK, valkey, key, tmp_path, workers=2, kills=1)
    tell(capsys, f"2 workers, one killed and replaced: scrapy-redis missed {len(played.missed)} of 600")
    assert played.missed


def test_ctrl_c_during_an_outage(durable: Server, key: str, tmp_path: Path) -> None:
    """A crawl that is stopped while Redis is away stops within seconds; the next one fetches all that is left."""
    settings: dict[str, object] = {"SCHEDULER_PERSIST": True, **LEASE}
    with scene(tree(PAGES), tmp_path, durable.url, key) as played:
        played.moments.when(MIDDLE, lambda _: durable.kill())
        worker = played.start("first", OURS, **settings)
        until(lambda: complaints_in(played.log("first")))
        begin = time.monotonic()
        worker.process.send_signal(signal.SIGINT)
        first = worker.wait()
        assert time.monotonic() - begin < 10
        assert first.stats["finish_reason"] == "shutdown"
        assert "Traceback" not in first.log
        assert played.missed
        # What it could not deliver is in a file, which the next one takes up.
        (file,) = tmp_path.glob("*.jsonl")
        assert str(file) in first.log
        requests = [json.loads(line) for line in file.read_text().splitlines()]
        assert f" {len(requests)} requests " in first.log
        durable.start()
        second = played.crawl(OURS, "second", **settings)
        assert str(file) in second.log
        assert not file.exists()
        assert played.missed == set()
        assert max(played.fetched.values()) <= 2
    assert_ended_well(second)


def test_ctrl_c_just_before_redis_is_back(durable: Server, key: str, tmp_path: Path) -> None:
    """A crawl that is stopped tries to deliver for a while: a Redis that comes back soon has everything."""
    with scene(tree(PAGES), tmp_path, durable.url, key) as played:
        played.moments.when(MIDDLE, lambda _: durable.kill())
        worker = played.start("first", OURS, SCHEDULER_PERSIST=True, **LEASE)
        until(lambda: complaints_in(played.log("first")))
        worker.process.send_signal(signal.SIGINT)
        # As soon as it has found that it cannot deliver.
        until(lambda: complaints_in(played.log("first").partition("Closing spider")[2]))
        durable.start()
        first = worker.wait()
        assert " ERROR: " not in first.log
        assert list(tmp_path.glob("*.jsonl")) == []
        second = played.crawl(OURS, "second", SCHEDULER_PERSIST=True, **LEASE)
        assert played.missed == set()
    assert_ended_well(second)


def crawl_with_one_that_leaves(kind: Kind, valkey: Server, key: str, directory: Path) -> tuple[set[str], Crawl, Scene]:
    """Two workers without SCHEDULER_PERSIST, one of which ends early; gives the keys that there are then."""
    with valkey.client() as client, scene(tree(PAGES), directory, valkey.url, key) as played:
        # A worker of scrapy-redis that finds the queue empty leaves, so that there must be something in it.
        played.crawl(kind, "first", SCHEDULER_PERSIST=True, CLOSESPIDER_PAGECOUNT=2, CONCURRENT_REQUESTS=1)
        both, alone = threading.Event(), threading.Event()
        arrived: Counter[str] = Counter()
        slow = played.site.before

        def meet(worker: str) -> None:
            slow(worker)
            arrived[worker] += 1
            if len(arrived) == 2:
                both.set()
            both.wait(LIMIT)
            if worker == "right" and arrived[worker] > 10:
                alone.wait(LIMIT)

        played.site.before = meet
        left = played.start("left", kind, CONCURRENT_REQUESTS=1, CLOSESPIDER_PAGECOUNT=10)
        right = played.start("right", kind, CONCURRENT_REQUESTS=1)
        assert left.wait().stats["finish_reason"] == "closespider_pagecount"
        rest = keys_of(client, key)
        alone.set()
        return rest, right.wait(), played


def test_first_to_finish_clears_nothing(valkey: Server, key: str, tmp_path: Path) -> None:
    """With SCHEDULER_PERSIST=False the last worker clears all keys, and no other any."""
    rest, ended, played = crawl_with_one_that_leaves(OURS, valkey, key, tmp_path)
    assert {key, f"{key}:queue", f"{key}:0:0"} <= rest
    assert played.missed == set()
    assert played.twice == 0
    assert_ended_well(ended)
    with valkey.client() as client:
        assert keys_of(client, key) == set()


def test_first_to_finish_under_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """The control: the first worker to finish deletes the queue under the other."""
    _, _, played = crawl_with_one_that_leaves(STOCK, valkey, key, tmp_path)
    assert played.missed
