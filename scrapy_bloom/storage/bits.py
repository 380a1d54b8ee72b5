"""Operations on the bits of a shard: as a command, from a reply, and in memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from scrapy_bloom.storage import shard_header
from scrapy_bloom.storage.operation import Memory
from scrapy_bloom.storage.shard_header import HEADER_BYTES
from scrapy_bloom.transport.commands import Argument, Command

# A shard's bits follow its header.
_FIRST_BIT = shard_header.BITS

# The first bytes of a BITFIELD subcommand, by the number of digits of its offset.
_GET, _SET = (
    tuple(f"\r\n$3\r\n{verb}\r\n$2\r\nu1\r\n${digits}\r\n" for digits in range(len(str(2**32)) + 1))
    for verb in ("GET", "SET")
)


class _BitfieldCommand(Command):
    """A BITFIELD that reads a shard's header, and reads or sets bits behind it.

    Each new request sends one, with some sixty arguments. Packing it here takes a third of
    hiredis's time. `name` is BITFIELD or its read-only variant.
    """

    __slots__ = ("_key", "_mark", "_name", "_positions")

    def __init__(self, name: str, key: str, positions: Sequence[int], mark: bool) -> None:
        self._name = name
        self._key = key
        self._positions = positions
        self._mark = mark

    @property
    def key(self) -> str:
        """The key of the shard."""
        return self._key

    @property
    def arguments(self) -> Sequence[Argument]:
        """The name of the command and its arguments."""
        if self._mark:
            parts = [part for position in self._positions for part in ("SET", "u1", position + _FIRST_BIT, 1)]
        else:
            parts = [part for position in self._positions for part in ("GET", "u1", position + _FIRST_BIT)]
        return [self._name, self._key, "GET", "i64", 0, *parts]

    def pack(self) -> bytes:
        """Return the command in RESP."""
        starts, end, arguments = (_SET, "\r\n$1\r\n1", 4) if self._mark else (_GET, "", 3)
        number, length = 5 + arguments * len(self._positions), len(self._key.encode())
        name = f"${len(self._name)}\r\n{self._name}"
        parts = [f"*{number}\r\n{name}\r\n${length}\r\n{self._key}\r\n$3\r\nGET\r\n$3\r\ni64\r\n$1\r\n0"]
        for position in self._positions:
            offset = str(position + _FIRST_BIT)
            parts.append(f"{starts[len(offset)]}{offset}{end}")
        return ("".join(parts) + "\r\n").encode()


class CheckBits(NamedTuple):
    """Read bits of a shard or, to `mark` an item, set them.

    Returns the header, and whether all bits were 1 before. Reads of an addition use this operation,
    too: BITFIELD goes to the master, which has the bits of all workers.
    """

    key: str
    positions: list[int]
    mark: bool = False

    def command(self) -> Command:
        return _BitfieldCommand("BITFIELD", self.key, self.positions, self.mark)

    def parse_reply(self, raw: Any) -> tuple[int, bool]:
        return raw[0], 0 not in raw[1:]

    def apply(self, memory: Memory) -> tuple[int, bool]:
        before = _read(memory, self.key, self.positions)
        if self.mark:
            for position in self.positions:
                set_bit(memory, self.key, position + _FIRST_BIT)
        return before


class LookUpBits(NamedTuple):
    """Read bits of a shard without any intent to add.

    Returns the header, and whether all bits are 1. A replica answers it as well, and so does a full
    server.
    """

    key: str
    positions: list[int]

    def command(self) -> Command:
        return _BitfieldCommand("BITFIELD_RO", self.key, self.positions, mark=False)

    def parse_reply(self, raw: Any) -> tuple[int, bool]:
        return raw[0], 0 not in raw[1:]

    def apply(self, memory: Memory) -> tuple[int, bool]:
        return _read(memory, self.key, self.positions)


def _read(memory: Memory, key: str, positions: Sequence[int]) -> tuple[int, bool]:
    are_set = all(get_bit(memory, key, position + _FIRST_BIT) for position in positions)
    return header_of(memory, key), are_set


class CountBits(NamedTuple):
    """Count the ones in bytes `start` to `end` of a shard, both included."""

    key: str
    start: int
    end: int

    def command(self) -> Command:
        return Command("BITCOUNT", self.key, self.start, self.end)

    def parse_reply(self, raw: Any) -> int:
        return int(raw)

    def apply(self, memory: Memory) -> int:
        part = memory.strings.get(self.key, b"")[self.start : self.end + 1]
        return int.from_bytes(part, "big").bit_count()


def header_of(memory: Memory, key: str) -> int:
    """Return the first 64 bits of a shard; 0 if it is absent."""
    start = memory.strings.get(key, b"")[:HEADER_BYTES]
    return int.from_bytes(bytes(start).ljust(HEADER_BYTES, b"\0"), "big")


def get_bit(memory: Memory, key: str, offset: int) -> int:
    """Return a bit of a string; 0 past its end."""
    string = memory.strings.get(key, b"")
    byte, bit = offset >> 3, 7 - (offset & 7)
    return string[byte] >> bit & 1 if byte < len(string) else 0


def set_bit(memory: Memory, key: str, offset: int) -> None:
    """Set a bit of a string, and pad the string with zeros as necessary."""
    string = memory.strings.setdefault(key, bytearray())
    byte, bit = offset >> 3, 7 - (offset & 7)
    if byte >= len(string):
        string.extend(bytes(byte + 1 - len(string)))
    string[byte] |= 1 << bit
