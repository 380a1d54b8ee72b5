"""Redis's data and commands in memory, as far as scripts use them.

A method `do_x` of `Commands` is the command X with the options that scripts use. Other arguments raise an error.
Arguments are bytes. A reply is an integer, bytes, a list of these, or a `Status`; False is nil.

A server promises no order of HGETALL and HKEYS. Here it is the order of insertion, as in small hashes of a server.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from typing import Any, Self, TypeVar


class CommandError(Exception):
    """A command's error: its code and text, as a server sends it."""


class Status(bytes):
    """A status reply, such as OK."""


class Hash(dict[bytes, bytes]):
    """A hash: values by field."""


class SortedSet:
    """A sorted set: scores by member, and pairs of score and member in their order."""

    def __init__(self, other: "SortedSet | None" = None) -> None:
        self.scores: dict[bytes, float] = dict(other.scores) if other else {}
        self.order: list[tuple[float, bytes]] = list(other.order) if other else []

    def __len__(self) -> int:
        return len(self.order)

    def add(self, member: bytes, score: float) -> int:
        """Set a score; return 1 if the member is new."""
        before = self.scores.get(member)
        if before is not None:
            del self.order[bisect_left(self.order, (before, member))]
        self.scores[member] = score
        insort(self.order, (score, member))
        return int(before is None)

    def remove(self, member: bytes) -> int:
        """Remove a member; return 1 if it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return 0
        del self.order[bisect_left(self.order, (score, member))]
        return 1


Value = bytearray | Hash | SortedSet
V = TypeVar("V", bytearray, Hash, SortedSet)
_NAMES = {bytearray: b"string", Hash: b"hash", SortedSet: b"zset"}
_EMPTY: dict[type, Any] = {kind: kind() for kind in _NAMES}


class Commands:
    """The data of a server, and its commands.

    Attributes:
        time: Unix time in microseconds, which only the owner changes.
    """

    def __init__(self, time: int) -> None:
        self.time = time
        self._values: dict[bytes, Value] = {}
        # Unix times in milliseconds.
        self._expiries: dict[bytes, int] = {}
        # The keys whose values no copy of these data shares.
        self._owned: set[bytes] = set()

    def copy(self) -> Self:
        """Return a copy. Both share each value until one of them writes it."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _values=self._values.copy(), _expiries=self._expiries.copy(), _owned=set())
        self._owned = set()
        return other

    def freeze(self) -> frozenset[Any]:
        """Return a hashable value of all data, which is equal if the data are equal."""
        self.expire()
        at = self._expiries.get
        return frozenset((key, _frozen(value), at(key)) for key, value in self._values.items())

    def expire(self) -> dict[bytes, int]:
        """Delete the keys whose time has come, as before each command or script; return them and their times."""
        expired = {key: at for key, at in self._expiries.items() if self._now > at} if self._expiries else {}
        for key in expired:
            self._delete(key)
        return expired

    @property
    def _now(self) -> int:
        return self.time // 1000

    def _read(self, key: bytes, kind: type[V]) -> V:
        """Return a value that is not to be changed."""
        value = self._values.get(key)
        if value is None:
            found: V = _EMPTY[kind]
            return found
        if type(value) is not kind:
            raise CommandError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def _write(self, key: bytes, kind: type[V]) -> V:
        """Return a value to be changed."""
        value = self._read(key, kind)
        if key in self._owned:
            return value
        self._owned.add(key)
        self._values[key] = own = kind(value)
        return own

    def _delete(self, key: bytes) -> int:
        self._expiries.pop(key, None)
        self._owned.discard(key)
        return int(self._values.pop(key, None) is not None)

    def _delete_if_empty(self, key: bytes) -> None:
        if not self._values[key]:
            self._delete(key)

    # Keys.

    def do_type(self, key: bytes) -> Status:
        value = self._values.get(key)
        return Status(b"none" if value is None else _NAMES[type(value)])

    def do_exists(self, key: bytes, *keys: bytes) -> int:
        return sum(each in self._values for each in (key, *keys))

    def do_del(self, key: bytes, *keys: bytes) -> int:
        return sum(map(self._delete, (key, *keys)))

    do_unlink = do_del

    def do_pexpire(self, key: bytes, milliseconds: bytes) -> int:
        return self._expire_at(key, self._now + int(milliseconds))

    def do_pexpireat(self, key: bytes, at: bytes) -> int:
        return self._expire_at(key, int(at))

    def _expire_at(self, key: bytes, at: int) -> int:
        if key not in self._values:
            return 0
        if at <= self._now:
            return self._delete(key)
        self._expiries[key] = at
        return 1

    def do_persist(self, key: bytes) -> int:
        return int(self._expiries.pop(key, None) is not None)

    def do_pttl(self, key: bytes) -> int:
        if key not in self._values:
            return -2
        at = self._expiries.get(key)
        return -1 if at is None else at - self._now

    def do_time(self) -> list[bytes]:
        return [b"%d" % part for part in divmod(self.time, 1_000_000)]

    # Strings.

    def do_get(self, key: bytes) -> bytes | bool:
        value = self._read(key, bytearray)
        return bytes(value) if key in self._values else False

    def do_set(self, key: bytes, value: bytes) -> Status:
        self._delete(key)
        self._values[key] = bytearray(value)
        self._owned.add(key)
        return Status(b"OK")

    def do_getrange(self, key: bytes, first: bytes, last: bytes) -> bytes:
        start, end = int(first), int(last)
        value = self._read(key, bytearray)
        if end < start < 0:
            return b""
        # Unlike an index of a list, one before the start is that of the first byte.
        return bytes(_part(value, start, max(end, -len(value))))

    def do_setrange(self, key: bytes, offset: bytes, part: bytes) -> int:
        start = int(offset)
        value = self._write(key, bytearray)
        value.extend(bytes(max(0, start - len(value))))
        value[start : start + len(part)] = part
        return len(value)

    def do_strlen(self, key: bytes) -> int:
        return len(self._read(key, bytearray))

    # Hashes.

    def do_hget(self, key: bytes, field: bytes) -> bytes | bool:
        return self._read(key, Hash).get(field, False)

    def do_hmget(self, key: bytes, field: bytes, *fields: bytes) -> list[bytes | bool]:
        get = self._read(key, Hash).get
        return [get(each, False) for each in (field, *fields)]

    def do_hgetall(self, key: bytes) -> list[bytes]:
        return [part for pair in self._read(key, Hash).items() for part in pair]

    def do_hkeys(self, key: bytes) -> list[bytes]:
        return list(self._read(key, Hash))

    def do_hlen(self, key: bytes) -> int:
        return len(self._read(key, Hash))

    def do_hexists(self, key: bytes, field: bytes) -> int:
        return int(field in self._read(key, Hash))

    def do_hset(self, key: bytes, field: bytes, value: bytes, *more: bytes) -> int:
        fields = self._write(key, Hash)
        before = len(fields)
        fields[field] = value
        if more:
            fields.update(zip(more[::2], more[1::2], strict=True))
        return len(fields) - before

    def do_hdel(self, key: bytes, field: bytes, *fields: bytes) -> int:
        if not self._read(key, Hash):
            return 0
        mine = self._write(key, Hash)
        removed = sum(mine.pop(each, None) is not None for each in (field, *fields))
        self._delete_if_empty(key)
        return removed

    def do_hincrby(self, key: bytes, field: bytes, increment: bytes) -> int:
        after = int(self._read(key, Hash).get(field, b"0")) + int(increment)
        self._write(key, Hash)[field] = b"%d" % after
        return after

    # Sorted sets.

    def do_zadd(self, key: bytes, score: bytes, member: bytes, *more: bytes) -> int:
        """ZADD without options, or with XX for a member that is not there."""
        if score.upper() == b"XX" and more[0] not in self._read(key, SortedSet).scores:
            return 0
        pairs = (score, member, *more)
        mine = self._write(key, SortedSet)
        return sum(mine.add(each, float(number)) for number, each in zip(pairs[::2], pairs[1::2], strict=True))

    def do_zrem(self, key: bytes, member: bytes, *members: bytes) -> int:
        if not self._read(key, SortedSet):
            return 0
        mine = self._write(key, SortedSet)
        removed = sum(map(mine.remove, (member, *members)))
        self._delete_if_empty(key)
        return removed

    def do_zrangebyscore(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        """ZRANGEBYSCORE without options."""
        order = self._read(key, SortedSet).order
        return [member for score, member in order if float(first) <= score <= float(last)]

    def do_zunionstore(self, key: bytes, count: bytes, *keys: bytes) -> int:
        """ZUNIONSTORE of two keys with AGGREGATE MAX."""
        if (count, *keys[2:]) != (b"2", b"AGGREGATE", b"MAX"):
            raise CommandError("ERR syntax error")
        union = SortedSet(self._read(keys[0], SortedSet))
        for score, member in self._read(keys[1], SortedSet).order:
            union.add(member, max(score, union.scores.get(member, score)))
        self._delete(key)
        if union:
            self._values[key] = union
            self._owned.add(key)
        return len(union)

    def do_zcard(self, key: bytes) -> int:
        return len(self._read(key, SortedSet))

    def do_zscore(self, key: bytes, member: bytes) -> bytes | bool:
        score = self._read(key, SortedSet).scores.get(member)
        return False if score is None else formatted(score)

    def do_zrange(self, key: bytes, first: bytes, last: bytes, option: bytes = b"") -> list[bytes]:
        """ZRANGE by index, with WITHSCORES."""
        found = _part(self._read(key, SortedSet).order, int(first), int(last))
        return [part for score, member in found for part in ([member, formatted(score)] if option else [member])]


def formatted(number: float) -> bytes:
    """Return a number as a script writes it; a script that passes nil or a boolean to a command fails."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise CommandError("ERR Command arguments must be strings or integers")
    return b"%.17g" % number


def _part(sequence: Any, first: int, last: int) -> Any:
    """Return the elements from `first` to `last`; negative numbers count from the end."""
    size = len(sequence)
    first = max(0, first + size) if first < 0 else first
    last = max(-1, last + size) if last < 0 else last
    return sequence[first : last + 1]


def _frozen(value: Value) -> Hashable:
    if isinstance(value, Hash):
        return frozenset(value.items())
    if isinstance(value, bytearray):
        return bytes(value)
    return tuple(value.order)


COMMANDS = {
    name.removeprefix("do_").upper().encode(): method for name, method in vars(Commands).items() if name[:3] == "do_"
}
