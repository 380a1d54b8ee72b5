"""The queue's scripts on real servers: bytes, slots, full servers, dead workers."""

from collections.abc import Iterator
from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.heartbeat import Heartbeat
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Call, JoinRefusedError
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.runtime import Runtime
from tests.support.driven import Driven
from tests.support.servers import Server, running
from tests.support.waiting import until


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3, "decode_responses": True}])
def test_members_are_bytes(options: dict[str, Any], server: Server, key: str) -> None:
    """A request has the bytes that were queued, even if the client decodes replies."""
    with server.client(**options) as client:
        driven = Driven.on_server(client, key, "one")
        member = bytes(range(256))
        driven.offer(member)
        assert driven.take() == [member]
        driven.worker.finish(member)
        driven.leave()
        assert list(client.scan_iter(f"*{key}*")) == []


def test_many_requests(client: redis.Redis, key: str) -> None:
    """A worker that dies with very many requests, which one call of Lua cannot take, loses none."""
    number = 9_000  # Lua 5.1 unpacks 8,000 values at most; a script of 5 seconds would make the server refuse others
    dead = Driven.on_server(client, key, "dead", batch=number, lease=0.001)
    heir = Driven.on_server(client, key, "heir")
    members = [b"%d" % each for each in range(number)]
    dead.offer(*members)
    dead.work_off()
    assert len(dead.take(number)) == number
    heir.work_off()
    heir._send("heir", 0, Call("heartbeat", (0,)))
    assert client.zcard(key) == number
    heir.worker.leave("stopped")
    heir.step()
    assert list(client.scan_iter(f"*{key}*")) == []


# Class paths of spiders, and whether they are one.
SPIDERS = [
    ("shop.spiders.news.News", "news.News", True),
    ("shop.spiders.news.News", "spiders.news.News", True),
    ("shop.spiders.news.News", "News", True),
    ("shop.spiders.news.News", "shop.spiders.news.News", True),
    ("shop.spiders.news.News", "store.spiders.news.News", False),
    ("shop.spiders.news.News", "old.News", False),
    ("shop.spiders.news.News", "shop.spiders.news.OldNews", False),
    ("shop.spiders.news.OldNews", "News", False),
]


@pytest.mark.parametrize(("one", "other", "are_same"), [*SPIDERS, *[(b, a, same) for a, b, same in SPIDERS]])
def test_spiders(one: str, other: str, are_same: bool, client: redis.Redis, key: str) -> None:
    """A spider that is imported under two names is one; two are refused, also behind a worker with the shorter name."""
    first, second, third = (
        Driven.on_server(client, key, name, spider=f"{spider} with x")
        for name, spider in (("one", one), ("other", other), ("third", "store.spiders.news.News"))
    )
    first.work_off()
    with nullcontext() if are_same else pytest.raises(JoinRefusedError):
        second.work_off()
    if are_same:
        with pytest.raises(JoinRefusedError):
            third.work_off()


class Unconnected(redis.RedisCluster):
    """A cluster's client without a cluster."""

    def __init__(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_keys_in_other_slots_are_refused(valkey: Server) -> None:
    """On a cluster the error names the setting to change, and the key to set."""
    cluster = Unconnected()
    RequestQueue(cluster, "{shop}:requests", "{shop}:dupefilter")
    with pytest.raises(ConfigError, match=r"SCHEDULER_QUEUE_KEY = 'a\}b'.*without braces"):
        RequestQueue(cluster, "a}b", "f")
    with pytest.raises(ConfigError, match=r"set SCHEDULER_DUPEFILTER_KEY = '\{shop:requests\}:dupefilter'"):
        RequestQueue(cluster, "shop:requests", "shop:dupefilter")
    with valkey.client() as client:
        RequestQueue(client, "a}b", "f")


@pytest.fixture
def full() -> Iterator[redis.Redis]:
    """A client of a server of this test's own, which it may fill."""
    with running("valkey") as server, server.client() as client:
        yield client


def test_full_server(full: redis.Redis, key: str) -> None:
    """A full server refuses new requests as a whole; a worker can still beat, finish, take, join and leave."""
    driven = Driven.on_server(full, key, "one")
    driven.offer(b"a", b"b", b"c", b"d")
    assert driven.take() == [b"a"]
    full.config_set("maxmemory", 1)
    before = {name: full.dump(name) for name in full.scan_iter("*")}
    driven.offer(b"e", b"f")
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        driven.step()
    assert {name: full.dump(name) for name in full.scan_iter("*")} == before
    driven.queues[0].outbox.clear()
    driven.worker.finish(b"a")
    assert driven.take() == [b"b"]
    assert driven._send("one", 0, Call("heartbeat", (5,)))
    other = Driven.on_server(full, key, "other")
    other.work_off()
    assert other.take() == [b"c"]
    driven.worker.finish(b"b")
    other.leave("keep")
    driven.leave("keep")
    assert full.zrange(key, 0, -1) == [b"c", b"d"]


def test_dead_worker(client: redis.Redis, key: str) -> None:
    """A thread requeues the leases of a silent worker, whose own lease decides; the worker finds it out."""
    dead, living = (
        Driven.on_server(client, key, "dead", lease=0.05),
        Driven.on_server(client, key, "living", lease=1000),
    )
    dead.offer(b"a")
    assert dead.take() == [b"a"]
    living.work_off()
    queue = RequestQueue(client, key, f"{{{key}}}:dupefilter")
    send = queue.send
    failed: list[Call] = []

    def fail_first(worker: str, call: Call) -> Any:
        if not failed:
            failed.append(call)
            raise redis.ConnectionError
        return send(worker, call)

    queue.send = fail_first  # type: ignore[method-assign]
    heartbeat = Heartbeat([queue], "living", 0.1, 5)
    heartbeat.start()
    until(lambda: client.zrange(key, 0, -1) == [b"a"])
    heartbeat.stop()
    (reaped,) = [dead for _, others in heartbeat.take_others() for dead in others.dead]
    assert (reaped.name, reaped.requests) == ("dead", 1)
    assert living.take() == [b"a"]
    dead.worker.finish(b"a")
    assert next(received.rejoin for received in dead.work_off()) == "dead"
    living.worker.finish(b"a")
    dead.leave()
    living.leave()
    assert list(client.scan_iter(f"*{key}*")) == []


def test_frozen_worker(client: redis.Redis, key: str) -> None:
    """A request that as many workers had leased as died is a dead letter, also if one of them was only frozen."""
    options = {"lease": 0.001, "max_deaths": 2}
    dead, frozen = (Driven.on_server(client, key, name, **options) for name in ("dead", "frozen"))
    other, dead_letters = Driven.on_server(client, key, "other"), QueueKeys(key).dead_letters
    other.work_off()
    dead.offer(b"a")
    for worker, found in ((dead, []), (frozen, [b"a"])):
        assert worker.take() == [b"a"]
        until(lambda: other._send("other", 0, Call("heartbeat", (2,)))[5])
        assert client.zrange(dead_letters, 0, -1) == found
    frozen.work_off()
    assert (client.zrange(dead_letters, 0, -1), client.zcard(key)) == ([b"a"], 0)


@pytest.fixture
def denied() -> Iterator[tuple[redis.Redis, redis.Redis]]:
    """The clients of an administrator and of the user `worker`, who may do anything at first."""
    with running("valkey") as own, own.client() as admin, own.client(username="worker", password="x") as client:  # noqa: S106  # of this test
        admin.acl_setuser("worker", enabled=True, passwords=["+x"], keys=["*"], commands=["+@all"])
        yield admin, client


@pytest.mark.parametrize("command", ["hset", "strlen"])
def test_growth_is_denied(command: str, denied: tuple[redis.Redis, redis.Redis], key: str) -> None:
    """If an ACL denies a command of a filter that grows in the middle of a batch, its marked requests are queued."""
    admin, client = denied
    driven = Driven.on_server(client, key, "one", parameters=FilterParameters(60, 1e-12))
    driven.offer(b"first")
    driven.work_off()
    admin.acl_setuser("worker", commands=[f"-{command}"])
    driven.offer(*(b"%d" % number for number in range(100)))
    with pytest.raises(redis.exceptions.ResponseError):
        driven.step()
    driven.worker.lose(0)
    admin.acl_setuser("worker", commands=[f"+{command}"])
    driven.work_off()
    assert admin.zcard(key) == 101


def test_taking_is_denied(denied: tuple[redis.Redis, redis.Redis], key: str) -> None:
    """If an ACL denies ZADD to a worker that takes requests, these stay in the queue."""
    admin, client = denied
    driven = Driven.on_server(client, key, "one")
    driven.offer(b"a", b"b")
    driven.work_off()
    admin.acl_setuser("worker", commands=["-zadd"])
    with pytest.raises(redis.exceptions.ResponseError):
        driven.step(2)
    assert admin.zcard(key) == 2


def test_a_worker_that_stands(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker whose reactor has not run for 15 leases sends no heartbeat any more, until it runs again."""
    living = Driven.on_server(client, key, "living")
    living.work_off()
    queue, now, runtime = RequestQueue(client, key, f"{{{key}}}:dupefilter"), [0.0], Runtime()
    runtime.monotonic = lambda: now[0]
    asked = [0]

    def waits(seconds: float) -> bool:
        asked[0] += 1
        return stopped.wait(seconds / 100)

    stopped = Event()
    runtime.event = cast("Any", lambda: SimpleNamespace(wait=waits, set=stopped.set))
    heartbeat = Heartbeat([queue], "living", 10, 0, runtime)
    heartbeat.start()
    until(lambda: next(heartbeat.take_others(), None))
    now[0] = 149
    list(heartbeat.take_others())
    until(lambda: next(heartbeat.take_others(), None))
    now[0] = 151
    until(lambda: "has not run for 150 s" in caplog.text)
    list(heartbeat.take_others())
    before = asked[0]
    until(lambda: asked[0] > before + 5)
    assert list(heartbeat.take_others()) == []
    heartbeat.tick()
    until(lambda: next(heartbeat.take_others(), None))
    heartbeat.stop()
    assert caplog.text.count("has not run") == 1
