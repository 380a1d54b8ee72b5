"""Replay the scripts of a `ScriptServer` on a real server, by the clock of the recording.

A head of each script replaces the server's clock: TIME is the recorded time, and expiries are stored so far ahead that
no key expires by itself. The replay deletes keys at the recorded times instead. Each key gets a prefix: scripts may use
their KEYS, and keys that begin with one of these.

Replies are compared with the order of their parts. A server keeps it in small hashes of short values, and not in sets.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from tests.support.script_server import Evaluation, ScriptServer

COMMAND = "return redis.call(unpack(ARGV))"
# Scripts sent to a server at once.
_BATCH = 500
# Milliseconds, 317 years.
_AHEAD = 10**13
_HEAD = " ".join(
    f"""
local redis, server = setmetatable({{}}, {{__index = redis}}), redis
do
  local seconds, microseconds = table.remove(ARGV), table.remove(ARGV)
  local now = seconds * 1000 + math.floor(microseconds / 1000)
  local function expire(call, key, at)
    if at <= now then return call('DEL', key) end
    return call('PEXPIREAT', key, at + {_AHEAD})
  end
  local function execute(call, name, ...)
    local key, value = ...
    if name == 'TIME' then return {{seconds, microseconds}} end
    if name == 'PEXPIRE' then return expire(call, key, now + value) end
    if name == 'PEXPIREAT' then return expire(call, key, tonumber(value)) end
    return call(name, ...)
  end
  function redis.call(...) return execute(server.call, ...) end
end
""".split()
)
_READS = {b"string": ("GET",), b"hash": ("HGETALL",), b"zset": ("ZRANGE", "0", "-1", "WITHSCORES")}
_WRITES = {b"string": "SET", b"hash": "HSET", b"zset": "ZADD"}


def replay(client: Any, recorded: Iterable[Evaluation], prefix: bytes) -> Iterator[str]:
    """Execute scripts on a server, and yield how its replies, expiries and final data differ.

    The scripts are all of a `ScriptServer` since it was empty. Keys with the prefix are deleted at the end.
    """
    twin = ScriptServer()
    rest = iter(recorded)
    try:
        while batch := list(islice(rest, _BATCH)):
            yield from _differences(client, batch, twin, prefix)
        found = _contents(client, twin.time, prefix)
        for difference in sorted(map(repr, twin.freeze() - found.freeze())):
            yield f"only in memory: {difference}"
        for difference in sorted(map(repr, found.freeze() - twin.freeze())):
            yield f"only on the server: {difference}"
    finally:
        for key in _keys(client, prefix):
            client.delete(key)


def _differences(client: Any, batch: Iterable[Evaluation], twin: ScriptServer, prefix: bytes) -> Iterator[str]:
    expected: list[tuple[object, Any]] = []
    with client.pipeline(transaction=False) as pipe:
        for each in batch:
            twin.time = each.time
            for key, at in twin.expire().items():
                pipe.eval("return redis.call('PEXPIRETIME', KEYS[1]), redis.call('DEL', KEYS[1])", 1, prefix + key)
                expected.append((f"expiry of {key!r}", at + _AHEAD))
            seconds, microseconds = divmod(each.time, 1_000_000)
            keys = [prefix + key for key in each.keys]
            pipe.eval(_HEAD + " " + each.text, len(keys), *keys, *each.args, microseconds, seconds)
            expected.append((each, each.reply))
            twin.eval(each.text, each.keys, each.args)
        replies = pipe.execute(raise_on_error=False)
    for (what, reply), found in zip(expected, replies, strict=True):
        if _without(prefix, found) != reply:
            yield f"{found} instead of {reply}: {what}"


def _contents(client: Any, time: int, prefix: bytes) -> ScriptServer:
    """Return a server in memory with a server's data."""
    found = ScriptServer(time)

    def read(name: str, *args: Any) -> Any:
        return client.eval(COMMAND, 0, name, *args)

    for key in _keys(client, prefix):
        kind = read("TYPE", key)
        name, *args = _READS[kind]
        value = _without(prefix, read(name, key, *args))
        parts = value if isinstance(value, list) else [value]
        if kind == b"zset":
            parts = [part for pair in zip(parts[1::2], parts[::2], strict=True) for part in pair]
        own = key.removeprefix(prefix)
        found.call(_WRITES[kind], own, *parts)
        at = read("PEXPIRETIME", key)
        if at >= 0:
            found.call("PEXPIREAT", own, at - _AHEAD)
    return found


def _keys(client: Any, prefix: bytes) -> list[bytes]:
    return list(client.scan_iter(match=prefix + b"*", count=1000))


def _without(prefix: bytes, reply: Any) -> Any:
    """Return a reply without the prefix of keys in it."""
    if isinstance(reply, list):
        return [_without(prefix, each) for each in reply]
    return reply.replace(prefix, b"") if isinstance(reply, bytes) else reply
