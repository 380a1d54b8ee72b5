"""Each script on a server equals its twin in memory, in every order of calls."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_bloom._format import as_bytes
from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.operations import Ending, Registration, Reply, Status
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.scripts import load_script
from tests.support.queue_memory import Audit, QueueMemory
from tests.support.queue_replay import cases, changed, comparable, without_beats
from tests.support.replay import replay
from tests.support.scenario import tell
from tests.support.selection import valkey_first
from tests.support.servers import Server

names = st.sampled_from(["one", "other", "third"])
# Few enough that calls meet, and enough that gaps occur.
numbers = st.integers(0, 4)
members = st.sampled_from([b"a", b"b", b"c", b"\xff\x00"])
entries = st.lists(st.builds(QueueEntry, st.sampled_from([-1.0, 0.0, 2.5]), members), max_size=3).map(tuple)
some = st.lists(members, max_size=3).map(tuple)
VALUES = ["5 0 0", "5 1 0", "5 1 1", "5 2 0", "5 1v 0", "5 0 0 closing", "5 1 0 closing", "5 0 0 closing flush"]


def sync(worker: str, number: int, want: int, lists: Any, released: int) -> ops.Sync:
    """A sync that releases no more entries than it pushes."""
    leases, pushes, dead_letters, acks, starts = lists
    return ops.Sync(worker, number, want, leases, pushes, min(released, len(pushes)), dead_letters, acks, starts)


operations = st.one_of(
    st.builds(ops.Join, names, st.just("5"), numbers, st.booleans()),
    st.builds(sync, names, numbers, st.integers(0, 3), st.tuples(entries, entries, entries, some, some), numbers),
    st.builds(sync, names, numbers, st.integers(0, 3), st.just(((), (), (), (), ())), numbers),
    st.builds(ops.ResolveInDoubt, names, numbers, st.none() | st.lists(members, max_size=2).map(ops.digests)),
    st.builds(ops.Heartbeat, names),
    st.builds(ops.Requeue, names, names, st.sampled_from(VALUES), st.just("5"), numbers, st.integers(0, 3)),
    st.builds(ops.Leave, names, numbers, st.sampled_from(Ending)),
    st.builds(ops.EndClosing, names, st.booleans(), st.booleans(), st.sampled_from(["", "spider"])),
    st.builds(ops.ReadDeadLetters, names, st.integers(0, 2), st.integers(1, 3)),
    st.builds(ops.Redrive, names, some),
    st.builds(
        ops.Flush,
        names,
        st.sampled_from(["", "zset", "list"]),
        st.lists(names, max_size=3).map(tuple),
        st.sampled_from(["", "5"]),
    ),
)


class OnServer:
    """A queue on a server, with the interface of the twin."""

    def __init__(self, client: redis.Redis, queue: str) -> None:
        self._client: Any = client
        self.keys = QueueKeys(queue)
        self._transport = transport_for(client)

    def apply(self, operation: ops.QueueOperation) -> Reply:
        """Execute an operation."""
        (raw,) = self._transport.execute([operation.command(self.keys)])
        return Reply.parse(raw, as_bytes)

    def sorted_set(self, key: str) -> dict[bytes, float]:
        """Return the contents of a sorted set."""
        return dict(self._client.zrange(key, 0, -1, withscores=True))

    def contents(self) -> dict[str, Any]:
        """Return all stored data."""
        workers = self._client.hgetall(self.keys.workers)
        return {
            "queue": self.sorted_set(self.keys.queue),
            "dead letters": self.sorted_set(self.keys.dead_letters),
            "workers": {name.decode(): value.decode() for name, value in workers.items()},
            "leases": {name: self.sorted_set(self.keys.leases(name)) for name in ("one", "other", "third")},
            "audit": self.audit(),
            "deliveries": self.deliveries(),
        }

    def audit(self) -> Audit:
        """Return the audit; the time of a loss is 1, since the twin has no clock."""
        audit = {name.decode(): value for name, value in self._client.hgetall(self.keys.audit).items()}
        waiting, lost = (int(audit.get(name, 0)) for name in ("waiting", "lost"))
        return Audit(waiting, int("loss" in audit), lost, "shared" in audit)

    def deliveries(self) -> dict[bytes, tuple[int, str]]:
        """Return each suspect's number of deaths, and the worker that started it since."""
        values = {
            member: value.decode().split() for member, value in self._client.hgetall(self.keys.deliveries).items()
        }
        return {member: (int(count), "".join(starter)) for member, (count, *starter) in values.items()}

    def delete(self) -> None:
        """Delete all stored data."""
        keys = self.keys
        leases = map(keys.leases, ("one", "other", "third"))
        self._client.delete(keys.queue, keys.workers, keys.dead_letters, keys.audit, keys.deliveries, *leases)


def contents_of(memory: QueueMemory) -> dict[str, Any]:
    """Return all data of the twin."""
    return {
        "queue": memory.queue,
        "dead letters": memory.dead_letters,
        "workers": memory.workers,
        "leases": {name: memory.leases.get(name, {}) for name in ("one", "other", "third")},
        "deliveries": memory.deliveries,
        "audit": dataclasses.replace(memory.audit, loss=int(memory.audit.loss > 0)),
    }


def as_on_server(operation: ops.QueueOperation, memory: QueueMemory, workers: Mapping[str, str]) -> ops.QueueOperation:
    """Translate an operation of the twin for a server with these workers."""
    if isinstance(operation, ops.Requeue) and memory.workers.get(operation.dead) == operation.value:
        return dataclasses.replace(operation, value=workers[operation.dead])
    return operation


def assert_equal(server: OnServer, memory: QueueMemory) -> None:
    """A server and the twin have equal data, except for the beats."""
    found, expected = server.contents(), contents_of(memory)
    assert {**found, "workers": without_beats(found["workers"])} == {
        **expected,
        "workers": without_beats(expected["workers"]),
    }


@valkey_first
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(sequence=st.lists(operations, max_size=16))
def test_memory_is_the_twin_of_the_scripts(client: redis.Redis, key: str, sequence: list[ops.QueueOperation]) -> None:
    """Any sequence of operations has the same replies, and leaves the same data."""
    server, memory = OnServer(client, key), QueueMemory()
    server.delete()
    joins = [ops.Join(name, "5", 0, is_new=False) for name in ("one", "other")]
    for operation in (*joins, *sequence):
        workers, twins = server.contents()["workers"], dict(memory.workers)
        answer = server.apply(as_on_server(operation, memory, workers))
        assert comparable(answer) == comparable(memory.apply(operation)), operation
        assert changed(workers, server.contents()["workers"]) == changed(twins, memory.workers), operation
        assert_equal(server, memory)


@pytest.mark.long
def test_every_state_with_every_operation(server: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each operation of small crawls has the same reply and effect on a server as in the twin."""
    seen, number = set(), 0
    # No other test uses this database.
    with server.client(db=1) as client:
        for case, difference in replay(client, key, cases()):
            assert not difference, difference
            seen.add((type(case.operation), case.reply.status))
            number += 1
    tell(capsys, f"{number:,} states with an operation")
    assert seen == {
        (kind, Status(word))
        for kind in ops.QueueOperation.__subclasses__()
        for word in re.findall(r"'(\w+)'", load_script("scrapy_bloom.queue", kind.script))
        if word in set(Status)
    }


def test_suspect_that_comes_back(client: redis.Redis, key: str) -> None:
    """A started suspect that its worker returns counts as not started when taken again."""
    server, memory = OnServer(client, key), QueueMemory()
    suspect = QueueEntry(0.0, b"a")
    steps = [
        ops.Join("one", "5", 0, is_new=True),
        ops.Sync("one", 1, 0, leases=(suspect,)),
        ops.Join("other", "5", 0, is_new=True),
        ops.Requeue("other", "one", "5 1 0", "5", 0, 3),
        ops.Sync("other", 1, 1),
        ops.Sync("other", 2, 0, starts=(suspect.member,)),
        ops.Sync("other", 3, 0, pushes=(suspect,), released=1),
        ops.Sync("other", 4, 1),
    ]
    found = []
    for step in steps:
        answer = server.apply(as_on_server(step, memory, server.contents()["workers"]))
        assert comparable(answer) == comparable(memory.apply(step))
        assert_equal(server, memory)
        found.append(server.deliveries().get(suspect.member))
    assert answer.suspects == {suspect.member: 1}
    assert found == [None, None, None, (1, ""), (1, ""), (1, "other"), (1, "other"), (1, "")]


def last_heard(server: OnServer, worker: str) -> float:
    """The time of a worker's last heartbeat, from its registration."""
    heard = Registration.parse(server.contents()["workers"][worker]).last_heard
    assert heard is not None
    return heard


def test_last_heard(client: Any, key: str) -> None:
    """A join, a heartbeat and a takeover of the closing store the server's time."""
    server = OnServer(client, key)

    def now() -> float:
        seconds, microseconds = client.time()
        return float(seconds * 1000 + microseconds // 1000) / 1000

    def is_heard_at(operation: ops.QueueOperation) -> None:
        begin = now()
        server.apply(operation)
        assert begin <= last_heard(server, operation.worker) <= now() + 0.005  # each is a millisecond later at least

    is_heard_at(ops.Join("one", "5", 0, is_new=True))
    is_heard_at(ops.Heartbeat("one"))
    is_heard_at(ops.Join("one", "5", 3, is_new=False))
    server.apply(ops.Leave("one", 3, Ending.STOPPED))
    closing = server.contents()["workers"]["one"]
    is_heard_at(ops.Requeue("other", "one", closing, "5", 0))
    assert Registration.parse(server.contents()["workers"]["other"]).is_closing


@pytest.mark.parametrize("ahead", [0, 3_600_000], ids=["within a millisecond", "the clock was put back"])
def test_each_heartbeat_is_a_larger_number(client: Any, key: str, ahead: int) -> None:
    """A registration changes with each heartbeat, even with quick ones and a clock set back."""
    server = OnServer(client, key)
    server.apply(ops.Join("one", "5", 0, is_new=True))
    beats = int(server.contents()["workers"]["one"].split()[2]) + ahead
    client.hset(server.keys.workers, "one", f"5 0 {beats}")
    for _ in range(20):
        server.apply(ops.Heartbeat("one"))
        before, beats = beats, int(server.contents()["workers"]["one"].split()[2])
        assert beats > before
    assert not ahead or beats == before + 1


@pytest.mark.parametrize("count", [999, 1000, 1001, 7000])
def test_many_entries(count: int, client: redis.Redis, key: str) -> None:
    """A script moves more members than Lua's unpack can take at once."""
    server, memory = OnServer(client, key), QueueMemory()
    many = tuple(QueueEntry(number % 7, f"{number}".encode()) for number in range(count))
    members = tuple(entry.member for entry in many)
    steps = [
        ops.Join("one", "5", 0, is_new=True),
        ops.Sync("one", 1, 0, leases=many),
        ops.Sync("one", 2, 0, pushes=many, released=count),
        ops.Sync("one", 3, count),
        ops.Sync("one", 4, 0, dead_letters=many, acks=members),
        ops.Redrive("one", members),
        ops.Sync("one", 5, count),
        ops.Join("one", "5", 5, is_new=True),
        ops.Sync("one", 6, count),
        ops.Join("other", "5", 0, is_new=True),
        ops.Requeue("other", "one", "5 6 0", "5", 0),
    ]
    for step in steps:
        answer = server.apply(as_on_server(step, memory, server.contents()["workers"]))
        assert comparable(answer) == comparable(memory.apply(step))
    assert_equal(server, memory)
    assert len(memory.queue) == count
