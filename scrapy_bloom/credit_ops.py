"""Operations on the counter of a layer, each once: on the wire, in a reply, and in memory (see `ops`).

The counter is a field of the filter's hash, and says how much of the layer's room was given away: a number, or `closed`
and a number, and then nothing is given any more. Raising it and looking at it is one step: two workers that looked
first and raised it then would both be given the last of the room.
"""

from typing import Any, NamedTuple

from scrapy_bloom.line import Wire, pack
from scrapy_bloom.ops import Memory

UNLIMITED = -1
# A worker is given at most this part of what is left beyond what it needs at once.
PART = 64

_CLOSED = "closed "

_GRANT = f"""
local told = redis.call('HGET', KEYS[1], ARGV[1])
if not told then return {{-1, 0}} end
local given = tonumber(told)
if not given then return {{0, tonumber(string.match(told, '%d+') or 0)}} end
local need, block, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local granted = need + block
if limit >= 0 then
  local left = math.max(0, limit - given)
  granted = math.min(left, need + math.min(block, math.floor(left / {PART})))
end
if granted > 0 then redis.call('HINCRBY', KEYS[1], ARGV[1], granted) end
return {{granted, given + granted}}
"""
_CLOSE = f"""
local told = redis.call('HGET', KEYS[1], ARGV[1])
if not told then return -1 end
if tonumber(told) then redis.call('HSET', KEYS[1], ARGV[1], '{_CLOSED}' .. told) end
return tonumber(string.match(told, '%d+') or 0)
"""
_GIVE_BACK = """
local given = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '')
if not given then return 0 end
local number = math.min(given, tonumber(ARGV[2]))
if number > 0 then redis.call('HINCRBY', KEYS[1], ARGV[1], -number) end
return 1
"""


_CHARGE = f"""
local told = redis.call('HGET', KEYS[1], ARGV[1])
if not told then return 0 end
local given = tonumber(string.match(told, '%d+') or 0) + tonumber(ARGV[2])
local closed = tonumber(told) and '' or '{_CLOSED}'
redis.call('HSET', KEYS[1], ARGV[1], closed .. string.format('%.0f', given))
return 1
"""


def given_of(text: str) -> int:
    """How much room was given away, by what a counter says; raises ValueError where it says no number."""
    return int(text.removeprefix(_CLOSED))


def is_closed(text: str) -> bool:
    """Whether a counter gives no more."""
    return text.startswith(_CLOSED)


def closed(given: int) -> str:
    """What a counter says that gives no more."""
    return f"{_CLOSED}{given}"


class Granted(NamedTuple):
    """The room that a worker was given, and all that was given away by then."""

    number: int
    given: int


class Grant(NamedTuple):
    """Ask for room for `need` items and, if there is much left, `block` more; the layer has `limit` in all.

    Says what was `Granted`, or None where there is no counter.
    """

    key: str
    field: str
    need: int
    block: int
    limit: int

    def wire(self) -> Wire:
        return pack("EVAL", _GRANT, 1, self.key, self.field, self.need, self.block, self.limit)

    def reply(self, raw: Any) -> Granted | None:
        return Granted(int(raw[0]), int(raw[1])) if raw[0] >= 0 else None

    def apply(self, memory: Memory) -> Granted | None:
        fields = memory.hashes.get(self.key, {})
        if self.field not in fields:
            return None
        given = given_of(fields[self.field])
        if is_closed(fields[self.field]):
            return Granted(0, given)
        granted = self.need + self.block
        if self.limit != UNLIMITED:
            left = max(0, self.limit - given)
            granted = min(left, self.need + min(self.block, left // PART))
        fields[self.field] = str(given + granted)
        return Granted(granted, given + granted)


class Close(NamedTuple):
    """Let a layer's counter give no more. Says how much it gave, or None where there is no counter."""

    key: str
    field: str

    def wire(self) -> Wire:
        return pack("EVAL", _CLOSE, 1, self.key, self.field)

    def reply(self, raw: Any) -> int | None:
        return int(raw) if raw >= 0 else None

    def apply(self, memory: Memory) -> int | None:
        fields = memory.hashes.get(self.key, {})
        if self.field not in fields:
            return None
        given = given_of(fields[self.field])
        fields[self.field] = closed(given)
        return given


class GiveBack(NamedTuple):
    """Return room that was not used, which must never be sent twice. Says whether the counter took it."""

    key: str
    field: str
    number: int

    def wire(self) -> Wire:
        return pack("EVAL", _GIVE_BACK, 1, self.key, self.field, self.number)

    def reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        if self.field not in fields or is_closed(fields[self.field]):
            return False
        fields[self.field] = str(max(0, given_of(fields[self.field]) - self.number))
        return True


class Charge(NamedTuple):
    """Count items that were added without credit, whether the layer still gives room or not. Says whether it did."""

    key: str
    field: str
    number: int

    def wire(self) -> Wire:
        return pack("EVAL", _CHARGE, 1, self.key, self.field, self.number)

    def reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        if self.field not in fields:
            return False
        given = given_of(fields[self.field]) + self.number
        fields[self.field] = closed(given) if is_closed(fields[self.field]) else str(given)
        return True
