"""The queue on real servers: under any faults, each request is in Redis or fetched."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from devtools.proxy.faults import CUTS, at_random, proxying
from devtools.waiting import until
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.heartbeats import Heartbeats
from scrapy_bloom.queue.operations import (
    AskFilter,
    ClearFilter,
    Ending,
    ForgetFailed,
    Heartbeat,
    Join,
    ReleaseFilter,
    Reply,
    RequestQueue,
    Requeue,
    Status,
    UseFilter,
)
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.queue.worker_state import Phase
from scrapy_bloom.transport.retry import disable_client_retries
from tests.support.servers import Server


class Driven:
    """A worker over a queue on a server, with a filter that calls every request new."""

    def __init__(self, client: redis.Redis, key: str, name: str, lease: str = "60") -> None:
        self.queue = RequestQueue(client, key)
        self.worker = QueueWorker(name, lease, 5, lambda _: False)
        self.faults = 0

    def step(self, want: int = 0) -> bool:
        """Execute the worker's next operation; return False if there is none."""
        operation = self.worker.next_operation(want)
        match operation:
            case None:
                return False
            case AskFilter():
                self.worker.receive_filter_reply(operation, [True] * len(operation.entries))
            case UseFilter() | ReleaseFilter() | ClearFilter() | ForgetFailed():
                self.worker.receive_reply(operation, Reply(Status.OK))
            case _:
                try:
                    self.worker.receive_reply(operation, self.queue.execute(operation))
                except redis.ConnectionError:
                    self.faults += 1
                    self.worker.lose_reply(operation)
        return True

    def end(self) -> None:
        """Leave the queue, also through cut connections."""
        self.worker.leave(Ending.FINISHED)
        while self.worker.phase is not Phase.GONE:
            self.step()


@pytest.fixture
def client(any_client: redis.Redis) -> redis.Redis:
    """A client of each kind of server."""
    return any_client


@pytest.fixture
def torn(server: Server) -> Iterator[tuple[redis.Redis, Any]]:
    """A client through a proxy that cuts its connection again and again."""
    with proxying(server.port, "EVAL", "EVALSHA") as proxy, redis.Redis("127.0.0.1", proxy.port) as client:
        disable_client_retries(client)
        yield client, proxy


@pytest.mark.parametrize("seed", range(5))
def test_cut_anywhere_nothing_is_lost(seed: int, torn: tuple[redis.Redis, Any], server: Server, key: str) -> None:
    """Two workers work through random cuts of connections: each request is fetched once."""
    source = random.Random(seed)
    torn_client, proxy = torn
    workers = [Driven(torn_client, key, name) for name in ("one", "other")]
    proxy.plan = at_random(source, CUTS, 40, 3)
    wanted = {f"{number}".encode() for number in range(200)}
    waiting = sorted(wanted)
    fetched: list[bytes] = []
    while len(fetched) < len(wanted) or any(not driven.worker.is_idle for driven in workers):
        driven = source.choice(workers)
        worker = driven.worker
        for member in [waiting.pop() for _ in range(min(len(waiting), source.randrange(4)))]:
            worker.offer(OutboxEntry(member, source.randrange(3), member))
        driven.step(source.randrange(4))
        if source.random() < 0.7 and (entry := worker.take()) is not None:
            fetched.append(entry.member)
        if worker.state.running and source.random() < 0.7:
            worker.finish(source.choice(list(worker.state.running)))
    for driven in workers:
        driven.end()
    assert sum(driven.faults for driven in workers) > 20
    # No reply of the filter was lost, and no worker was presumed dead.
    assert sorted(fetched) == sorted(wanted)
    keys = workers[0].queue.keys
    with server.client() as client:
        assert client.exists(key, keys.workers, keys.dead_letters, keys.leases("one"), keys.leases("other")) == 0


def registered(queue: RequestQueue) -> set[str]:
    """Return the registered workers."""
    return set(queue.execute(Heartbeat("nobody")).workers or {})


def test_dead_one_is_requeued_by_the_thread(client: redis.Redis, key: str) -> None:
    """Leases of a silent worker are requeued, and its next operation expires."""
    dead, living = Driven(client, key, "dead", lease="0.05"), Driven(client, key, "living")
    dead.worker.offer(OutboxEntry(b"a", 3, b"a"))
    while dead.worker.has_news:
        dead.step()
    dead.step(1)
    assert [entry.member for entry in dead.worker.state.ready] == [b"a"]
    while living.worker.phase is not Phase.WORKING:
        living.step()
    heartbeats = Heartbeats(living.queue, "living", 0.2)
    while "dead" in registered(living.queue):
        heartbeats.beat()
    assert heartbeats.requeued == 1
    assert client.zrange(key, 0, -1, withscores=True) == [(b"a", 3.0)]
    assert registered(living.queue) == {"living"}
    dead.worker.take()
    dead.worker.finish(b"a")
    dead.step()
    assert dead.worker.phase is Phase.JOINING


def test_dead_letter_whose_reply_is_lost(client: redis.Redis, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker whose Requeue lost its reply reports the dead letter, once."""
    dead, living = Driven(client, key, "dead", lease="0.05"), Driven(client, key, "living")
    dead.worker.offer(OutboxEntry(b"a", 3, b"a"))
    while dead.worker.has_news:
        dead.step()
    dead.step(1)
    while living.worker.phase is not Phase.WORKING:
        living.step()
    execute = living.queue.execute
    lost: list[Any] = []

    def lose_first_requeue(operation: Any) -> Reply:
        reply = execute(operation)
        if isinstance(operation, Requeue) and not lost:
            lost.append(operation)
            raise redis.ConnectionError
        return reply

    monkeypatch.setattr(living.queue, "execute", lose_first_requeue)
    heartbeats = Heartbeats(living.queue, "living", 0.2, max_deliveries=1)
    while not lost:
        with contextlib.suppress(redis.ConnectionError):
            heartbeats.beat()
    assert not heartbeats.dead_letters
    heartbeats.beat()
    heartbeats.beat()
    assert [entry.member for entry in heartbeats.dead_letters] == [b"a"]


def test_heartbeats_after_an_outage(client: redis.Redis, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed heartbeat the thread continues, and requeues a dead worker's leases."""
    dead, living = Driven(client, key, "dead", lease="0.05"), Driven(client, key, "living")
    for driven in (dead, living):
        while driven.worker.phase is not Phase.WORKING:
            driven.step()
    heartbeats = Heartbeats(living.queue, "living", 0.2)
    execute = living.queue.execute
    failed: list[Any] = []

    def fail_first(operation: Any) -> Reply:
        if not failed:
            failed.append(operation)
            raise redis.ConnectionError
        return execute(operation)

    monkeypatch.setattr(living.queue, "execute", fail_first)
    heartbeats.start()
    until(lambda: "dead" not in registered(dead.queue))
    heartbeats.stop()
    assert failed


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3, "decode_responses": True}])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_members_are_bytes(options: dict[str, Any], encoding: str, server: Server, key: str) -> None:
    """A member has the bytes of Redis, even if the client decodes replies; a serializer gets the client's value."""
    with server.client(encoding=encoding, **options) as client:
        driven = Driven(client, key, "one")
        member = driven.queue.encode("ü")
        assert member == "ü".encode(encoding)
        driven.worker.offer(OutboxEntry(member, 0, None))
        driven.step()
        while not driven.worker.state.ready:
            driven.step(1)
        assert driven.worker.state.ready[0].member == member
        assert driven.queue.decode(member) == ("ü" if options.get("decode_responses") else member)


class OfCluster(redis.Redis):
    """A client that looks like a cluster's."""

    def keyslot(self) -> None:
        """Exist: a cluster's client has this method."""


def test_keys_in_other_slots_are_refused(server: Server) -> None:
    """On a cluster the error names the setting to change."""
    with OfCluster(port=server.port) as client:
        RequestQueue(client, "{shop}:requests")
        with pytest.raises(ConfigError, match=r"SCHEDULER_QUEUE_KEY = 'a\}b'.*without braces"):
            RequestQueue(client, "a}b")
    with server.client() as client:
        RequestQueue(client, "a}b")


def test_full_server(server: Server, key: str) -> None:
    """A full server refuses new requests as a whole; a worker can still beat, finish, take and leave."""
    with server.client() as client:
        driven = Driven(client, key, "one")
        for member in (b"a", b"b", b"c", b"d"):
            driven.worker.offer(OutboxEntry(member, 0, member))
        while driven.worker.has_news:
            driven.step()
        driven.step(1)
        assert driven.worker.take() is not None
        limit = client.config_get("maxmemory")["maxmemory"]
        client.config_set("maxmemory", 1)
        try:
            driven.worker.finish(b"a")
            driven.step(1)
            assert driven.worker.state.ready
            assert driven.queue.execute(Heartbeat("one")).status is Status.OK
            driven.worker.offer(OutboxEntry(b"e", 0, b"e"))
            with pytest.raises(redis.ResponseError, match="used memory > 'maxmemory'"):
                driven.step()
            assert client.exists(key, driven.queue.keys.leases("one")) == 2
            assert driven.queue.execute(Join("other", "60", 0, is_new=True)).status is Status.OK
            driven.worker.state.outbox.clear()
            driven.end()
        finally:
            client.config_set("maxmemory", limit)
        assert client.zcard(key) == 3


def take_over(queue: RequestQueue, dead: str, heir: str) -> Reply:
    """Let a worker requeue the leases of a silent one."""
    value = queue.execute(Heartbeat(heir)).workers or {}
    return queue.execute(Requeue(heir, dead, value[dead], "60", 0, max_deliveries=2))


def run_first(driven: Driven) -> bytes:
    """Let a worker take and run the first request."""
    while (entry := driven.worker.take()) is None:
        driven.step(1)
    return entry.member


def test_count_of_a_worker_that_was_taken_for_dead(client: redis.Redis, key: str) -> None:
    """Its late acknowledgement keeps the count: another worker has the request, and may die with it."""
    first, second, third = (Driven(client, key, name) for name in ("first", "second", "third"))
    for driven in (first, second, third):
        while driven.worker.phase is not Phase.WORKING:
            driven.step()
    client.zadd(key, {"deadly": 0})
    assert run_first(first) == b"deadly"
    assert take_over(first.queue, "first", "second").entries == ()
    assert run_first(second) == b"deadly"
    first.worker.finish(b"deadly")
    # The worker finds its registration gone, leases its request again, and acknowledges it.
    for _ in range(6):
        first.step()
    assert first.worker.is_idle
    buried = take_over(first.queue, "second", "third")
    assert [entry.member for entry in buried.entries] == [b"deadly"]
    assert client.zcard(key) == 0
    assert client.zrange(first.queue.keys.dead_letters, 0, -1) == [b"deadly"]


def test_count_ends_with_the_acknowledgement(client: redis.Redis, key: str) -> None:
    """A suspect ceases to be one when the worker that started it finishes it; no key remains."""
    first, second = (Driven(client, key, name) for name in ("first", "second"))
    for driven in (first, second):
        while driven.worker.phase is not Phase.WORKING:
            driven.step()
    client.zadd(key, {"slow": 0})
    run_first(first)
    take_over(first.queue, "first", "second")
    run_first(second)
    assert client.hgetall(first.queue.keys.deliveries) == {b"slow": b"1 second"}
    second.worker.finish(b"slow")
    second.step()
    assert client.exists(first.queue.keys.deliveries, key, first.queue.keys.audit) == 0
