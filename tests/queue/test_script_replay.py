"""The server in memory executes the queue's scripts as Redis and Valkey do."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import redis

from scrapy_bloom._format import as_bytes
from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.operations import Ending, Registration, Reply, Status
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.scripts import load_script
from tests.support.script_commands import COMMANDS, Command
from tests.support.script_replay import replay
from tests.support.script_server import ScriptServer

QUEUE = QueueKeys("queue")


def apply(server: ScriptServer, operation: ops.QueueOperation) -> Reply:
    """Execute an operation, with the registered value of a dead worker, and a number near the registered one."""
    if isinstance(operation, ops.Requeue):
        value = server.call("HGET", QUEUE.workers, operation.dead)
        operation = replace(operation, value=(value or b"").decode())
    elif isinstance(operation, ops.Sync | ops.ResolveInDoubt | ops.Leave):
        value = server.call("HGET", QUEUE.workers, operation.worker)
        registered = Registration.parse(value.decode()).number if value else 0
        operation = replace(operation, number=max(0, registered + operation.number - 1))
    _, text, number, *rest = operation.command(QUEUE).arguments
    count = int(number)
    return Reply.parse(server.eval(str(text), rest[:count], rest[count:]), as_bytes)


SPIDERS = ["", "", "spider", "other"]
WORKERS = ["one", "other", "third"]
Draw = Callable[[Random, str], ops.QueueOperation]
# Operations, with their frequencies.
DRAWS: dict[Draw, int] = {
    lambda draw, worker: ops.Join(worker, "5", draw.randrange(5), draw.random() < 0.5, draw.choice(SPIDERS)): 3,
    lambda draw, worker: ops.Sync(worker, draw.randrange(4), draw.randrange(4), **lists(draw)): 12,
    lambda draw, worker: ops.ResolveInDoubt(worker, draw.randrange(4), draw.choice([None, (), ops.digests([b"a"])])): 4,
    lambda _, worker: ops.Heartbeat(worker): 3,
    lambda draw, worker: ops.Requeue(worker, draw.choice(WORKERS), "", "5", 1, draw.randrange(4)): 3,
    lambda draw, worker: ops.Leave(worker, draw.randrange(3), draw.choice([*Ending])): 4,
    lambda draw, worker: ops.EndClosing(worker, draw.random() < 0.5, draw.random() < 0.5, draw.choice(SPIDERS)): 3,
    lambda draw, worker: ops.ReadDeadLetters(worker, draw.randrange(2), draw.randrange(1, 4)): 1,
    lambda draw, worker: ops.Redrive(worker, members(draw)): 1,
    lambda draw, worker: ops.Flush(worker, draw.choice(["", "zset", "list"]), (), draw.choice(["", "5"])): 1,
}


def members(draw: Random) -> tuple[bytes, ...]:
    """Up to three members."""
    return tuple(draw.choices([b"a", b"b", b"c", b"\xff\x00"], k=draw.randrange(4)))


def lists(draw: Random) -> dict[str, Any]:
    """The requests of a sync, mostly few."""
    names = ("leases", "pushes", "dead_letters")
    found: dict[str, Any] = {
        name: tuple(QueueEntry(draw.choice([-1.0, 0.0, 2.5]), member) for member in members(draw))
        for name in names
        if draw.random() < 0.5
    }
    return {
        **found,
        "released": draw.randrange(len(found.get("pushes", ())) + 1),
        "acks": members(draw),
        "starts": members(draw),
    }


def test_queue(client: redis.Redis, key: str) -> None:
    """Any operations on a queue have the same replies on a server, and leave the same data."""
    draw, server, seen = Random(1), ScriptServer(is_recording=True), set()
    for kind in draw.choices([*DRAWS], [*DRAWS.values()], k=10_000):
        server.time += draw.choice([0, 10, 1_000, 10_000_000])
        operation = kind(draw, draw.choice(WORKERS))
        seen.add((type(operation), apply(server, operation).status))
    assert seen == {
        (kind, Status(word))
        for kind in ops.QueueOperation.__subclasses__()
        for word in re.findall(r"'(\w+)'", load_script("scrapy_bloom.queue", kind.script))
        if word in set(Status)
    }
    assert [*replay(client, server.recorded, key.encode())] == []
    assert [*client.scan_iter(match=f"{key}*")] == []


# Each with the keys a, b and the argument 2000.
EXPIRIES = [
    "return redis.call('SET', KEYS[1], 'a', 'PX', ARGV[1])",
    "return redis.call('SET', KEYS[2], 'b', 'EX', ARGV[1])",
    "redis.call('HSET', KEYS[1] .. ':c', 'a', KEYS[1]); return redis.call('PEXPIRE', KEYS[1] .. ':c', 2001)",
    "return {redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2]), redis.call('TIME'), redis.call('get', KEYS[1])}",
    "return redis.call('PERSIST', KEYS[2])",
    "local time = redis.call('TIME'); return redis.call('PEXPIREAT', KEYS[2], time[1] * 1000 + 3000)",
    "return {redis.call('PEXPIRE', KEYS[2], 0), redis.call('EXISTS', KEYS[2]), redis.pcall('HGET', KEYS[1], 'a')}",
    "return redis.call('HGETALL', KEYS[1] .. ':c')",
    "redis.call('SET', KEYS[1], 'after an error')\nredis.call('HGET', KEYS[1], 'a')",
]


@pytest.mark.parametrize("step", [0, 1_000_000, 1_000_001, 3_600_000_000])
def test_expiry(client: redis.Redis, key: str, step: int) -> None:
    """Keys expire by the clock of the recording, however long the replay takes."""
    server = ScriptServer(is_recording=True)
    for text in [*EXPIRIES, *EXPIRIES]:
        with suppress(redis.ResponseError):
            server.eval(text, ["a", "b"], [2000])
        server.time += step
    assert [*replay(client, server.recorded, key.encode())] == []


# Commands without an effect, with their replies.
WRONG = {b"ZREM": (1, "only in memory"), b"HDEL": (0, "instead of"), b"PEXPIRE": (1, "only on the server")}


@pytest.mark.parametrize("name", WRONG)
def test_differences(client: redis.Redis, key: str, name: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong command of the server in memory is found, by a reply or by the data."""
    reply, difference = WRONG[name]
    monkeypatch.setitem(COMMANDS, name, Command(lambda *_: reply, 0, 100))
    server = ScriptServer(is_recording=True)
    apply(server, ops.Join("one", "5", 0, is_new=True))
    entries = tuple(QueueEntry(0.0, member) for member in (b"a", b"b"))
    apply(server, ops.Sync("one", 2, 0, pushes=entries))
    apply(server, ops.Sync("one", 2, 1))
    apply(server, ops.Sync("one", 2, 0, acks=(b"a",)))
    server.eval("redis.call('SET', KEYS[1], 'a'); return redis.call('PEXPIRE', KEYS[1], 1000)", ["a"])
    server.eval("redis.call('HSET', KEYS[1], 'a', 'b'); return redis.call('HDEL', KEYS[1], 'a')", ["b"])
    found = [*replay(client, server.recorded, key.encode())]
    assert any(difference in each for each in found), found
