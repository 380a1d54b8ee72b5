"""Each script does on a server what its twin does in memory, in every order of calls."""

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_bloom._text import as_bytes
from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.operations import Answer, Ending
from scrapy_bloom.transport.base import transport_for
from tests.support.queue_memory import QueueMemory

names = st.sampled_from(["one", "other", "third"])
# So few that calls meet, and so many that gaps occur.
numbers = st.integers(0, 4)
members = st.sampled_from([b"a", b"b", b"c", b"\xff\x00"])
entries = st.lists(st.builds(QueueEntry, st.sampled_from([-1.0, 0.0, 2.5]), members), max_size=3).map(tuple)
some = st.lists(members, max_size=3).map(tuple)
VALUES = ["5 0 0", "5 1 0", "5 1 1", "5 2 0", "5 1v 0", "5 0 0 closing", "5 1 0 closing"]


def exchange(worker: str, number: int, want: int, lists: Any, released: int) -> ops.Exchange:
    """An exchange of which no more entries are released than pushed."""
    leases, pushes, asides, acks = lists
    return ops.Exchange(worker, number, want, leases, pushes, min(released, len(pushes)), asides, acks)


operations = st.one_of(
    st.builds(ops.Join, names, st.just("5"), numbers, st.booleans()),
    st.builds(exchange, names, numbers, st.integers(0, 3), st.tuples(entries, entries, entries, some), numbers),
    st.builds(exchange, names, numbers, st.integers(0, 3), st.just(((), (), (), ())), numbers),
    st.builds(ops.Settle, names, numbers),
    st.builds(ops.Heartbeat, names),
    st.builds(ops.Requeue, names, names, st.sampled_from(VALUES), st.just("5"), numbers),
    st.builds(ops.Leave, names, numbers, st.sampled_from(Ending)),
    st.builds(ops.EndClosing, names, st.booleans()),
    st.builds(ops.ReadDeadLetters, names, st.integers(0, 2), st.integers(1, 3)),
    st.builds(ops.Redrive, names, some),
    st.builds(ops.Flush, names),
)


class OnServer:
    """A queue on a server, as the twin shows itself."""

    def __init__(self, client: redis.Redis, queue: str) -> None:
        self._client: Any = client
        self.keys = QueueKeys(queue)
        self._transport = transport_for(client)

    def apply(self, operation: ops.Operation) -> Answer:
        """Carry out an operation."""
        (raw,) = self._transport.execute([operation.command(self.keys)])
        return Answer.parse(raw, as_bytes)

    def sorted_set(self, key: str) -> dict[bytes, float]:
        """Return what is in a sorted set."""
        return dict(self._client.zrange(key, 0, -1, withscores=True))

    def contents(self) -> dict[str, Any]:
        """Return everything that is stored."""
        workers = self._client.hgetall(self.keys.workers)
        return {
            "queue": self.sorted_set(self.keys.queue),
            "dead letters": self.sorted_set(self.keys.dead_letters),
            "workers": {name.decode(): value.decode() for name, value in workers.items()},
            "leases": {name: self.sorted_set(self.keys.leases(name)) for name in ("one", "other", "third")},
        }


def contents_of(memory: QueueMemory) -> dict[str, Any]:
    """Return everything that the twin has."""
    return {
        "queue": memory.queue,
        "dead letters": memory.dead_letters,
        "workers": memory.workers,
        "leases": {name: memory.leases.get(name, {}) for name in ("one", "other", "third")},
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(sequence=st.lists(operations, max_size=16))
def test_memory_is_the_twin_of_the_scripts(client: redis.Redis, key: str, sequence: list[ops.Operation]) -> None:
    """Any sequence of operations gives the same answers, and leaves the same."""
    server, memory = OnServer(client, key), QueueMemory()
    client.delete(
        key, server.keys.workers, server.keys.dead_letters, *map(server.keys.leases, ("one", "other", "third"))
    )
    joins = [ops.Join(name, "5", 0, is_new=False) for name in ("one", "other")]
    for operation in (*joins, *sequence):
        assert server.apply(operation) == memory.apply(operation), operation
        assert server.contents() == contents_of(memory), operation


@pytest.mark.parametrize("count", [999, 1000, 1001, 7000])
def test_many_entries(count: int, client: redis.Redis, key: str) -> None:
    """A script is called with more than Lua can unpack, and moves them all."""
    server, memory = OnServer(client, key), QueueMemory()
    many = tuple(QueueEntry(number % 7, f"{number}".encode()) for number in range(count))
    members = tuple(entry.member for entry in many)
    steps = [
        ops.Join("one", "5", 0, is_new=True),
        ops.Exchange("one", 1, 0, leases=many),
        ops.Exchange("one", 2, 0, pushes=many, released=count),
        ops.Exchange("one", 3, count),
        ops.Exchange("one", 4, 0, asides=many, acks=members),
        ops.Redrive("one", members),
        ops.Exchange("one", 5, count),
        ops.Join("one", "5", 5, is_new=True),
        ops.Exchange("one", 6, count),
        ops.Join("other", "5", 0, is_new=True),
        ops.Requeue("other", "one", "5 6 0", "5", 0),
    ]
    for step in steps:
        assert server.apply(step) == memory.apply(step)
    assert server.contents() == contents_of(memory)
    assert len(memory.queue) == count
