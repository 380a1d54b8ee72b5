"""Crawls during which Redis dies, returns, or refuses commands: every page is fetched.

Each page is linked once, so that one lost request is one missed page.
"""

import threading
from collections.abc import Callable
from pathlib import Path

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
    SINGLE_CONNECTION,
    SLOWER_THAN_SCRAPY,
    STOCK,
    Kind,
    assert_cleared,
    assert_complete,
    assert_ended_well,
    complaints_in,
    keys_of,
    scene,
    tell,
)
from tests.support.servers import Server, free_port

# By name: the shape of the site, and the seconds without Redis.
OUTAGES = {"tree, 2 s": (tree(PAGES), 2.0), "chain, 2 s": (chain(PAGES), 2.0), "tree, 15 s": (tree(PAGES), 15.0)}


# Longer outages, and the control: `make test-all` alone runs these.
FURTHER = [
    ("ours", "chain, 2 s"),
    ("ours", "tree, 15 s"),
    ("scrapy-redis", "tree, 2 s"),
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
    errors = {line for line in ended.log.splitlines() if line.startswith("scrapy_bloom.errors.")}
    assert len(errors) == 1
    assert "(BLOOMFILTER_RETRY_TIMEOUT) = 0.5" in errors.pop()
