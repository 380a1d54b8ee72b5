"""Crawls during which Redis dies, returns, or refuses commands: every page is fetched.

Each page is linked once, so that one lost request is one missed page.
"""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.crawl_process import LIMIT
from devtools.waiting import until
from tests.support import crawling
from tests.support.pages import chain, tree
from tests.support.scenario import (
    LEASE,
    MIDDLE,
    OURS,
    PAGES,
    SLOWER_THAN_SCRAPY,
    STOCK,
    assert_ended_well,
    complaints_in,
    keys_of,
    scene,
    tell,
)
from tests.support.servers import Server, running

pytestmark = pytest.mark.crawl


# By name: the shape of the site, and the seconds without Redis.
OUTAGES = {"tree, 2 s": (tree(PAGES), 2.0), "chain, 2 s": (chain(PAGES), 2.0), "tree, 15 s": (tree(PAGES), 15.0)}


def outage_of(kind: str, outage: str) -> Any:
    """Return a kind of crawl and an outage as parameters; `make test` runs one, and not the control."""
    is_quick = (kind, outage) == ("ours", "tree, 2 s")
    return pytest.param(kind, outage, marks=() if is_quick else pytest.mark.long)


@pytest.mark.parametrize(
    ("kind", "outage"),
    [*(outage_of("ours", each) for each in OUTAGES), *(outage_of("scrapy-redis", each) for each in [*OUTAGES][:2])],
)
def test_redis_killed(
    kind: str, outage: str, durable: Server, key: str, tmp_path: Path, *, capsys: pytest.CaptureFixture[str]
) -> None:
    """Redis is killed and comes back: the crawl pauses, continues, and fetches every page.

    The control: scrapy-redis misses pages.
    """
    links, seconds = OUTAGES[outage]
    away = threading.Timer(seconds, durable.start)
    with scene(links, tmp_path, durable.url, key) as played, durable.client() as client:

        def kill(_: str) -> None:
            durable.kill()
            away.start()

        played.moments.when(MIDDLE, kill)
        ended = played.crawl(OURS if kind == "ours" else STOCK)
        away.join()
        tell(capsys, f"Redis killed ({outage}): {kind} missed {len(played.missed)}, {played.twice} fetched twice")
        assert bool(played.missed) == (kind == "scrapy-redis")
        if kind == "ours":
            assert_ended_well(ended)
            assert played.twice == 0
            assert keys_of(client, key) == set()


def test_demoted_and_promoted(key: str, tmp_path: Path) -> None:
    """Redis becomes a read-only replica, and a master again after a second: the crawl waits."""
    with (
        running("valkey") as server,
        server.client() as client,
        scene(tree(PAGES), tmp_path, server.url, key) as played,
    ):
        promotion = threading.Timer(1, lambda: client.replicaof("NO", "ONE"))

        def demote(_: str) -> None:
            # Its master does not answer, so the replica keeps its data.
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
def test_redis_refuses(refusal: str, key: str, tmp_path: Path) -> None:
    """A Redis that starts to refuse commands ends the crawl; the next one fetches the rest."""
    refuse, relent, advice = REFUSALS[refusal]
    # So slow, and so few at a time, that new requests wait in the queue when it happens.
    settings: dict[str, object] = {**LEASE, "CONCURRENT_REQUESTS": 4}
    with (
        running("valkey") as server,
        server.client() as client,
        scene(tree(PAGES), tmp_path, server.url, key, delay=SLOWER_THAN_SCRAPY) as played,
    ):
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
        assert played.missed == set()
        assert max(played.fetched.values()) <= 2
        assert keys_of(client, key) == set()
    assert_ended_well(second)


def test_redis_refuses_an_idle_worker(key: str, tmp_path: Path) -> None:
    """If Redis refuses while a worker waits for others, the worker ends with an error."""
    with (
        running("valkey") as server,
        server.client() as client,
        scene(chain(2), tmp_path, server.url, key) as played,
    ):
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
        assert played.missed == set()
    assert_ended_well(ended)


def test_redis_never_up(durable: Server, key: str, tmp_path: Path) -> None:
    """Without Redis a crawl fails with one clear error after the configured wait."""
    durable.kill()
    with scene(tree(13), tmp_path, durable.url, key) as played:
        ended = played.crawl(OURS, BLOOMFILTER_RETRY_TIMEOUT=0.5)
        assert ended.exit_code == crawling.REFUSED_EXIT_CODE
        assert played.site.fetched == []
    errors = {line for line in ended.log.splitlines() if line.startswith("scrapy_bloom.errors.")}
    assert len(errors) == 1
    assert "(BLOOMFILTER_RETRY_TIMEOUT) = 0.5" in errors.pop()
