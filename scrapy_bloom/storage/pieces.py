"""Operations on many bytes of a shard at once, for filters that are moved or merged."""

from typing import Any, NamedTuple

from scrapy_bloom._lua import load_script
from scrapy_bloom._text import as_text
from scrapy_bloom.storage import layout
from scrapy_bloom.storage.base import Memory
from scrapy_bloom.storage.bits import header_of
from scrapy_bloom.storage.layout import HEADER_BYTES
from scrapy_bloom.transport.commands import BinaryCommand, Command

# The outcomes of merging a shard: done, or one of the two is not what it was said to be.
MERGED, NO_TARGET, NO_SOURCE = "merged", "target", "source"

_WRITE_PIECE = load_script(__package__, "shard", "write_piece")
_MERGE_SHARD = load_script(__package__, "merge_shard")


class ReadPiece(NamedTuple):
    """Read bytes `start` to `end` (both included) of a string. Returns those that there are."""

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
    """Write bytes of a shard from `start` on, if it is alive and of this epoch. Returns whether it was."""

    key: str
    epoch: int
    start: int
    data: bytes

    def command(self) -> Command:
        return Command("EVAL", _WRITE_PIECE, 1, self.key, self.epoch, self.start, self.data)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        if not layout.is_of(layout.identity(header_of(memory, self.key)), self.epoch):
            return False
        string = memory.strings[self.key]
        end = self.start + len(self.data)
        string.extend(bytes(max(0, end - len(string))))
        string[self.start : end] = self.data
        return True


class MergeShard(NamedTuple):
    """Set in a shard of `size` bytes all bits that are set in another one, and keep its header.

    Each is told by its epoch. In a cluster both have to be in one slot. Returns an outcome.
    """

    key: str
    epoch: int
    source: str
    source_epoch: int
    size: int

    def command(self) -> Command:
        return Command("EVAL", _MERGE_SHARD, 2, self.key, self.source, self.epoch, self.source_epoch, self.size)

    def parse_reply(self, raw: Any) -> str:
        return as_text(raw)

    def apply(self, memory: Memory) -> str:
        for key, epoch, outcome in ((self.key, self.epoch, NO_TARGET), (self.source, self.source_epoch, NO_SOURCE)):
            is_of = layout.is_of(layout.identity(header_of(memory, key)), epoch)
            if not is_of or len(memory.strings[key]) < self.size:
                return outcome
        target, source = memory.strings[self.key], memory.strings[self.source]
        target.extend(bytes(max(0, len(source) - len(target))))
        for place in range(HEADER_BYTES, len(source)):
            target[place] |= source[place]
        return MERGED
