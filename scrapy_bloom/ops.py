"""Each thing that is done to stored data, once: what it is on the wire, what its reply says, what it does to memory.

An operation touches one key, so that it is one command on one node of a cluster. It knows nothing of filters.
"""

from typing import Any, NamedTuple, Protocol

from scrapy_bloom import header
from scrapy_bloom.line import Wire, as_text, pack
from scrapy_bloom.sizing import HEADER_BYTES

_ALIVE_AND_SEALED = header.live(0) >> header.EPOCH_BITS

# One look at a key: its type, the server's time, and the fields or else the size. A script, since no single command
# gives the time and the fields together; it runs when a filter is opened, grows or ages.
_LOAD = """
local kind = redis.call('TYPE', KEYS[1])['ok']
local found = {}
if kind == 'hash' then found = redis.call('HGETALL', KEYS[1])
elseif kind == 'set' then found = {redis.call('SCARD', KEYS[1])} end
return {kind, redis.call('TIME'), found}
"""
# A shard is left alone when it is alive and of this epoch; anything else at its key is what a cleared filter or a late
# write left. Writing the far end first makes the allocation exact.
_CREATE = """
local found = redis.call('BITFIELD', KEYS[1], 'GET', 'u7', 0, 'GET', 'u40', 8)
if found[1] > 0 and found[2] == tonumber(ARGV[2]) then return 0 end
redis.call('UNLINK', KEYS[1])
redis.call('BITFIELD', KEYS[1], 'SET', 'u8', ARGV[1] * 8 - 8, 0, 'SET', 'u8', 0, ARGV[3], 'SET', 'u40', 8, ARGV[2])
return 1
"""


# The start of a part of a BITFIELD, by the number of digits of its offset.
_GET, _SET = (
    tuple(f"\r\n$3\r\n{verb}\r\n$2\r\nu1\r\n${digits}\r\n" for digits in range(len(str(2**32)) + 1))
    for verb in ("GET", "SET")
)


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
        texts = [as_text(each) for each in found]
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


class Create(NamedTuple):
    """Make a shard of `size` bytes, all bits 0, unless it is alive and of this epoch. Says whether it made one."""

    key: str
    size: int
    epoch: int
    sealed: bool

    def wire(self) -> Wire:
        flags = _ALIVE_AND_SEALED | self.sealed
        return pack("EVAL", _CREATE, 1, self.key, self.size, self.epoch, flags)

    def reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        found = header.identity(_header(memory, self.key))
        if found in (header.live(self.epoch), header.sealed(self.epoch)):
            return False
        identity = (header.sealed if self.sealed else header.live)(self.epoch)
        start = (identity << header.RESERVED_BITS).to_bytes(HEADER_BYTES, "big")
        memory.strings[self.key] = bytearray(start.ljust(self.size, b"\0"))
        return True


class Seal(NamedTuple):
    """Close a shard for additions. Says the header that it had."""

    key: str

    def wire(self) -> Wire:
        return pack("BITFIELD", self.key, "GET", "i64", 0, "SET", "u1", header.SEALED_BIT, 1)

    def reply(self, raw: Any) -> int:
        return int(raw[0])

    def apply(self, memory: Memory) -> int:
        found = _header(memory, self.key)
        _set_bit(memory, self.key, header.SEALED_BIT)
        return found


class Check(NamedTuple):
    """Read bits of a shard or, to `mark` an item, set them. Says the header, and whether all bits were 1 before.

    It is what a new request sends, and has sixty arguments: written out here it takes a third of the time of `pack`.
    """

    key: str
    positions: list[int]
    mark: bool

    def wire(self) -> Wire:
        steps, end, arguments = (_SET, "\r\n$1\r\n1", 4) if self.mark else (_GET, "", 3)
        number, length = 5 + arguments * len(self.positions), len(self.key.encode())
        parts = [f"*{number}\r\n$8\r\nBITFIELD\r\n${length}\r\n{self.key}\r\n$3\r\nGET\r\n$3\r\ni64\r\n$1\r\n0"]
        for position in self.positions:
            offset = str(position + header.BITS)
            parts.append(f"{steps[len(offset)]}{offset}{end}")
        return ("".join(parts) + "\r\n").encode()

    def reply(self, raw: Any) -> tuple[int, bool]:
        return raw[0], 0 not in raw[1:]

    def apply(self, memory: Memory) -> tuple[int, bool]:
        offsets = [position + header.BITS for position in self.positions]
        before = _header(memory, self.key), all(_get_bit(memory, self.key, offset) for offset in offsets)
        if self.mark:
            for offset in offsets:
                _set_bit(memory, self.key, offset)
        return before


class Sample(NamedTuple):
    """Count the ones in bytes `start` to `end` (both included) of a shard."""

    key: str
    start: int
    end: int

    def wire(self) -> Wire:
        return pack("BITCOUNT", self.key, self.start, self.end)

    def reply(self, raw: Any) -> int:
        return int(raw)

    def apply(self, memory: Memory) -> int:
        part = memory.strings.get(self.key, b"")[self.start : self.end + 1]
        return int.from_bytes(part, "big").bit_count()


def _header(memory: Memory, key: str) -> int:
    start = memory.strings.get(key, b"")[:HEADER_BYTES]
    return int.from_bytes(bytes(start).ljust(HEADER_BYTES, b"\0"), "big")


def _get_bit(memory: Memory, key: str, offset: int) -> int:
    string = memory.strings.get(key, b"")
    byte, bit = offset >> 3, 7 - (offset & 7)
    return string[byte] >> bit & 1 if byte < len(string) else 0


def _set_bit(memory: Memory, key: str, offset: int) -> None:
    string = memory.strings.setdefault(key, bytearray())
    byte, bit = offset >> 3, 7 - (offset & 7)
    if byte >= len(string):
        string.extend(bytes(byte + 1 - len(string)))
    string[byte] |= 1 << bit
