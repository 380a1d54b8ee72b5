"""Real crawls with the atomic scheduler: every page is fetched, despite kills, outages and lost keys.

Each page of a tree is linked once, so that one lost request is one missed page.
"""

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from devtools.crawl_process import LIMIT, Crawl, CrawlProcess
from devtools.site import Links
from devtools.waiting import until
from tests.crawls.test_lost_data import below, url_of
from tests.crawls.test_start_urls import DEADLY, PATHS, fed_scene
from tests.support.clusters import running_cluster
from tests.support.extensions import ALL_TURNS, LONGEST_STALL, TICKED, Ticker, enabling
from tests.support.outages import Outage
from tests.support.pages import chain, linked, star, tree
from tests.support.scenario import (
    LEASE,
    MIDDLE,
    PAGES,
    Kind,
    Scene,
    assert_ended_well,
    complaints_in,
    keys_of,
    scene,
    tell,
)
from tests.support.servers import Server
from tests.support.spiders import burst, deadly, unfiltered

pytestmark = pytest.mark.crawl

OURS: Kind = {"SCHEDULER": "scrapy_bloom.atomic.scheduler.BloomScheduler"}
KEEP: Kind = {"SCHEDULER_PERSIST": True}
RETRY: Kind = {"BLOOMFILTER_RETRY_FAILED": True, "RETRY_TIMES": 1}
LOST = "bloomfilter_queue_lost"


def leases(client: redis.Redis, key: str) -> list[str]:
    """Return the keys of all leases."""
    return [each for each in keys_of(client, key) if ":leases:" in each or ":taken:" in each]


def number_stored(client: redis.Redis, key: str) -> int:
    """Return how many requests wait or are leased."""
    return sum(int(client.zcard(each)) for each in (f"{key}:queue", *leases(client, key)))


def held_at(played: Scene, path: str) -> tuple[threading.Event, threading.Event]:
    """Let a page wait; return the events of its request and of its release."""
    held, release = threading.Event(), threading.Event()

    def hold(_: str) -> None:
        held.set()
        release.wait(LIMIT)

    played.site.on[path] = hold
    return held, release


# Without faults.


def test_every_page_once(valkey: Server, key: str, tmp_path: Path) -> None:
    """One worker fetches each page once, counts each repeat, and leaves no key."""
    with valkey.client() as client, scene(linked(60), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS)
        assert Counter(played.site.paths) == dict.fromkeys(played.site.links, 1)
        assert_ended_well(ended)
        assert complaints_in(ended.log) == []
        assert keys_of(client, key) == set()
    assert ended.stats["dupefilter/filtered"] == played.site.repeats
    assert ended.stats["bloomfilter/added"] == ended.stats["scheduler/enqueued/redis"] == 60
    assert ended.stats["scheduler/dequeued/redis"] == 60


def test_several_workers(valkey: Server, key: str, tmp_path: Path) -> None:
    """Three workers share the pages, and the last one leaves no key."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key, delay=0.1) as played:
        names = ("left", "middle", "right")
        played.site.on["/"] = lambda _: played.opened(*names)
        crawls = [worker.wait() for worker in [played.start(name, OURS, CONCURRENT_REQUESTS=4) for name in names]]
        assert Counter(played.site.paths) == dict.fromkeys(played.site.links, 1)
        assert {name for name, _ in played.site.fetched} == set(names)
        assert keys_of(client, key) == set()
    assert_ended_well(*crawls)
    assert [line for ended in crawls for line in complaints_in(ended.log)] == []


@pytest.mark.parametrize("order", [1, -1])
def test_priorities(order: int, valkey: Server, key: str, tmp_path: Path) -> None:
    """DEPTH_PRIORITY = 1 fetches a site level by level, -1 depth first."""
    settings: Kind = {**OURS, "DEPTH_PRIORITY": order, "CONCURRENT_REQUESTS": 1}
    with scene(tree(40), tmp_path, valkey.url, key, delay=0.15) as played:
        assert_ended_well(played.crawl(settings))
        pages = [int(path.rpartition("/")[2] or 0) for path in played.site.paths]
    depths = [sum(page >= first for first in (1, 4, 13)) for page in pages]
    assert len(depths) == 40
    if order > 0:
        assert depths == sorted(depths)
    else:
        assert depths.index(3) < 10


def test_stop_and_resume(valkey: Server, key: str, tmp_path: Path) -> None:
    """A crawl stopped by SIGTERM resumes: no page is missed, and none fetched twice."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        worker = played.start("stopped", {**OURS, **KEEP})
        played.moments.when(MIDDLE, lambda _: worker.process.send_signal(signal.SIGTERM))
        stopped = worker.wait()
        assert stopped.stats["finish_reason"] == "shutdown"
        assert leases(client, key) == []
        waiting = client.zcard(f"{key}:queue")
        assert f"Left {waiting} requests in the queue" in stopped.log
        ended = played.crawl({**OURS, **KEEP}, "resumed")
        assert f"The crawl resumes with {waiting} requests" in ended.log
        assert played.missed == set()
        assert played.twice == 0
        assert client.exists(key)
    assert_ended_well(ended)


def test_stopped_without_persist(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without SCHEDULER_PERSIST the last worker deletes the waiting requests, with a warning."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        worker = played.start("worker", OURS)
        played.moments.when(MIDDLE, lambda _: worker.process.send_signal(signal.SIGTERM))
        ended = worker.wait()
        (warning,) = complaints_in(ended.log)
        assert f"still waited in the queue '{key}:queue' are deleted" in warning
        assert keys_of(client, key) == set()


def test_flush_on_start(valkey: Server, key: str, tmp_path: Path) -> None:
    """SCHEDULER_FLUSH_ON_START deletes an earlier crawl, and scrapy-redis's SET."""
    with valkey.client() as client, scene(tree(13), tmp_path, valkey.url, key) as played:
        played.crawl({**OURS, **KEEP}, "first")
        again = played.crawl({**OURS, **KEEP, "SCHEDULER_FLUSH_ON_START": True}, "second")
        client.delete(*keys_of(client, key))
        client.sadd(key, "a", "b")
        over_a_set = played.crawl({**OURS, "SCHEDULER_FLUSH_ON_START": True}, "third")
        assert Counter(played.site.paths) == dict.fromkeys(played.site.links, 3)
        assert keys_of(client, key) == set()
    assert_ended_well(again, over_a_set)


def test_always(valkey: Server, key: str, tmp_path: Path) -> None:
    """A page of BLOOMFILTER_ALWAYS is fetched once in each run, however many pages link to it."""
    with scene(linked(20), tmp_path, valkey.url, key) as played:
        played.spider = unfiltered.__file__
        settings: Kind = {**OURS, **KEEP, "BLOOMFILTER_ALWAYS": r"/page/3$"}
        crawls = [played.crawl(settings, name) for name in ("first", "second")]
        asked = Counter(played.site.paths)
    assert_ended_well(*crawls)
    assert (asked["/page/3"], asked["/page/4"], asked["/page/19"]) == (2, 1, 1)


# Kills and outages.


def test_workers_killed(valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Workers are killed at random moments and replaced: no page is missed."""
    source = random.Random(6)
    crawls: list[Crawl] = []
    with scene(tree(400), tmp_path, valkey.url, key, delay=0.05) as played:
        by_name: dict[str, CrawlProcess] = {}

        def start() -> None:
            name = f"worker-{len(by_name)}"
            by_name[name] = played.start(name, {**OURS, **LEASE, **KEEP}, CONCURRENT_REQUESTS=8)

        def kill(victim: str) -> None:
            process = by_name[victim].process
            if process.poll() is not None:  # it was killed while this page was on its way: another one will do
                played.moments.when(played.moments.asked + 1, kill)
                return
            # In this order the list has grown before the last of the others can have ended.
            start()
            process.kill()
            process.wait()

        for part in range(4):
            played.moments.when(source.randrange(20, 70) + 80 * part, kill)
        for _ in range(3):
            start()
        crawls.extend(worker.wait() for worker in played.workers)  # the list grows
        assert played.missed == set()
    survivors = [ended for ended in crawls if ended.exit_code != -signal.SIGKILL]
    assert len(survivors) == 3
    assert_ended_well(*survivors)
    recovered = sum(ended.stats.get("bloomfilter/recovered", 0) for ended in survivors)
    tell(capsys, f"4 of 7 workers killed: 0 of 400 missed, {played.twice} fetched twice, {recovered} put back")
    assert recovered > 0


def test_finished_pages_are_not_fetched_again(valkey: Server, key: str, tmp_path: Path) -> None:
    """A finished page is acknowledged even while slow pages take all slots."""
    finished, slots = 20, 8
    with valkey.client() as client, scene(star(60), tmp_path, valkey.url, key) as played:
        release = threading.Event()
        played.site.before = lambda worker: (
            release.wait(LIMIT) if worker == "killed" and len(played.site.fetched) > finished else None
        )
        worker = played.start("killed", {**OURS, **LEASE}, CONCURRENT_REQUESTS=slots)
        until(lambda: len(worker.received) == finished and len(played.site.fetched) == finished + slots)
        until(lambda: number_stored(client, key) == 60 - finished)
        worker.kill()
        release.set()
        ended = played.crawl({**OURS, **LEASE}, "heir")
        assert set(worker.received).isdisjoint(ended.fetched)
        assert played.missed == set()
    assert_ended_well(ended)


def test_killed_before_its_links_are_queued(valkey: Server, key: str, tmp_path: Path) -> None:
    """A worker dies in the callback of a page, after others are done: no link of any of them is lost."""
    settings: Kind = {**OURS, **LEASE, **KEEP, "DEADLY": f"/page/{MIDDLE}", "BLOOMFILTER_BATCH_SIZE": 1000}
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = deadly.__file__
        assert played.crawl(settings, "killed").exit_code == -signal.SIGKILL
        assert_ended_well(played.crawl({**settings, "DEADLY": "/nowhere"}, "heir"))
        assert played.missed == set()


@pytest.mark.parametrize("shape", [chain, tree])
def test_redis_killed(shape: Callable[[int], Links], durable: Server, key: str, tmp_path: Path) -> None:
    """Redis is killed, and comes back after 2 s: the crawl pauses, continues, and fetches every page once."""
    with durable.client() as client, scene(shape(PAGES), tmp_path, durable.url, key) as played:
        away = Outage(durable, 2.0)
        played.moments.when(MIDDLE, away)
        ended = played.crawl(OURS)
        away.join()
        assert played.missed == set()
        assert played.twice == 0
        assert keys_of(client, key) == set()
    assert_ended_well(ended)
    assert [line for line in complaints_in(ended.log) if "the crawl pauses until it answers" in line]


def test_redis_stopped(durable: Server, key: str, tmp_path: Path) -> None:
    """Redis answers nothing for 2 s, longer than two workers wait for a reply: no page is missed."""
    settings: Kind = {**OURS, **LEASE, "REDIS_PARAMS": '{"socket_timeout": 0.5}', "CONCURRENT_REQUESTS": 4}
    with durable.client() as client, scene(tree(PAGES), tmp_path, durable.url, key, delay=0.1) as played:

        def stop(_: str) -> None:
            silence = durable.silent()
            silence.__enter__()
            threading.Timer(2, silence.__exit__, (None, None, None)).start()

        played.moments.when(MIDDLE, stop)
        crawls = [worker.wait() for worker in [played.start(name, settings) for name in ("left", "right")]]
        assert played.missed == set()
        assert keys_of(client, key) == set()
    assert_ended_well(*crawls)


def test_stopped_while_redis_is_away(durable: Server, key: str, tmp_path: Path) -> None:
    """A crawl stopped while Redis is away ends; the next one fetches all remaining pages."""
    settings: Kind = {**OURS, **LEASE, **KEEP}
    with scene(tree(PAGES), tmp_path, durable.url, key) as played:
        played.moments.when(MIDDLE, lambda _: durable.kill())
        worker = played.start("first", settings)
        until(lambda: complaints_in(played.log("first")))
        worker.process.send_signal(signal.SIGINT)
        first = worker.wait()
        assert first.stats["finish_reason"] == "shutdown"
        assert "Traceback" not in first.log
        assert played.missed
        durable.start()
        second = played.crawl(settings, "second")
        assert played.missed == set()
        assert max(played.fetched.values()) <= 2
    assert_ended_well(second)


def test_many_links_while_redis_is_away(
    durable: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """50,000 links on one page, while Redis is away, take bounded memory, and all are queued afterwards."""
    found = 50_000
    settings: Kind = {
        **OURS,
        **LEASE,
        **enabling("EXTENSIONS", Ticker),
        "BURST": found,
        "BLOOMFILTER_CAPACITY": 100_000,
        "CONCURRENT_REQUESTS": 1,
    }
    with durable.client() as client, scene(chain(1), tmp_path, durable.url, key, delay=0) as played:
        played.spider = burst.__file__
        release = threading.Event()
        played.site.before = lambda _: release.wait(LIMIT) if len(played.site.fetched) > 1 else None
        played.site.on["/"] = lambda _: durable.kill()
        worker = played.start("worker", settings)
        until((tmp_path / "given").exists)
        ticked = tmp_path / TICKED
        ticked.unlink(missing_ok=True)
        until(ticked.exists)
        memory = peak_memory_mb(worker)
        durable.start()
        until(lambda: number_stored(client, key) >= found, 2 * LIMIT)
        worker.process.send_signal(signal.SIGTERM)
        release.set()
        stats = worker.wait().stats
    stall, turns = stats[LONGEST_STALL], stats[ALL_TURNS]
    tell(capsys, f"{found:,} links while Redis is away: {memory:.0f} MB, longest turn {stall:.2f} of {turns:.0f} s CPU")
    assert memory < 200
    assert stall < 0.1 * turns


def peak_memory_mb(worker: CrawlProcess) -> float:
    """Return the peak memory of a worker so far."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def test_start_urls(valkey: Server, key: str, tmp_path: Path) -> None:
    """Two workers lease start URLs, and one dies with those that it has taken: each page is fetched."""
    with valkey.client() as client, fed_scene(valkey.url, key, tmp_path, client) as fed:
        fed.feed("list", PATHS)
        fed.tell("deadly", DEADLY)
        settings: Kind = {**OURS, **KEEP, **fed.settings}
        assert fed.played.crawl(settings, "dies").exit_code == -signal.SIGKILL
        crawls = [worker.wait() for worker in [fed.played.start(name, settings) for name in ("left", "right")]]
        assert fed.played.missed == set()
        assert fed.played.twice == 0
        assert fed.leased == 0
    assert_ended_well(*crawls)
    # A live worker keeps its start URLs.
    assert sum(ended.log.count("of dead workers") for ended in crawls) == 1


# Lost data.


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
        lost = [member for each in leases(client, key) for member in client.zrange(each, 0, -1)]
        client.delete(*leases(client, key))
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
        assert ended.exit_code == 0


def test_filter_is_deleted(valkey: Server, key: str, tmp_path: Path) -> None:
    """The filter is deleted: no page is missed, and the log says that some may be fetched twice."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.moments.when(MIDDLE, lambda _: client.delete(key))
        ended = played.crawl({**OURS, **LEASE})
        assert played.missed == set()
    assert_ended_well(ended)
    (warning,) = complaints_in(ended.log)
    assert "The filter of the queue" in warning


def test_cluster(key: str, tmp_path: Path) -> None:
    """In a cluster two workers fetch every page, even if one is killed; keys in two slots are refused."""
    params: Kind = {"REDIS_PARAMS": '{"redis_cls": "redis.RedisCluster"}'}
    with (
        running_cluster(3, "--appendonly", "yes") as (node, *_),
        scene(tree(PAGES), tmp_path, node.url, key, delay=0.05) as played,
    ):
        refused = played.crawl({**OURS, **params}, "refused")
        assert refused.exit_code == 1
        line = refused.log.rstrip().splitlines()[-1]
        assert f"set SCHEDULER_DUPEFILTER_KEY = '{{{key}:queue}}:dupefilter'" in line
        # The default key is in the slot of a spider's own queue.
        keys: Kind = {"SCHEDULER_DUPEFILTER_KEY": "", "SCHEDULER_QUEUE_KEY": f"{key}:%(spider)s"}
        settings: Kind = {**OURS, **LEASE, **params, **keys}
        workers = {name: played.start(name, settings) for name in ("left", "right")}
        played.moments.when(MIDDLE, lambda name: workers[name].process.kill())
        crawls = [worker.wait() for worker in workers.values()]
        assert played.missed == set()
        with redis.RedisCluster("127.0.0.1", node.port) as client:
            assert [each for each in client.scan_iter(count=10_000) if key.encode() in each] == []
    survivors = [ended for ended in crawls if ended.exit_code == 0]
    assert len(survivors) == 1
    assert_ended_well(*survivors)


# Failed pages, unreadable requests and deadly ones.


def failing(played: Scene) -> set[str]:
    """Let a fifth of the pages fail."""
    pages = sorted(played.site.links.keys() - {"/"})
    failed = set(random.Random(5).sample(pages, len(pages) // 5))
    played.site.answers = dict.fromkeys(failed, 503)
    return failed


def test_failed_pages_in_the_next_run(valkey: Server, key: str, tmp_path: Path) -> None:
    """Failed pages are kept, and the next run fetches them, without a link to any of them."""
    with valkey.client() as client, scene(star(40), tmp_path, valkey.url, key) as played:
        failed = failing(played)
        first = played.crawl({**OURS, **KEEP, **RETRY}, "first")
        assert client.hlen(f"{{{key}:queue}}:failed") == len(failed)
        played.site.answers = {}
        # Its start request is known: nothing leads to them but the kept requests.
        second = played.crawl({**OURS, **KEEP, **RETRY}, "second")
        assert Counter(second.fetched) == Counter(played.site.url + path for path in failed)
        third = played.crawl({**OURS, **KEEP, **RETRY}, "third")
        assert third.fetched == []
        assert client.exists(f"{{{key}:queue}}:failed") == 0
    assert first.stats["bloomfilter/failed"] == len(failed)
    assert_ended_well(first, second, third)


def test_failed_pages_outlive_a_finished_crawl(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without SCHEDULER_PERSIST, too, the next run fetches the kept pages, and no page twice."""
    with scene(star(40), tmp_path, valkey.url, key) as played:
        failing(played)
        first = played.crawl({**OURS, **RETRY}, "first")
        played.site.answers = {}
        second = played.crawl({**OURS, **RETRY}, "second")
        # The start URL has no slash.
        assert Counter(url.removeprefix(played.site.url) or "/" for url in second.fetched) == dict.fromkeys(
            played.site.links, 1
        )
    assert_ended_well(first, second)


def test_failed_pages_without_the_setting(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without BLOOMFILTER_RETRY_FAILED a failed page is done."""
    with valkey.client() as client, scene(star(20), tmp_path, valkey.url, key) as played:
        failing(played)
        ended = played.crawl({**OURS, **KEEP, "RETRY_TIMES": 1})
        assert client.exists(f"{{{key}:queue}}:failed") == 0
    assert_ended_well(ended)
    assert "bloomfilter/failed" not in ended.stats


def test_unreadable_request(valkey: Server, key: str, tmp_path: Path) -> None:
    """An unreadable request is logged and kept; the others are fetched, and the next worker tries again."""
    with valkey.client() as client, scene(tree(13), tmp_path, valkey.url, key) as played:
        played.moments.when(2, lambda _: client.zadd(f"{key}:queue", {b"not a request": -5}))
        crawls = [played.crawl({**OURS, **KEEP}, name) for name in ("first", "second")]
        assert played.missed == set()
        assert client.zrange(f"{{{key}:queue}}:dead-letter", 0, -1) == [b"not a request"]
    for ended in crawls:
        assert ended.stats["finish_reason"] == "finished"
        assert ended.stats["bloomfilter/dead_letters"] == 1
        assert "cannot be read" in ended.log
        assert f"1 requests are kept at the key '{{{key}:queue}}:dead-letter'" in ended.log


def test_deadly_page(valkey: Server, key: str, tmp_path: Path) -> None:
    """A page that kills its workers becomes a dead letter, and the others are fetched."""
    settings: Kind = {**OURS, **LEASE, **KEEP, "BLOOMFILTER_MAX_DELIVERIES": 2, "DEADLY": "/page/2"}
    with valkey.client() as client, scene(star(5), tmp_path, valkey.url, key) as played:
        played.spider = deadly.__file__
        ends: list[Crawl] = []
        while not ends or ends[-1].exit_code:
            assert len(ends) < 5
            ends.append(played.crawl(settings, f"worker-{len(ends)}"))
        (member,) = client.zrange(f"{{{key}:queue}}:dead-letter", 0, -1)
        assert url_of(member).endswith("/page/2")
        assert played.missed <= {"/page/2"}
    assert_ended_well(ends[-1])
    assert "BLOOMFILTER_MAX_DELIVERIES" in ends[-1].log


# Refusals.


def refused(played: Scene, parts: list[str], **settings: object) -> None:
    """Assert that a second worker is refused with these parts, and the first one ends well."""
    held, release = held_at(played, "/")
    first = played.start("first", OURS)
    assert held.wait(LIMIT)
    spider, played.spider = played.spider, str(settings.pop("spider", played.spider))
    ended = played.start("refused", OURS, **settings).wait()
    played.spider = spider
    release.set()
    line = ended.log.rstrip().splitlines()[-1]
    assert ended.exit_code == 1
    assert line.startswith("scrapy_bloom: ")
    assert [part for part in parts if part not in line] == []
    assert_ended_well(first.wait())
    assert played.missed == set()
    assert played.twice == 0


def test_another_filter_key(valkey: Server, key: str, tmp_path: Path) -> None:
    """Two workers of a queue with different filters: the second is refused."""
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        parts = [f"SCHEDULER_DUPEFILTER_KEY = '{key}:other'", f"use the filter '{key}'"]
        refused(played, parts, SCHEDULER_DUPEFILTER_KEY=f"{key}:other")


@pytest.mark.parametrize("flush", [False, True])
def test_another_spider(flush: bool, valkey: Server, key: str, tmp_path: Path) -> None:
    """A spider that starts on another one's queue is refused, and deletes nothing."""
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        text = Path(played.spider).read_text().replace("LinksSpider", "OtherSpider")
        (tmp_path / "other.py").write_text(text)
        parts = ["SCHEDULER_QUEUE_KEY", "LinksSpider", "%(spider)s"]
        refused(played, parts, spider=tmp_path / "other.py", SCHEDULER_FLUSH_ON_START=flush)


def test_other_parameters(valkey: Server, key: str, tmp_path: Path) -> None:
    """A filter of other parameters is refused with both values."""
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        refused(played, [repr(key), "capacity = 88 here, 1000 in the stored filter"], BLOOMFILTER_CAPACITY=88)


def test_wrong_type(valkey: Server, key: str, tmp_path: Path) -> None:
    """A SET that scrapy-redis left is refused, and survives."""
    with valkey.client() as client, scene(tree(13), tmp_path, valkey.url, key) as played:
        client.sadd(key, "a", "b")
        ended = played.crawl(OURS)
        assert ended.exit_code == 1
        assert played.site.fetched == []
        assert client.scard(key) == 2
    assert f"the key '{key}' holds a set that is not a filter" in ended.log.rstrip().splitlines()[-1]


def test_another_server_for_the_filter(valkey: Server, key: str, tmp_path: Path) -> None:
    """BLOOMFILTER_REDIS_URL is refused: one script uses both."""
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS, BLOOMFILTER_REDIS_URL="redis://127.0.0.1:1")
        assert ended.exit_code == 1
        assert played.site.fetched == []
    assert "BLOOMFILTER_REDIS_URL" in ended.log.rstrip().splitlines()[-1]


OVERRIDES = """
from scrapy_redis.queue import PriorityQueue
from scrapy_bloom.atomic.scheduler import BloomScheduler

class OwnQueue(PriorityQueue):
    def {name}(self, *args):
        return super().{name}(*args)

class OwnScheduler(BloomScheduler):
    def enqueue_request(self, request):
        self.{call}
        return True

class Preferring(BloomScheduler):
    def enqueue_request(self, request):
        request.priority = 7 if request.url.endswith("/page/3") else 0
        return super().enqueue_request(request)
"""


@pytest.mark.parametrize("name", ["push", "pop", "clear"])
def test_own_queue(name: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A PriorityQueue that overrides a method without effect is refused."""
    (tmp_path / "own.py").write_text(OVERRIDES.format(name=name, call="queue"))
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS, SCHEDULER_QUEUE_CLASS="own.OwnQueue")
        assert ended.exit_code == 1
        assert played.site.fetched == []
    line = ended.log.rstrip().splitlines()[-1]
    assert f"SCHEDULER_QUEUE_CLASS = 'own.OwnQueue': overrides {name}" in line


def test_advice_for_own_queues(valkey: Server, key: str, tmp_path: Path) -> None:
    """A scheduler that sets priorities, as the refusal advises, changes the order."""
    (tmp_path / "own.py").write_text(OVERRIDES.format(name="push", call="queue"))
    with scene(star(13), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS, SCHEDULER="own.Preferring", CONCURRENT_REQUESTS=1)
        assert played.site.paths[:2] == ["/", "/page/3"]
        assert played.missed == set()
    assert_ended_well(ended)


@pytest.mark.parametrize("call", ["queue.push(request)", "df.request_seen(request)", "queue.pop()", "flush()"])
def test_own_enqueue(call: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A scheduler with its own way to queue ends the crawl, with one line and an exit code."""
    (tmp_path / "own.py").write_text(OVERRIDES.format(name="push", call=call))
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS, SCHEDULER="own.OwnScheduler")
        assert played.site.fetched == []
    assert ended.exit_code == 1
    # Scrapy's own reason is "shutdown" if start() has failed.
    assert ended.stats["finish_reason"] != "finished"
    line = ended.log.rstrip().splitlines()[-1]
    assert line.startswith("scrapy_bloom: SCHEDULER = ")
    assert "super().enqueue_request(request)" in line
