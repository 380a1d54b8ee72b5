"""Operations on a whole shard: as a command, from a reply, and in memory.

A shard is recognized by its first 8 bytes and its length: the header says that it is alive, and no
shard is shorter than `MIN_SHARD_BYTES`. A late write to an absent shard leaves a header of zeros,
but for the sealing bit. A shard may be longer than it was created: a late write of another filter's
worker may reach past its end.
"""

import math
from typing import Any, NamedTuple, Self

from scrapy_bloom._format import as_text
from scrapy_bloom.storage import shard_header
from scrapy_bloom.storage.bits import header_of, set_bit
from scrapy_bloom.storage.operation import Memory, delete, keep_until
from scrapy_bloom.storage.shard_header import HEADER_BYTES, MIN_SHARD_BYTES, PREPARED_EPOCH
from scrapy_bloom.transport.commands import BinaryCommand, Command
from scrapy_bloom.transport.scripts import load_script

_ALIVE_AND_SEALED = shard_header.live(0) >> shard_header.EPOCH_BITS

# The contents of a key: absent, a shard (of any filter, or the trace of a late write), or foreign
# data.
ABSENT, SHARD, FOREIGN = "absent", "shard", "foreign"
# The outcomes of creating a shard: made, already present, no memory for it, another filter's shard is there. Or the key
# is FOREIGN.
MADE, PRESENT, FULL, OTHER = "made", "present", "full", "other"

_INSPECT_SHARD, _DELETE_SHARD = (load_script(__package__, "shard", name) for name in ("inspect_shard", "delete_shard"))
_CREATE_SHARD, _PREPARE_SHARD = (
    load_script(__package__, "shard", "allocate", name) for name in ("create_shard", "prepare_shard")
)

# A prepared string that no layer takes expires. A layer grows from its capacity to full in this time, if the crawl
# is not very slow.
_PREPARED_SECONDS = 24 * 3600


class Inspection(NamedTuple):
    """The contents of a shard's key, and the `identity` of its header, or 0."""

    kind: str
    identity: int


class InspectShard(NamedTuple):
    """Inspect a shard key. Fails if the user may not run BITFIELD."""

    key: str

    def command(self) -> Command:
        return Command("EVAL", _INSPECT_SHARD, 1, self.key)

    def parse_reply(self, raw: Any) -> Inspection:
        return Inspection(as_text(raw[0]), int(raw[1]))

    def apply(self, memory: Memory) -> Inspection:
        kind = _kind(memory, self.key)
        return Inspection(kind, shard_header.identity(header_of(memory, self.key)) if kind == SHARD else 0)


class Creation(NamedTuple):
    """The outcome of creating a shard; if FULL, the server's used bytes and limit."""

    outcome: str
    used: int
    limit: int

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Parse the reply of a script."""
        return cls(as_text(raw[0]), int(raw[1]), int(raw[2]))


class CreateShard(NamedTuple):
    """Create a shard of `size` zero bytes, unless it is alive and of this epoch.

    A string of this size that was prepared becomes the shard at once. If the shard does not
    `allocate`, nothing else does: the outcome is ABSENT then. The shard expires at `expires`, in
    Unix milliseconds; None: never. It replaces another filter's shard of the epoch `replaces` only;
    None: of any epoch. All of it is one atomic step.
    """

    key: str
    size: int
    epoch: int
    sealed: bool
    expires: int | None = None
    allocate: bool = True
    replaces: int | None = None

    def command(self) -> Command:
        flags = _ALIVE_AND_SEALED | self.sealed
        replaces = "" if self.replaces is None else self.replaces
        options = [int(self.allocate), replaces, *([] if self.expires is None else [self.expires])]
        return Command("EVAL", _CREATE_SHARD, 1, self.key, self.size, self.epoch, flags, *options)

    def parse_reply(self, raw: Any) -> Creation:
        return Creation.parse(raw)

    def apply(self, memory: Memory) -> Creation:
        if _kind(memory, self.key) == FOREIGN:
            return Creation(FOREIGN, 0, 0)
        identity = shard_header.identity(header_of(memory, self.key))
        if shard_header.is_alive(identity):
            epoch = shard_header.epoch(identity)
            if epoch == self.epoch:
                return Creation(PRESENT, 0, 0)
            if epoch != PREPARED_EPOCH and self.replaces not in (None, epoch):
                return Creation(OTHER, 0, 0)
        made = (shard_header.sealed if self.sealed else shard_header.live)(self.epoch)
        start = (made << shard_header.MARK_BITS).to_bytes(HEADER_BYTES, "big")
        if _is_prepared(memory, self.key, self.size):
            memory.strings[self.key][:HEADER_BYTES] = start
            memory.expiries.pop(self.key, None)
        elif not self.allocate:
            return Creation(ABSENT, 0, 0)
        else:
            delete(memory, self.key)
            memory.strings[self.key] = bytearray(start.ljust(self.size, b"\0"))
        keep_until(memory, self.key, self.expires)
        return Creation(MADE, 0, 0)


class PrepareShard(NamedTuple):
    """Allocate the string of a shard ahead of its layer, unless the key is in use.

    `CreateShard` makes it a shard in no time. Until then it belongs to no filter, and expires if no
    layer takes it. The outcome is FULL unless the server has room for `room` bytes.
    """

    key: str
    size: int
    room: int

    def command(self) -> Command:
        milliseconds = 1000 * _PREPARED_SECONDS
        return Command("EVAL", _PREPARE_SHARD, 1, self.key, self.size, _ALIVE_AND_SEALED, milliseconds, self.room)

    def parse_reply(self, raw: Any) -> Creation:
        return Creation.parse(raw)

    def apply(self, memory: Memory) -> Creation:
        kind = _kind(memory, self.key)
        if kind != ABSENT:
            return Creation(PRESENT if kind == SHARD else FOREIGN, 0, 0)
        expires = math.ceil(1000 * (memory.now() + _PREPARED_SECONDS))
        return CreateShard(self.key, self.size, PREPARED_EPOCH, sealed=False, expires=expires).apply(memory)


def _is_prepared(memory: Memory, key: str, size: int) -> bool:
    is_free = shard_header.is_of(shard_header.identity(header_of(memory, key)), PREPARED_EPOCH)
    return is_free and len(memory.strings[key]) == size


class DeleteShard(NamedTuple):
    """Delete a shard or the trace of a late write, without blocking the server.

    Foreign data stay. With an `epoch`, only a shard of that epoch is deleted; a late write has
    epoch 0. With `if_marked`, only a shard whose header has the mark of forgotten items, but not
    that of the set with this `version`. Returns whether something was deleted.
    """

    key: str
    epoch: int | None = None
    if_marked: bool = False
    version: int | None = None

    def command(self) -> Command:
        epoch, version = ("" if number is None else number for number in (self.epoch, self.version))
        return Command("EVAL", _DELETE_SHARD, 1, self.key, epoch, int(self.if_marked), version)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        if _kind(memory, self.key) != SHARD:
            return False
        header = header_of(memory, self.key)
        if self.epoch not in (None, shard_header.epoch(shard_header.identity(header))):
            return False
        return (not self.if_marked or self._is_of_another_set(header & shard_header.MARK)) and delete(memory, self.key)

    def _is_of_another_set(self, mark: int) -> bool:
        return mark > 0 and (self.version is None or shard_header.is_far(self.version, mark))


class SealShard(NamedTuple):
    """Seal a shard: it accepts no more additions. Returns its previous header."""

    key: str

    def command(self) -> Command:
        return Command("BITFIELD", self.key, "GET", "i64", 0, "SET", "u1", shard_header.SEALED_BIT, 1)

    def parse_reply(self, raw: Any) -> int:
        return int(raw[0])

    def apply(self, memory: Memory) -> int:
        before = header_of(memory, self.key)
        set_bit(memory, self.key, shard_header.SEALED_BIT)
        return before


def _kind(memory: Memory, key: str) -> str:
    if key in memory.strings:
        start, length = bytes(memory.strings[key][:HEADER_BYTES]), len(memory.strings[key])
        is_late = start[:1] in (b"\0", b"\1") and not any(start[1:])
        is_shard = start[:1] in (b"\2", b"\3") and (start[6:] == bytes(2) or start[6:7] >= b"\x80")
        return SHARD if is_late or (is_shard and length >= MIN_SHARD_BYTES) else FOREIGN
    return FOREIGN if key in memory.hashes else ABSENT


_WRITE_PIECE = load_script(__package__, "shard", "write_piece")


class ReadPiece(NamedTuple):
    """Read bytes `start` to `end` of a string, both included.

    Returns fewer bytes at the end of the string.
    """

    key: str
    start: int
    end: int

    def command(self) -> Command:
        return BinaryCommand("GETRANGE", self.key, self.start, self.end)

    def parse_reply(self, raw: Any) -> bytes:
        return bytes(raw)

    def apply(self, memory: Memory) -> bytes:
        return bytes(memory.strings.get(self.key, b"")[self.start : self.end + 1])


class WritePiece(NamedTuple):
    """Write bytes of a shard from `start` on.

    Returns False, and writes nothing, unless the shard is alive and of this epoch.
    """

    key: str
    epoch: int
    start: int
    data: bytes

    def command(self) -> Command:
        return Command("EVAL", _WRITE_PIECE, 1, self.key, self.epoch, self.start, self.data)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        if not shard_header.is_of(shard_header.identity(header_of(memory, self.key)), self.epoch):
            return False
        string = memory.strings[self.key]
        end = self.start + len(self.data)
        string.extend(bytes(max(0, end - len(string))))
        string[self.start : end] = self.data
        return True
