"""Copies and expiries of the server in memory, on which the search relies; `test_replay` compares it with servers."""

import pytest

from tests.support.script_server import ScriptServer

WRITES = {
    "string": [("SETRANGE", "0", "a"), ("SETRANGE", "1", "b"), ("SETRANGE", "0", "c")],
    "hash": [("HSET", "a", "1"), ("HSET", "b", "2"), ("HDEL", "a")],
    "sorted set": [("ZADD", "1", "a"), ("ZADD", "2", "a"), ("ZREM", "a")],
    "expiry": [("SET", "a"), ("PEXPIRE", "1000"), ("PEXPIRE", "2000")],
}


@pytest.mark.parametrize("writes", WRITES.values(), ids=WRITES)
def test_copies(writes: list[tuple[str, ...]]) -> None:
    """A copy and its original are independent; only equal data are frozen equal."""

    def write(server: ScriptServer, *numbers: int) -> ScriptServer:
        for number in numbers:
            name, *args = writes[number]
            server.call(name, "key", *args)
        return server

    frozen = [write(ScriptServer(), *numbers).freeze() for numbers in ((), (0,), (0, 1), (0, 2))]
    # The first value may be that of an empty server again.
    assert len({*frozen}) >= 3
    server = write(ScriptServer(), 0)
    copy = server.copy()
    write(copy, 1)
    assert [server.freeze(), copy.freeze()] == frozen[1:3]
    write(server, 2)
    assert [server.freeze(), copy.freeze()] == [frozen[3], frozen[2]]
    other = copy.copy()
    write(copy, 2)
    assert other.freeze() == frozen[2]


def test_expiry() -> None:
    """A key expires by the clock of the test, and never within a script."""
    server = ScriptServer(time=1_700_000_000_000_999)
    server.call("SET", "a", "b")
    server.call("PEXPIRE", "a", 10)
    server.time += 10_000
    assert server.call("PTTL", "a") == 0
    assert server.eval("return redis.call('TIME')") == [b"1700000000", b"10999"]
    assert server.freeze() != ScriptServer().freeze()
    server.time += 1
    assert server.eval("return redis.call('EXISTS', KEYS[1])", ["a"]) == 0
    assert server.freeze() == ScriptServer().freeze()
