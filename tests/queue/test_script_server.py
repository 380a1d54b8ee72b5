"""The server in memory executes scripts as Redis and Valkey do; `test_replay` compares the commands that ours use."""

from typing import Any

import pytest
import redis

from tests.support.script_replay import COMMAND, comparable
from tests.support.script_server import ScriptServer
from tests.support.servers import Server

KEYS = [b"{key}:%d" % number for number in range(6)]


class Pair:
    """A server and its twin in memory, which execute the same scripts on keys with the same prefix."""

    def __init__(self, client: Any, key: str) -> None:
        self._client, self.keys = client, [f"{key}:{number}".encode() for number in range(6)]
        self.memory = ScriptServer()

    def both(self, text: str, *args: bytes) -> tuple[Any, Any]:
        """Return the replies of the server and its twin."""
        keys = self.keys
        theirs = self._reply(self._client.eval, text, len(keys), *keys, *args)
        return theirs, self._reply(self.memory.eval, text, keys, args)

    @staticmethod
    def _reply(execute: Any, *args: Any) -> Any:
        try:
            return comparable(execute(*args))
        except redis.ResponseError as error:
            return comparable(error)


# Scripts in this order, each with KEYS and the arguments a, b.
SCRIPTS = [
    # Replies.
    "return {1.9, -1.9, 0, true, false, 'a', {}, {{'b'}, 2}}",
    "return {1, 2, nil, 4}",
    "return {[2] = 5, x = 1}",
    "return {KEYS, ARGV, #KEYS, #ARGV}",
    "return nil",
    "return false",
    "return {false}",
    "return {ok = 'fine'}",
    "return function() end",
    # Arguments of commands, and replies of commands in Lua.
    "return redis.call('SET', KEYS[1], 12) and redis.call('GET', KEYS[1])",
    "return redis.call('SET', KEYS[1], -0.5) and redis.call('GET', KEYS[1])",
    "return redis.call('SET', KEYS[1], 2^52 + 1) and redis.call('GET', KEYS[1])",
    "return redis.call('SET', KEYS[1], 1/0) and redis.call('GET', KEYS[1])",
    "return {redis.call('SET', KEYS[1], '').ok, redis.call('TYPE', KEYS[1])['ok'], redis.call('TYPE', KEYS[2])}",
    "return {redis.call('HGET', KEYS[2], 'a') == false, redis.call('HMGET', KEYS[2], 'a', 'b')}",
    "return {type(redis.call('TIME')[1]), type(redis.call('TIME')[2]), redis.call('TIME')[3]}",
    "return #redis.call('HGETALL', KEYS[2])",
    "return {tostring(redis.call('ZADD', KEYS[3], 0.25, 'a')), redis.call('ZSCORE', KEYS[3], 'a')}",
    # Arguments that sequences of commands seldom have.
    *(
        f"redis.call('DEL', KEYS[6]); {make}; local found = {{}}; for first = -5, 5 do for last = -5, 5 do "
        f"found[#found + 1] = redis.call('{read}', KEYS[6], first, last) end end; return found"
        for make, read in (
            ("redis.call('SET', KEYS[6], 'abc')", "GETRANGE"),
            ("redis.call('ZADD', KEYS[6], 1, 'b', 1, 'a', 0, 'c')", "ZRANGE"),
        )
    ),
    "redis.call('DEL', KEYS[6]); return redis.call('SETRANGE', KEYS[6], 2^29, 'a')",
    "return redis.call('SETRANGE', KEYS[1], 2^29, 'a')",
    # Errors.
    "return redis.call('HGET', KEYS[1], 'a')",
    "redis.call('SET', KEYS[4], 'before the error'); redis.call('HGET', KEYS[4], 'a')",
    "return redis.call('GET', KEYS[4])",
    "return redis.call('GET')",
    "return redis.call('GET', KEYS[1], 'more')",
    "return redis.call('SET', KEYS[1], true)",
    "return redis.call('SET', KEYS[1], {})",
    "redis.call('HSET', KEYS[5], 'a', '9223372036854775807'); return redis.call('HINCRBY', KEYS[5], 'a', 1)",
    "redis.call('HSET', KEYS[5], 'a', 'x'); return redis.call('HINCRBY', KEYS[5], 'a', 1)",
    "error('text')",
    "error({err = 'MY error'})",
    "local a\nreturn a.b",
    "return absent",
    "new = 1",
    "KEYS = 1",
    "redis = 1",
    "not Lua",
    # Libraries.
    "return {string.format('%.0f %s', 2^40, 'a'), tostring(2^60), tostring(0.1), table.concat(ARGV), math.floor(-0.5)}",
]


def test_scripts(client: redis.Redis, key: str) -> None:
    """Values are converted and errors raised as on a server."""
    pair = Pair(client, key)
    for text in SCRIPTS:
        theirs, ours = pair.both(text, b"a", b"b")
        assert ours == theirs, text


# Commands, with the numbers of their keys: replies, and keys that end with their last element.
COMMANDS = """
HSET 1 a 1 b 2; HSET 1 a 1 c; HINCRBY 1 a 5; HINCRBY 1 new -2; HLEN 1; HEXISTS 1 b; HEXISTS 1 x; HMGET 1 b x; HKEYS 1
HGETALL 1; HDEL 1 a x; HDEL 1 b new c; EXISTS 1 1; TYPE 1; HDEL 1 a; HSET 1 a 1 b; HINCRBY 1 a x
ZADD 2 1 a 2 b; ZADD 2 3 a -inf c; ZADD 2 XX 5 x; ZADD 2 nan d; ZCARD 2; ZSCORE 2 a; ZSCORE 2 x
ZRANGE 2 0 -1 WITHSCORES; ZRANGE 2 -2 5; ZRANGE 2 5 1; ZRANGE 2 a 1; ZREM 2 a x; ZREM 2 b c; EXISTS 2; HGET 2 a
SETRANGE 3 2 ab; GET 3; SETRANGE 3 -1 a; SETRANGE 3 0 c; STRLEN 3; GETRANGE 3 -2 -1; GETRANGE 3 -1 -9; SET 3 x
PTTL 3; PEXPIRE 3 100000; PERSIST 3; PEXPIREAT 3 1; EXISTS 3; PTTL 3; SET 3 x; HSET 3 a 1; UNLINK 3 2; DEL 3; TYPE 3
"""


def test_commands(client: redis.Redis, key: str) -> None:
    """Each command has the same reply, in an order of all that the scripts use."""
    pair = Pair(client, key)
    for parts in (each.split() for each in COMMANDS.replace("\n", ";").split(";")):
        if parts:
            name, number, *rest = (part.encode() for part in parts)
            keys = [pair.keys[int(each)] for each in (number, *(rest if name in {b"EXISTS", b"UNLINK"} else ()))]
            theirs, ours = pair.both(COMMAND, name, *keys, *([] if len(keys) > 1 else rest))
            assert ours == theirs, parts


WRITTEN = """
redis.call('ZADD', KEYS[1], ARGV[1], 'a')
redis.call('SET', KEYS[2], ARGV[1] * 1)
return {redis.call('ZSCORE', KEYS[1], 'a'), redis.call('GET', KEYS[2])}
"""


NUMBERS = "0.1 0.3333333333333333 1e-4 1e-6 1e-7 1.5e-7 123456789.125 9e15 1e18 1.234567890123e19 1e22 1.5e300 5e-324"


@pytest.mark.parametrize("number", [*map(float, NUMBERS.split())])
def test_scores(valkey: Server, key: str, number: float) -> None:
    """Valkey writes numbers in the fewest digits; Redis before version 7.2 writes 17 digits."""
    with valkey.client() as client:
        pair = Pair(client, key)
        for score in (number, -number):
            theirs, ours = pair.both(WRITTEN, repr(score).encode())
            assert ours == theirs


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
