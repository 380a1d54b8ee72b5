"""Operations on a shard of a filter, each once: on the wire, in a reply, and in memory (see `ops`).

A shard is told from a string of somebody else's by its first 8 bytes and its length: those of a shard say that it is
alive, and it is no shorter than any shard; those that a late write left behind are zeros, but for the bit that seals. A
shard may be longer than it was made: a late write of another filter's worker goes where its own shard was longer.
"""

from typing import Any, NamedTuple

from scrapy_bloom import header
from scrapy_bloom.line import Wire, as_text, pack
from scrapy_bloom.ops import Memory
from scrapy_bloom.sizing import HEADER_BYTES, SHORTEST_SHARD_BYTES

_ALIVE_AND_SEALED = header.live(0) >> header.EPOCH_BITS

# What there is at a key: nothing, a shard (of whatever filter, or what a late write left), or something foreign.
ABSENT, SHARD, FOREIGN = "absent", "shard", "foreign"
# What became of making a shard: it was made, is there already, is not ours to replace, or does not fit.
MADE, PRESENT, FULL = "made", "present", "full"

# What is at a key, for the scripts below, and what its header says. They read by GETRANGE: a server that is full
# refuses a BITFIELD, though it only reads.
_KIND = """
local function number(first, last)
  local bytes, n = redis.call('GETRANGE', KEYS[1], first, last), 0
  for i = 1, last - first + 1 do n = n * 256 + (string.byte(bytes, i) or 0) end
  return n
end
local function kind()
  local t = redis.call('TYPE', KEYS[1])['ok']
  if t == 'none' then return 'absent' end
  if t ~= 'string' then return 'foreign' end
  local h = redis.call('GETRANGE', KEYS[1], 0, 7)
  local first = string.byte(h, 1)
  local is_long = redis.call('STRLEN', KEYS[1]) >= 56
  if (first == 2 or first == 3) and string.sub(h, 7) == string.char(0, 0) and is_long then return 'shard' end
  if (first == 0 or first == 1) and not string.find(string.sub(h, 2), '[^%z]') then return 'shard' end
  return 'foreign'
end
"""
_INSPECT = (
    _KIND
    + """
local found = kind()
local h = 0
local may = redis.pcall('BITFIELD', KEYS[1], 'GET', 'u1', 0)['err'] or ''
if string.find(may, 'ACL failure') or string.find(may, "can't run this command") then
  return redis.error_reply(may)
end
if found == 'shard' then h = number(0, 5) end
return {found, h}
"""
)
# The server is asked for room before a shard is made, since it would go over its limit in one step. A server that does
# not let this user ask refuses by itself when it is full. Writing the far end first makes the allocation exact.
_CREATE = (
    _KIND
    + """
local found = kind()
if found == 'foreign' then return {found, 0, 0} end
if found == 'shard' and number(0, 0) > 1 and number(1, 5) == tonumber(ARGV[2]) then return {'present', 0, 0} end
local memory = redis.pcall('INFO', 'memory')
if type(memory) == 'string' then
  local limit = tonumber(string.match(memory, 'maxmemory:(%d+)') or 0)
  local used = tonumber(string.match(memory, 'used_memory:(%d+)') or 0)
  local evicts = string.match(memory, 'maxmemory_policy:allkeys')
  if limit > 0 and not evicts and used + ARGV[1] > limit then return {'full', used, limit} end
end
if found == 'shard' then redis.call('UNLINK', KEYS[1]) end
local done = redis.pcall(
  'BITFIELD', KEYS[1], 'SET', 'u8', ARGV[1] * 8 - 8, 0, 'SET', 'u8', 0, ARGV[3], 'SET', 'u40', 8, ARGV[2])
if done['err'] then
  if string.find(done['err'], 'OOM') then return {'full', 0, 0} end
  return done
end
return {'made', 0, 0}
"""
)
_DISCARD = (
    _KIND
    + """
if kind() ~= 'shard' then return 0 end
if ARGV[1] ~= '' and number(1, 5) ~= tonumber(ARGV[1]) then return 0 end
return redis.call('UNLINK', KEYS[1])
"""
)

# The start of a part of a BITFIELD, by the number of digits of its offset.
_GET, _SET = (
    tuple(f"\r\n$3\r\n{verb}\r\n$2\r\nu1\r\n${digits}\r\n" for digits in range(len(str(2**32)) + 1))
    for verb in ("GET", "SET")
)


class Inspection(NamedTuple):
    """What there is at a shard's key, and the `identity` of its header, or 0."""

    kind: str
    identity: int


class Inspect(NamedTuple):
    """Look what there is at a shard's key, whatever it is, as one who may use bits. Says an `Inspection`."""

    key: str

    def wire(self) -> Wire:
        return pack("EVAL", _INSPECT, 1, self.key)

    def reply(self, raw: Any) -> Inspection:
        return Inspection(as_text(raw[0]), int(raw[1]))

    def apply(self, memory: Memory) -> Inspection:
        kind = _kind(memory, self.key)
        return Inspection(kind, header.identity(_header(memory, self.key)) if kind == SHARD else 0)


class Creation(NamedTuple):
    """What became of making a shard; for one that does not fit, the bytes that the server uses and its limit."""

    outcome: str
    used: int
    limit: int


class Create(NamedTuple):
    """Make a shard of `size` bytes, all bits 0, unless it is alive and of this epoch. Says a `Creation`."""

    key: str
    size: int
    epoch: int
    sealed: bool

    def wire(self) -> Wire:
        flags = _ALIVE_AND_SEALED | self.sealed
        return pack("EVAL", _CREATE, 1, self.key, self.size, self.epoch, flags)

    def reply(self, raw: Any) -> Creation:
        return Creation(as_text(raw[0]), int(raw[1]), int(raw[2]))

    def apply(self, memory: Memory) -> Creation:
        if _kind(memory, self.key) == FOREIGN:
            return Creation(FOREIGN, 0, 0)
        found = header.identity(_header(memory, self.key))
        if found in (header.live(self.epoch), header.sealed(self.epoch)):
            return Creation(PRESENT, 0, 0)
        identity = (header.sealed if self.sealed else header.live)(self.epoch)
        start = (identity << header.RESERVED_BITS).to_bytes(HEADER_BYTES, "big")
        memory.strings[self.key] = bytearray(start.ljust(self.size, b"\0"))
        return Creation(MADE, 0, 0)


class Discard(NamedTuple):
    """Delete a shard without blocking the server, or what a late write left; nothing foreign. Says whether it did.

    With an `epoch`, only if it is of that one; what a late write left is of epoch 0.
    """

    key: str
    epoch: int | None = None

    def wire(self) -> Wire:
        return pack("EVAL", _DISCARD, 1, self.key, "" if self.epoch is None else self.epoch)

    def reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        if _kind(memory, self.key) != SHARD:
            return False
        epoch = header.identity(_header(memory, self.key)) & ((1 << header.EPOCH_BITS) - 1)
        if self.epoch not in (None, epoch):
            return False
        del memory.strings[self.key]
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


def _kind(memory: Memory, key: str) -> str:
    if key in memory.strings:
        start, length = bytes(memory.strings[key][:HEADER_BYTES]), len(memory.strings[key])
        is_late = start[:1] in (b"\0", b"\1") and not any(start[1:])
        is_shard = start[:1] in (b"\2", b"\3") and start[6:] == bytes(2)
        return SHARD if is_late or (is_shard and length >= SHORTEST_SHARD_BYTES) else FOREIGN
    return FOREIGN if key in memory.hashes else ABSENT


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
