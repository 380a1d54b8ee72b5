"""Crawls whose Redis dies, returns, refuses commands, fails over, goes back in time, or loses replies.

Every page is fetched. Each page is linked once, so that one lost request is one missed page.
"""

import json
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from devtools.crawl_process import LIMIT
from tests.support import crawling
from tests.support.clusters import running_cluster
from tests.support.extensions import StatsInRedis
from tests.support.faults import CUTS, Place, at_random, proxying
from tests.support.outcomes import assert_cleared, assert_complete, assert_ended_well, complaints_in, tell
from tests.support.pages import chain, tree
from tests.support.scenario import (
    FILTER_ALONE,
    LEASE,
    MIDDLE,
    OURS,
    PAGES,
    SCRAPY,
    SINGLE_CONNECTION,
    SLOWER_THAN_SCRAPY,
    STOCK,
    Kind,
    keys_of,
    scene,
)
from tests.support.sentinels import MASTER, watched_pair
from tests.support.servers import Server, free_port, running
from tests.support.waiting import until

# By name: the shape of the site, and the seconds without Redis.
OUTAGES = {"tree, 2 s": (tree(PAGES), 2.0), "chain, 2 s": (chain(PAGES), 2.0), "tree, 15 s": (tree(PAGES), 15.0)}


# Longer outages, and the control: `make test-all` alone runs these.
FURTHER = [
    ("ours", "chain, 2 s"),
    ("ours", "tree, 15 s"),
    ("scrapy-redis", "tree, 2 s"),
    ("scrapy-redis", "chain, 2 s"),
]


@pytest.mark.parametrize(
    ("kind", "outage"), [("ours", "tree, 2 s"), *(pytest.param(*each, marks=pytest.mark.long) for each in FURTHER)]
)
def test_redis_killed(
    kind: str, outage: str, durable: Server, key: str, tmp_path: Path, *, capsys: pytest.CaptureFixture[str]
) -> None:
    """Redis is killed and comes back: the crawl pauses, continues, and fetches every page.

    The control: scrapy-redis misses pages.
    """
    links, seconds = OUTAGES[outage]
    with scene(links, tmp_path, durable.url, key) as played, durable.client() as client:
        with played.outage(durable, seconds):
            ended = played.crawl(OURS if kind == "ours" else STOCK)
        tell(capsys, f"Redis killed ({outage}): {kind} missed {len(played.missed)}, {played.twice} fetched twice")
        assert bool(played.missed) == (kind == "scrapy-redis")
        if kind == "ours":
            assert_ended_well(ended)
            assert played.twice == 0
            assert keys_of(client, key) == set()


def in_redis(server: Server, key: str) -> Kind:
    """Return the settings of a stats collector of another package."""
    collector = f"{StatsInRedis.__module__}.{StatsInRedis.__qualname__}"
    # At DEBUG, redis-py's line on each connection is counted by a further one, and so on, before any code of ours runs.
    return {"STATS_CLASS": collector, "STATS_URL": server.url, "STATS_KEY": f"{key}:stats", "LOG_LEVEL": "INFO"}


def test_stats_beside_the_queue(durable: Server, key: str, tmp_path: Path) -> None:
    """Scrapy counts each page in the Redis that is killed and comes back: every page reaches its callback."""
    with scene(tree(PAGES), tmp_path, durable.url, key) as played:
        with played.outage(durable, 2.0):
            ended = played.crawl({**OURS, **in_redis(durable, key), "LOG_LEVEL": "DEBUG"})
        assert (played.missed, played.keys - {f"{key}:stats"}) == (set(), set())
    assert ended.exit_code == 0
    # Older versions of Scrapy count redis-py's line on each connection, which may need a further connection.
    assert ended.log.partition("calls Redis for each stat")[2].count("[redis.connection] DEBUG") < 20
    assert [line for line in complaints_in(ended.log) if "StatsInRedis': calls Redis for each stat" in line]


@pytest.mark.parametrize(
    ("kind", "way"), [(OURS, "silent"), (OURS, "killed"), (FILTER_ALONE, "killed"), (SCRAPY, "killed")],
    ids=["silent", "ours", "scrapy-redis", "scrapy"],
)  # fmt: skip
def test_stats_lost_for_good(kind: Kind, way: str, own: Server, valkey: Server, *, key: str, tmp_path: Path) -> None:
    """The Redis of the stats alone goes away, or falls silent, until the end: every page reaches its callback."""
    with ExitStack() as stack:
        played = stack.enter_context(scene(tree(PAGES), tmp_path, valkey.url, key))
        played.moments.when(MIDDLE, lambda _: own.kill() if way == "killed" else stack.enter_context(own.silent()))
        ended = played.crawl({**kind, **in_redis(own, key)})
        assert played.missed == set()
    assert ended.exit_code == 0
    assert "Traceback" not in ended.log
    assert [line for line in complaints_in(ended.log) if "StatsInRedis': failed (" in line]


Change = Callable[[redis.Redis], object]


def lock_out(client: redis.Redis) -> None:
    """Require a password from now on."""
    client.config_set("requirepass", "another")
    client.client_kill_filter(_type="normal", skipme=True)


def zadd(permission: str) -> Change:
    """Let all users use ZADD, or none."""
    return lambda client: client.acl_setuser("default", enabled=True, commands=[f"{permission}zadd"], reset=False)


# A refusal, its end, and a part of the advice.
REFUSALS: dict[str, tuple[Change, Change, str]] = {
    "memory full": (
        lambda client: client.config_set("maxmemory", 1),
        lambda client: client.config_set("maxmemory", 0),
        "maxmemory",
    ),
    "permission taken": (zadd("-"), zadd("+"), "on the filter's keys"),
    "password changed": (lock_out, lambda client: client.config_set("requirepass", ""), "REDIS_URL or REDIS_PARAMS"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_redis_refuses(refusal: str, own: Server, key: str, tmp_path: Path) -> None:
    """A Redis that starts to refuse commands ends the crawl; the next one fetches the rest."""
    refuse, relent, advice = REFUSALS[refusal]
    # So slow, and so few at a time, that new requests wait in the queue when it happens.
    settings: dict[str, object] = {**LEASE, "CONCURRENT_REQUESTS": 4}
    with own.client() as client, scene(tree(PAGES), tmp_path, own.url, key, delay=SLOWER_THAN_SCRAPY) as played:
        played.moments.when(MIDDLE, lambda _: refuse(client))
        first = played.crawl(OURS, "first", **settings)
        assert played.missed
        assert first.stats["finish_reason"] == "bloomfilter_error"
        assert "Traceback" not in first.log
        assert [line for line in complaints_in(first.log) if advice in line]
        relent(client)
        played.moments.delay = 0
        # Without SCHEDULER_PERSIST, too: only a finished crawl clears keys that others would resume with.
        assert {key, f"{key}:queue"} <= keys_of(client, key)
        second = played.crawl(OURS, "second", **settings)
        assert_cleared(played, second)
        assert max(played.fetched.values()) <= 2


def test_redis_refuses_an_idle_worker(own: Server, key: str, tmp_path: Path) -> None:
    """If Redis refuses while a worker waits for others, the worker ends with an error."""
    with own.client() as client, scene(chain(2), tmp_path, own.url, key) as played:
        held, release = played.hold("/")
        busy = played.start("busy", OURS)
        assert held.wait(LIMIT)
        idle = played.start("idle", OURS)
        until(lambda: "idle and waits for others" in played.log("idle"))
        lock_out(client)
        reasons = [idle.wait().stats["finish_reason"]]
        release.set()
        reasons.append(busy.wait().stats["finish_reason"])
    assert reasons == ["bloomfilter_error"] * 2


def test_redis_not_up(durable: Server, key: str, tmp_path: Path) -> None:
    """A crawl started before Redis waits for it, and then fetches every page."""
    durable.kill()
    with scene(tree(13), tmp_path, durable.url, key) as played:
        worker = played.start("worker", OURS)
        until(lambda: complaints_in(played.log("worker")))
        durable.start()
        ended = worker.wait()
        assert_complete(played, ended)


@pytest.mark.parametrize("client", [{}, SINGLE_CONNECTION], ids=["pool", "single connection"])
def test_redis_never_up(client: Kind, key: str, tmp_path: Path) -> None:
    """Without Redis a crawl fails with one clear error after the configured wait."""
    with scene(tree(13), tmp_path, f"redis://127.0.0.1:{free_port()}", key) as played:
        ended = played.crawl({**OURS, **client}, BLOOMFILTER_RETRY_TIMEOUT=0.5)
        assert ended.exit_code == crawling.REFUSED_EXIT_CODE
        assert played.site.fetched == []
    (error,) = [line for line in ended.log.splitlines() if "ERROR: The crawl does not start: " in line]
    assert "(BLOOMFILTER_RETRY_TIMEOUT) = 0.5" in error


# A Sentinel promotes the replica of a lost master.


@pytest.mark.parametrize("kind", [OURS, pytest.param(STOCK, marks=pytest.mark.long)], ids=["ours", "scrapy-redis"])
def test_failover(kind: Kind, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The master is killed for good: the crawl pauses until there is another, and fetches every page there.

    The control: scrapy-redis misses pages.
    """
    with watched_pair("valkey", tmp_path) as pair:
        # The first of the Sentinels is gone.
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{pair.sentinel}"
        url, params = f"redis+sentinel://{hosts}/{MASTER}", {}
        if kind is STOCK:
            url, params = f"redis://{hosts}", {"redis_cls": "scrapy_bloom.FromSentinel", "service_name": MASTER}
        with scene(tree(PAGES), tmp_path, url, key) as played:
            played.moments.when(MIDDLE, lambda _: pair.master.kill())
            ended = played.crawl(kind, REDIS_PARAMS=json.dumps(params))
    tell(capsys, f"Sentinel failover: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert bool(played.missed) == (kind is STOCK)
    if kind is OURS:
        assert_ended_well(ended)
        assert played.twice == 0
        assert [line for line in complaints_in(ended.log) if "the crawl resumes" in line]


# A server returns without its latest writes, as a promoted replica may. It loses the same time span of filter and
# queue: requests that the filter forgets are fetched again.


# When the server's data are saved; it returns with them in the middle.
SAVED = 15
CLUSTER: Kind = {"REDIS_PARAMS": '{"redis_cls": "redis.RedisCluster"}'}
COMMON: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4, "BLOOMFILTER_ERROR_RATE": 1e-12}


@pytest.mark.parametrize("kind", ["server", pytest.param("cluster", marks=pytest.mark.long)])
def test_rollback(kind: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server writes all keys in one stream: if its tail is lost, no page is.

    In a cluster queue and filter are in one slot, and so on one node.
    """
    in_one_slot = f"{{{key}}}"
    with ExitStack() as stack:
        if kind == "cluster":
            cluster = stack.enter_context(running_cluster(2))
            server, settings = cluster.owner_of(in_one_slot), CLUSTER
        else:
            server, settings = stack.enter_context(running("valkey")), {}
        client = stack.enter_context(server.client())
        played = stack.enter_context(scene(tree(PAGES), tmp_path, server.url, in_one_slot, delay=0.05))

        def roll_back(_: str) -> None:
            server.kill()
            server.start()

        played.moments.when(SAVED, lambda _: client.save())
        played.moments.when(MIDDLE, roll_back)
        assert_ended_well(played.crawl({**COMMON, **settings}))
    tell(capsys, f"rollback of a {kind}: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed == set()
    assert played.twice > 0


# Replies are lost; stock scrapy-redis shows the loss.


@pytest.mark.parametrize("kind", [FILTER_ALONE, pytest.param(STOCK, marks=pytest.mark.long)], ids=["ours", "stock"])
def test_replies_lost_to_the_filter_alone(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Under scrapy-redis's Scheduler no lost reply of the filter loses a page; its own filter misses pages."""
    with proxying(valkey.port, "EVALSHA", "SADD") as proxy, scene(tree(PAGES), tmp_path, proxy.url, key) as played:
        # Never two in a row: scrapy-redis retries once, so the loss stays unnoticed.
        proxy.plan = iter([None, None, None, Place.AFTER, None, None, Place.REPLY] * 10)
        ended = played.crawl(kind)
        assert bool(played.missed) == (kind is STOCK)
        if kind is FILTER_ALONE:
            assert (played.twice, proxy.faults) == (0, 20)
    assert_ended_well(ended)


def test_bad_line(valkey: Server, key: str, tmp_path: Path) -> None:
    """The connection is cut at arbitrary points, heartbeats included: no page is lost."""
    with proxying(valkey.port) as proxy, scene(tree(PAGES), tmp_path, proxy.url, key) as played:
        # Not during the start, which waits in another way.
        parameters = at_random(random.Random(5), CUTS, 8, 2)
        played.moments.when(2, lambda _: setattr(proxy, "plan", parameters))
        ended = played.crawl(OURS)
        assert_complete(played, ended)
        assert proxy.faults == 8
