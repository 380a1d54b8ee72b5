"""Each thing that is done to a filter's hash, once: on the wire, in a reply, and in memory; and what an operation is.

An operation touches one key, so that it is one command on one node of a cluster. It knows nothing of filters. Those of
a layer's bits are in `shards`, and those of its counter in `credit_ops`.
"""

from typing import Any, NamedTuple, Protocol

from scrapy_bloom import keys
from scrapy_bloom.line import Wire, as_text, pack

# One look at a key: its type, the server's time, and the fields or else the size. A script, since no single command
# gives the time and the fields together; it runs when a filter is opened, grows or ages.
_LOAD = """
local kind = redis.call('TYPE', KEYS[1])['ok']
local found = {}
if kind == 'hash' then found = redis.call('HGETALL', KEYS[1])
elseif kind == 'set' then found = {redis.call('SCARD', KEYS[1])} end
return {kind, redis.call('TIME'), found}
"""
_RESTORE = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
for i = 2, #ARGV, 2 do redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
"""
_PUT_BESIDE = """
if redis.call('HGET', KEYS[1], 'filter') ~= ARGV[3] then return 0 end
return redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
"""


class Memory(Protocol):
    """What operations work on without a server: hashes and strings by their keys, and a clock."""

    hashes: dict[str, dict[str, str]]
    strings: dict[str, bytearray]

    def now(self) -> float:
        """Unix time in seconds."""


class Op(Protocol):
    """An operation on one key."""

    def wire(self) -> Wire:
        """The command."""

    def reply(self, raw: Any) -> Any:
        """What the server's reply says."""

    def apply(self, memory: Memory) -> Any:
        """Do the same in memory, and say the same."""


class Snapshot(NamedTuple):
    """A look at the filter's key: its type (`none` where there is nothing), size of a set, server time, fields."""

    kind: str
    members: int
    now: float
    fields: dict[str, str]


class Load(NamedTuple):
    """Look at the filter's key. Says a `Snapshot`."""

    key: str

    def wire(self) -> Wire:
        return pack("EVAL", _LOAD, 1, self.key)

    def reply(self, raw: Any) -> Snapshot:
        kind, (seconds, microseconds), found = raw
        kind, now = as_text(kind), int(seconds) + int(microseconds) / 1e6
        if kind == "set":
            return Snapshot(kind, int(found[0]), now, {})
        texts = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in found]
        return Snapshot(kind, 0, now, dict(zip(texts[::2], texts[1::2], strict=True)))

    def apply(self, memory: Memory) -> Snapshot:
        fields = memory.hashes.get(self.key, {})
        return Snapshot("hash" if fields else "none", 0, memory.now(), dict(fields))


class PutNew(NamedTuple):
    """Set a field of the filter's hash unless it is there. Says whether it was not."""

    key: str
    field: str
    value: str

    def wire(self) -> Wire:
        return pack("HSETNX", self.key, self.field, self.value)

    def reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.setdefault(self.key, {})
        is_new = self.field not in fields
        fields.setdefault(self.field, self.value)
        return is_new


class DropField(NamedTuple):
    """Remove a field of the filter's hash."""

    key: str
    field: str

    def wire(self) -> Wire:
        return pack("HDEL", self.key, self.field)

    def reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        return memory.hashes.get(self.key, {}).pop(self.field, None) is not None


class Unlink(NamedTuple):
    """Delete a key without blocking the server."""

    key: str

    def wire(self) -> Wire:
        return pack("UNLINK", self.key)

    def reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields, string = memory.hashes.pop(self.key, None), memory.strings.pop(self.key, None)
        return bool(fields) or string is not None


class PutBeside(NamedTuple):
    """Set a field of a filter's hash unless it is there, or the filter is another one by now. Says whether it did."""

    key: str
    field: str
    value: str
    filter: str

    def wire(self) -> Wire:
        return pack("EVAL", _PUT_BESIDE, 1, self.key, self.field, self.value, self.filter)

    def reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        is_put = fields.get(keys.FILTER_FIELD) == self.filter and self.field not in fields
        if is_put:
            fields[self.field] = self.value
        return is_put


class Restore(NamedTuple):
    """Put the fields of a hash where it lacks `field`, but for those that it has. Says whether it lacked it."""

    key: str
    field: str
    fields: tuple[tuple[str, str], ...]

    def wire(self) -> Wire:
        return pack("EVAL", _RESTORE, 1, self.key, self.field, *(part for field in self.fields for part in field))

    def reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.setdefault(self.key, {})
        if self.field in fields:
            return False
        for name, value in self.fields:
            fields.setdefault(name, value)
        return True
