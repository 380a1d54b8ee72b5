"""Start data are leased as entries of the queue, and return to their keys: each type of key, on each kind of server."""

from types import SimpleNamespace
from typing import Any

import pytest
import redis

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.inspection import first_request
from scrapy_bloom.queue.keys import QueueKeys, key_of
from scrapy_bloom.queue.messages import Call, Outcome
from scrapy_bloom.queue.request_queue import RequestQueue, require_slot_of_start
from scrapy_bloom.start_data import data_of
from tests.support import command
from tests.support.driven import Driven, in_queues
from tests.support.servers import running
from tests.support.waiting import until

DATA = [b"a", b"b \xff\0", b"", b"d 1", *(b"%d" % number for number in range(9))]
KINDS = ("list", "set", "zset")
LEASE = 1000


class Fed:
    """A queue that is fed by keys of one type."""

    def __init__(self, client: Any, key: str, kind: str) -> None:
        self.client, self.key, self.kind = client, key, kind
        self.start = f"{key}:start"

    def worker(self, name: str = "one", *more: str, lease: float = LEASE, client: Any = None, **terms: Any) -> Driven:
        """A worker that reads this key, and more."""
        starts = [self.start, *more]
        queue = RequestQueue(client or self.client, self.key, f"{{{self.key}}}:dupefilter", starts)
        return Driven(name, in_queues([queue]), lease, **{"starts": 16, "start_kind": self.kind, **terms})

    def push(self, *data: bytes, key: str = "") -> None:
        """Append data; in a zset each has a lower score than the last."""
        client, key = self.client, key or self.start
        if self.kind == "list":
            client.rpush(key, *data)
        elif self.kind == "set":
            client.sadd(key, *data)
        else:
            client.zadd(key, {datum: 0.1 - client.zcard(key) - place for place, datum in enumerate(data)})

    def command(self, action: str, *words: str) -> None:
        """Run `scrapy bloom` on the queue."""
        connection = self.client.connection_pool.connection_kwargs
        url = f"redis://{connection['host']}:{connection['port']}"
        keys = ("--queue", self.key, "--key", f"{{{self.key}}}:dupefilter")
        assert command.call(action, *words, *keys, "--redis-url", url) == 0

    @property
    def waiting(self) -> list[bytes]:
        """All data of the key, the next one first."""
        client, key = self.client, self.start
        kinds = {"list": lambda: client.lrange(key, 0, -1), "set": lambda: client.smembers(key)}
        return self.in_order(kinds.get(self.kind, lambda: client.zrevrange(key, 0, -1))())

    def in_order(self, data: list[bytes]) -> list[bytes]:
        """Return data in a comparable order: a set has none."""
        return sorted(data) if self.kind == "set" else list(data)


@pytest.fixture(params=KINDS)
def fed(request: pytest.FixtureRequest, client: redis.Redis, key: str) -> Fed:
    """A queue for each type of key, with data."""
    fed = Fed(client, key, request.param)
    fed.push(*DATA)
    return fed


def opened(driven: Driven, want: int = 16) -> list[bytes]:
    """Lease start data, and return them."""
    return [data_of(member)[1] for member in driven.take(want)]


def test_in_order(fed: Fed) -> None:
    """Start data are leased in the order of their key, a few at once, until they are acknowledged."""
    driven = fed.worker(starts=4)
    taken = list(iter(lambda: driven.take(16), []))
    assert [len(members) for members in taken] == [4, 4, 4, 1]
    members = [member for some in taken for member in some]
    assert fed.in_order([datum for _, datum in map(data_of, members)]) == fed.in_order(DATA)
    assert fed.waiting == []
    for member in members:
        driven.worker.finish(member)
    driven.leave()
    assert list(fed.client.scan_iter(f"*{fed.key}*")) == []


def test_equal_data(client: redis.Redis, key: str) -> None:
    """Two equal start data of a list are two entries, also if one is pushed while the other one is leased."""
    fed = Fed(client, key, "list")
    fed.push(b"a", b"a")
    driven = fed.worker()
    assert opened(driven) == [b"a", b"a"]
    fed.push(b"a")
    assert opened(driven) == [b"a"]
    assert len(driven.worker.running) == 3


def test_lost_reply(fed: Fed) -> None:
    """After a lost reply the worker gets the same data, and none is popped beside them."""
    driven = fed.worker(starts=3)
    driven.work_off()
    driven.lose(16, is_executed=True)
    left = fed.waiting
    assert len(left) == len(DATA) - 3
    found = opened(driven, 0)
    assert fed.waiting == left
    assert fed.in_order([*found, *left]) == fed.in_order(DATA)


def test_requests_first(fed: Fed) -> None:
    """No start data are popped while requests wait for this worker."""
    driven = fed.worker()
    driven.offer(b"request")
    assert driven.take(16) == [b"request"]
    assert len(fed.waiting) == len(DATA)
    assert len(driven.take(16)) == len(DATA)


def test_dead_worker(fed: Fed) -> None:
    """The data of a dead worker go to another one, before the requests, and one at a time: one may be deadly."""
    dead, heir = fed.worker("dead", starts=3, lease=0.05), fed.worker("heir")
    left = opened(dead)
    heir.offer(b"request")
    heir.work_off()
    until(lambda: heir._send("heir", 0, Call("heartbeat", (5,)))[5])
    found = []
    for _ in left:
        (member,) = heir.take(1)
        heir.worker.finish(member)
        found.append(data_of(member)[1])
    assert fed.in_order(found) == fed.in_order(left)
    assert heir.take(1) == [b"request"]


@pytest.mark.parametrize("way", ["leave", "stop", "clear", "flush", "lost"])
def test_given_back(way: str, fed: Fed) -> None:
    """The last leave, and all that deletes a crawl, give start data back in their order, and with their scores."""
    before = fed.client.dump(fed.start)
    driven, other = fed.worker(), fed.worker("other", flush=way == "flush")
    driven.work_off()
    driven.step(16)
    if way in ("leave", "stop"):
        driven.worker.stop()
        driven.leave("keep" if way == "leave" else "stopped")
    elif way == "lost":  # the registration
        fed.client.hdel(QueueKeys(fed.key).workers, "one")
        other.leave("keep")
    else:
        other.work_off()
    if way == "clear":
        driven.worker.stop()
        driven.leave()
        assert fed.client.zcard(fed.key) == len(DATA)
        fed.command("clear", "--with-queue", "--yes")
    assert fed.waiting == fed.in_order(DATA)
    assert fed.kind != "zset" or fed.client.dump(fed.start) == before


def test_left_to_others(fed: Fed) -> None:
    """A worker that leaves beside others leaves its start data to them."""
    one, other = fed.worker(), fed.worker("other")
    other.work_off()
    one.work_off()
    one.step(16)
    one.worker.stop()
    one.leave()
    assert fed.waiting == []
    found = [datum for some in iter(lambda: opened(other), []) for datum in some]
    assert fed.in_order(found) == fed.in_order(DATA)


def test_pushed_again(client: redis.Redis, key: str) -> None:
    """A datum that was pushed to a sorted set again keeps its new score."""
    fed = Fed(client, key, "zset")
    fed.push(b"a", b"b")
    driven = fed.worker()
    driven.work_off()
    driven.step(16)
    client.zadd(fed.start, {b"a": -7.5})
    driven.worker.stop()
    driven.leave()
    assert client.zrange(fed.start, 0, -1, withscores=True) == [(b"a", -7.5), (b"b", 0.1 - 1)]


def test_unreadable(fed: Fed, capsys: pytest.CaptureFixture[str]) -> None:
    """One that the spider cannot read becomes a dead letter, which `requeue` shows and moves back."""
    driven = fed.worker(starts=1)
    (member,) = driven.take(1)
    driven.worker.finish(member, Outcome.UNREADABLE)
    driven.work_off()
    assert fed.client.zrange(QueueKeys(fed.key).dead_letters, 0, -1) == [member]
    fed.command("requeue", "--dry-run")
    shown = data_of(member)[1].decode(errors="replace")
    assert f"start URL of {fed.start}: {shown!r}\n" in capsys.readouterr().err
    fed.command("requeue")
    assert driven.take(1) == [member]


def test_first_request(client: redis.Redis, key: str) -> None:
    """Start data that wait in the queue do not hide its first request, whose serializer a new worker checks."""
    fed = Fed(client, key, "list")
    fed.push(*DATA)
    one, other = fed.worker(), fed.worker("other")
    one.work_off()
    one.step(16)
    other.offer(b"request")
    other.work_off()
    one.worker.stop()
    one.leave()
    assert client.zcard(key) == len(DATA) + 1
    assert first_request(client, key) == b"request"


def test_several_keys(fed: Fed) -> None:
    """Several keys are read in turn; one of another type is told, and what the others have given is kept."""
    second, wrong = f"{fed.key}:second", f"{fed.key}:wrong"
    fed.push(b"x", b"y", key=second)
    fed.client.set(wrong, "text")
    driven = fed.worker("one", wrong, second)
    driven.work_off()
    (received,) = driven.step(len(DATA) + 1)
    driven.work_off()
    assert "WRONGTYPE" in received.problem
    found = [data_of(entry.member) for entry in iter(driven.worker.take, None)]
    assert [key for key, _ in found] == [fed.start] * len(DATA) + [second]


def test_large_data(client: redis.Redis, key: str) -> None:
    """A call takes no further start data behind 4 MB, but one datum at least."""
    fed = Fed(client, key, "list")
    fed.push(b"a" * 5_000_000, b"b" * 3_000_000, b"c" * 3_000_000, b"d")
    driven = fed.worker()
    assert [[data[:1] for data in opened(driven)] for _ in range(3)] == [[b"a"], [b"b", b"c"], [b"d"]]


@pytest.mark.parametrize("kind", KINDS)
def test_full_server(kind: str, key: str) -> None:
    """On a full server start data can be taken, become dead letters and return."""
    with running("valkey") as server, server.client() as client:
        fed = Fed(client, key, kind)
        fed.push(*DATA)
        driven = fed.worker(starts=3)
        driven.work_off()
        client.config_set("maxmemory", 1)
        dead, done, *_ = driven.take(16)
        driven.worker.finish(dead, Outcome.UNREADABLE)
        driven.worker.finish(done)
        driven.work_off()
        driven.worker.stop()
        driven.worker._let_go()
        driven.work_off()
        driven.leave()
        assert len(fed.waiting) == len(DATA) - 2
        assert client.zrange(QueueKeys(key).dead_letters, 0, -1) == [dead]


POPS = {"list": "lpop", "set": "spop", "zset": "zpopmax"}


@pytest.mark.parametrize("denied", ["pop", "zadd"])
@pytest.mark.parametrize("kind", KINDS)
def test_denied(kind: str, denied: str, key: str) -> None:
    """If an ACL denies the pop, or the lease, each datum stays in its key, once."""
    name, options = (POPS[kind] if denied == "pop" else denied), {"username": "worker", "password": "x"}
    with running("valkey") as own, own.client() as admin, own.client(**options) as client:
        admin.acl_setuser("worker", enabled=True, passwords=["+x"], keys=["*"], commands=["+@all"])
        fed = Fed(admin, key, kind)
        fed.push(*DATA)
        driven = fed.worker(client=client)
        driven.work_off()
        admin.acl_setuser("worker", commands=[f"-{name}"])
        if denied == "pop":
            assert name in driven.step(16)[0].problem.lower()
        else:
            with pytest.raises(redis.exceptions.ResponseError):
                driven.step(16)
        admin.acl_setuser("worker", commands=[f"+{name}"])
        driven.worker.stop()
        driven.leave()
        assert fed.waiting == fed.in_order(DATA)


@pytest.mark.parametrize(
    ("start", "template"),
    [("news:start_urls", "{%(spider)s:start_urls}"), ("a{b}news", "a{b}%(spider)s"), ("50%:old", "{50%%:old}")],
)
def test_other_slot(start: str, template: str) -> None:
    """On a cluster start data in another slot than the queue are refused, with the key of the queue to set."""
    with pytest.raises(ConfigError) as refused:
        require_slot_of_start(QueueKeys("news:requests"), start, "news")
    assert f"set SCHEDULER_QUEUE_KEY = '{template}:requests'" in str(refused.value)
    named = SimpleNamespace(name="news")
    require_slot_of_start(QueueKeys(key_of("", f"{template}:requests", named)), start, "news")
