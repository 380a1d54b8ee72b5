"""The server in memory executes commands and scripts as Redis and Valkey do."""

import re
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.script_commands import COMMANDS
from tests.support.script_replay import COMMAND, comparable
from tests.support.script_server import ScriptServer
from tests.support.servers import Server

HOUR = 3_600_000
KEYS = [b"{key}:%d" % number for number in range(6)]
values = st.sampled_from([b"", b"a", b"b", b"c", b"\xff\x00", b"7", b"-1", b"long" * 10])
fields = st.sampled_from([b"", b"a", b"b", b"\xff", b"7"])
scores = st.sampled_from([b"0", b"-0", b"1", b"-1", b"0.5", b".5e1", b"-INF", b"+inf", b"1700000000000000"])
# Each is refused.
no_scores = st.sampled_from([b"", b"x", b"nan", b"1_0", b" 1", b"1 "])
places = st.sampled_from([b"0", b"1", b"2", b"5", b"-1", b"-2", b"-5"])
no_integers = st.sampled_from([b"", b"x", b"1.0", b"01", b"+1", b"-0", b" 1", b"9223372036854775808"])
increments = st.sampled_from([b"1", b"-5", b"9007199254740992", b"-9007199254740992"])
hours = st.sampled_from([b"-1", b"0", b"3600000", b"7200000"])
# Hours, from the time of the test.
moments = st.sampled_from([b"-1h", b"1h", b"5h"])


def rarely(bad: st.SearchStrategy[bytes], good: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A bad argument in one of twelve commands."""
    return st.integers(0, 11).flatmap(lambda number: bad if number == 11 else good)


keys = st.sampled_from(KEYS)
# Most commands find a value of their type.
strings, hashes, sorted_sets = (rarely(keys, st.just(key)) for key in KEYS[:3])
COMPARED: set[bytes] = set()


def command(name: str, *parts: st.SearchStrategy[bytes], more: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """A command with arguments, of which the last may be repeated."""
    COMPARED.add(name.encode())
    rest = st.lists(st.tuples(*more), max_size=2 if more else 0)
    return st.builds(
        lambda args, rest: (name.encode(), *args, *(each for group in rest for each in group)), st.tuples(*parts), rest
    )


def of_integer(good: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Integers, and rarely none."""
    return rarely(no_integers, good)


offsets = st.sampled_from([b"0", b"1", b"9", b"-1", b"536870912"])
pair = (rarely(no_scores, scores), values)
commands = st.one_of(
    *(command(name, keys) for name in ("TYPE", "PERSIST", "PTTL")),
    *(command(name, keys, more=(keys,)) for name in ("EXISTS", "DEL", "UNLINK")),
    command("PEXPIRE", keys, of_integer(hours)),
    command("PEXPIREAT", keys, of_integer(moments)),
    # Strings.
    *(command(name, strings) for name in ("GET", "STRLEN")),
    command("SET", strings, values),
    command("GETRANGE", strings, of_integer(places), of_integer(places)),
    command("SETRANGE", strings, of_integer(offsets), values),
    # Hashes.
    *(command(name, hashes) for name in ("HLEN", "HKEYS", "HGETALL")),
    *(command(name, hashes, fields) for name in ("HGET", "HEXISTS")),
    *(command(name, hashes, fields, more=(fields,)) for name in ("HMGET", "HDEL")),
    command("HSET", hashes, fields, values, more=(fields, values)),
    command("HSET", hashes, fields, values, fields),
    command("HINCRBY", hashes, fields, of_integer(increments)),
    # Sorted sets.
    command("ZCARD", sorted_sets),
    command("ZSCORE", sorted_sets, values),
    command("ZREM", sorted_sets, values, more=(values,)),
    command("ZADD", sorted_sets, *pair, more=pair),
    command("ZADD", sorted_sets, *pair, scores),
    command("ZRANGE", sorted_sets, of_integer(places), of_integer(places)),
    command("ZRANGE", sorted_sets, places, places, st.just(b"WITHSCORES")),
)


class Pair:
    """A server and its twin in memory, which execute the same scripts on keys with the same prefix."""

    def __init__(self, client: Any, key: str) -> None:
        self._client, self._key = client, key.encode()
        seconds, microseconds = client.time()
        self.memory = ScriptServer(seconds * 1_000_000 + microseconds)
        client.delete(*self.keys)

    @property
    def keys(self) -> list[bytes]:
        """The keys."""
        return [self._concrete(key) for key in KEYS]

    def both(self, text: str, *args: bytes) -> tuple[Any, Any]:
        """Return the replies of the server and its twin."""
        keys = self.keys
        return self._reply(self._client.eval, text, len(keys), *keys, *args), self._reply(
            self.memory.eval, text, keys, args
        )

    def execute(self, *parts: bytes) -> tuple[Any, Any]:
        """Return the replies to a command, with this key and time."""
        return self.both(COMMAND, *(self._concrete(part) for part in parts))

    def _concrete(self, part: bytes) -> bytes:
        if re.fullmatch(rb"-?\dh", part):
            return b"%d" % (self.memory.time // 1000 + int(part[:-1]) * HOUR)
        return part.replace(b"{key}", self._key)

    @staticmethod
    def _reply(execute: Any, *args: Any) -> Any:
        try:
            return comparable(execute(*args))
        except redis.ResponseError as error:
            return comparable(error)


READS = {
    b"string": (b"GET",),
    b"hash": (b"HGETALL",),
    b"zset": (b"ZRANGE", b"0", b"-1", b"WITHSCORES"),
}


def normal(name: bytes, reply: Any) -> Any:
    """Return a reply that is the same on all servers at all times."""
    return round(reply / HOUR) if name == b"PTTL" and reply > 0 else reply


def assert_equal(pair: Pair, *parts: bytes) -> Any:
    """A command has the same reply; return it."""
    theirs, ours = (normal(parts[0], reply) for reply in pair.execute(*parts))
    assert ours == theirs, parts
    return ours


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(sequence=st.lists(commands, max_size=30))
def test_commands(client: redis.Redis, key: str, sequence: list[tuple[bytes, ...]]) -> None:
    """Any sequence of commands has the same replies, and leaves the same data."""
    pair = Pair(client, key)
    for parts in sequence:
        assert_equal(pair, *parts)
    for each in KEYS:
        kind = assert_equal(pair, b"TYPE", each)
        assert_equal(pair, b"PTTL", each)
        if kind != b"none":
            name, *rest = READS[kind]
            assert_equal(pair, name, each, *rest)


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


def test_large_values(valkey: Server, key: str) -> None:
    """Arguments and replies may be longer than Lua's stack."""
    many = [b"%d" % number for number in range(20_000)]
    with valkey.client() as client:
        pair = Pair(client, key)
        for text in (
            "return ARGV",
            "for _, each in ipairs(ARGV) do redis.call('ZADD', KEYS[1], 0, each) end",
            "return {#redis.call('ZRANGE', KEYS[1], 0, -1), redis.call('ZRANGE', KEYS[1], 0, -1)}",
        ):
            theirs, ours = pair.both(text, *many)
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


@pytest.mark.parametrize(
    "text",
    [
        "return redis.call('SCAN', 0)",
        "return redis.call('ZADD', 'a', 'NX', 1, 'b')",
        "return redis.call('SET', 'a', 'b', 'NX')",
        "return redis.call('ZRANGE', 'a', 0, 1, 'REV')",
    ],
)
def test_missing_commands_and_options(text: str) -> None:
    """A missing command or option never looks like a script's failure."""
    with pytest.raises(NotImplementedError):
        ScriptServer().eval(text)


def test_every_command_is_compared() -> None:
    """The sequences have every command but TIME, whose reply is the time."""
    assert {*COMPARED, b"TIME"} == COMMANDS.keys()
