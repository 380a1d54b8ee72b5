"""Read and write many bytes of a shard at once, for exports and restores."""

from typing import Any, NamedTuple

from scrapy_bloom.storage import shard_header
from scrapy_bloom.storage.bits import header_of
from scrapy_bloom.storage.operation import Memory
from scrapy_bloom.transport.commands import BinaryCommand, Command
from scrapy_bloom.transport.scripts import load_script

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
