"""Operations on the forgotten items of a filter: as a command, from a reply, and in memory.

They are a sorted set. A member is the filter's epoch and the item, and its score the newest layer that held the item.
The sentinel is a member with the version as its score. A set without the sentinel was lost. The set was lost as well if
its version is far from the version in a shard: another worker has begun a new set since.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from scrapy_bloom._format import as_text
from scrapy_bloom.storage import shard_header
from scrapy_bloom.storage.bits import header_of
from scrapy_bloom.storage.operation import Memory, keep_until
from scrapy_bloom.storage.shard_header import EPOCH_BITS, HEADER_BYTES, VERSION_BITS
from scrapy_bloom.transport.commands import BinaryCommand, Command
from scrapy_bloom.transport.scripts import load_script

_FORGET_ITEMS = load_script(__package__, "expiry", "forget_items")
_CLAIM_FORGOTTEN = load_script(__package__, "claim_forgotten")
_MARK_FORGOTTEN = load_script(__package__, "mark_forgotten")
_DELETE_FORGOTTEN = load_script(__package__, "delete_forgotten")
_INSPECT_FORGOTTEN = load_script(__package__, "inspect_forgotten")

LOST = -1
# A server reads so many items in less than a millisecond.
SCAN_BATCH = 1000
# The types of a key without forgotten items, and with some.
NONE, SET = "none", "zset"
# The outcomes of `MarkForgotten`.
MARKED, ANOTHER_SET, ABSENT = 1, 0, -1


def sentinel(epoch: int) -> bytes:
    """Return the member that every set of a filter's forgotten items has."""
    return epoch.to_bytes(EPOCH_BITS // 8, "big")


def member(epoch: int, item: bytes) -> bytes:
    """Return the member that stands for an item."""
    return sentinel(epoch) + b":" + item


def epoch_of(name: bytes) -> int | None:
    """Return the epoch of a member, or None if no filter has stored it."""
    start, end = name[: EPOCH_BITS // 8], name[EPOCH_BITS // 8 :]
    is_member = len(start) == EPOCH_BITS // 8 and end[:1] in {b"", b":"}
    return int.from_bytes(start, "big") if is_member else None


class ForgetItems(NamedTuple):
    """Forget items, given with the newest layer that holds each.

    `begin` is the version of a new set, or None if items were forgotten before. The set then lives
    at least until `expires`, in Unix milliseconds; None: for ever. Returns the version to mark the
    shards with, or LOST.
    """

    key: str
    epoch: int
    items: tuple[tuple[bytes, int], ...]
    begin: int | None
    expires: int | None = None

    def command(self) -> Command:
        begin, expires = ("" if number is None else number for number in (self.begin, self.expires))
        parts = [part for item, layer in self.items for part in (layer, member(self.epoch, item))]
        return Command("EVAL", _FORGET_ITEMS, 1, self.key, sentinel(self.epoch), begin, expires, *parts)

    def parse_reply(self, raw: Any) -> int:
        return int(raw)

    def apply(self, memory: Memory) -> int:
        stored = memory.hashes.get(self.key, {})
        before = stored.get(_as_field(sentinel(self.epoch)))
        if before is None and self.begin is None:
            return LOST
        version = self.begin if before is None else (int(before) + 1) % (1 << VERSION_BITS)
        stored[_as_field(sentinel(self.epoch))] = str(version)
        for item, layer in self.items:
            field = _as_field(member(self.epoch, item))
            stored[field] = str(max(layer, int(stored.get(field, 0))))
        memory.hashes[self.key] = stored
        if before is None and self.expires is None:
            memory.expiries.pop(self.key, None)
        keep_until(memory, self.key, self.expires)
        return version or 0


class Claim(NamedTuple):
    """An item, the oldest layer that holds it, and the mark of its shard there."""

    item: bytes
    layer: int
    mark: int


class ClaimForgotten(NamedTuple):
    """Claim items: each of those forgotten is new to this worker only.

    An item whose entry is older than all layers that hold it was new since.
    Returns for each whether it was forgotten, or None if the set was lost.
    """

    key: str
    epoch: int
    claims: tuple[Claim, ...]

    def command(self) -> Command:
        parts = [part for item, layer, mark in self.claims for part in (layer, mark, member(self.epoch, item))]
        return Command("EVAL", _CLAIM_FORGOTTEN, 1, self.key, sentinel(self.epoch), *parts)

    def parse_reply(self, raw: Any) -> tuple[bool, ...] | None:
        return tuple(bool(claimed) for claimed in raw) or None

    def apply(self, memory: Memory) -> tuple[bool, ...] | None:
        stored = memory.hashes.get(self.key, {})
        version = stored.get(_as_field(sentinel(self.epoch)))
        if version is None or any(shard_header.is_far(int(version), claim.mark) for claim in self.claims):
            return None
        layers = [int(stored.pop(_as_field(member(self.epoch, each.item)), -1)) for each in self.claims]
        return tuple(layer >= claim.layer for layer, claim in zip(layers, self.claims, strict=True))


class LookUpForgotten(NamedTuple):
    """Look items up without claiming them.

    Returns for each the newest layer that held it when it was forgotten, or -1; None if the set was lost. A replica
    answers it as well.
    """

    key: str
    epoch: int
    items: tuple[bytes, ...]

    def command(self) -> Command:
        return Command("ZMSCORE", self.key, sentinel(self.epoch), *(member(self.epoch, item) for item in self.items))

    def parse_reply(self, raw: Any) -> tuple[int, ...] | None:
        version, *layers = raw
        return None if version is None else tuple(-1 if layer is None else int(float(layer)) for layer in layers)

    def apply(self, memory: Memory) -> tuple[int, ...] | None:
        stored = memory.hashes.get(self.key, {})
        if _as_field(sentinel(self.epoch)) not in stored:
            return None
        return tuple(int(stored.get(_as_field(member(self.epoch, item)), -1)) for item in self.items)


class DropForgotten(NamedTuple):
    """Drop forgotten items of a filter that another one has replaced, and its sentinel."""

    key: str
    epoch: int
    items: tuple[bytes, ...]

    def command(self) -> Command:
        return Command("ZREM", self.key, sentinel(self.epoch), *(member(self.epoch, item) for item in self.items))

    def parse_reply(self, raw: Any) -> int:
        return int(raw)

    def apply(self, memory: Memory) -> int:
        stored = memory.hashes.get(self.key, {})
        members = (sentinel(self.epoch), *(member(self.epoch, item) for item in self.items))
        number = sum(stored.pop(_as_field(each), None) is not None for each in members)
        if not stored:
            memory.hashes.pop(self.key, None)
            memory.expiries.pop(self.key, None)
        return number


class DeleteForgotten(NamedTuple):
    """Delete the set of forgotten items. Returns whether it existed; data of another type stays."""

    key: str

    def command(self) -> Command:
        return Command("EVAL", _DELETE_FORGOTTEN, 1, self.key)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        memory.expiries.pop(self.key, None)
        return memory.hashes.pop(self.key, None) is not None


class MarkForgotten(NamedTuple):
    """Write the version of the forgotten items into a shard: an item that it calls seen may be forgotten.

    A later version stays. Returns the outcome.
    """

    key: str
    epoch: int
    version: int

    def command(self) -> Command:
        return Command("EVAL", _MARK_FORGOTTEN, 1, self.key, sentinel(self.epoch), self.version)

    def parse_reply(self, raw: Any) -> int:
        return int(raw)

    def apply(self, memory: Memory) -> int:
        header = header_of(memory, self.key)
        if not shard_header.is_of(shard_header.identity(header), self.epoch):
            return ABSENT
        before = header & shard_header.MARK
        if before and shard_header.is_far(self.version, before):
            return ANOTHER_SET
        if not before or shard_header.ahead(self.version, before) > 0:
            mark = 1 << VERSION_BITS | self.version
            marked = header & ~shard_header.MARK | mark
            memory.strings[self.key][:HEADER_BYTES] = marked.to_bytes(HEADER_BYTES, "big")
        return MARKED


class ForgottenSet(NamedTuple):
    """A set of forgotten items.

    Attributes:
        kind: the type of its key.
        version: the version of the filter's items; None: it has forgotten none, or they were lost.
        items: number of items.
        memory_bytes: their memory, 0 if unknown.
    """

    kind: str
    version: int | None
    items: int
    memory_bytes: int

    @property
    def is_foreign(self) -> bool:
        """True if the key holds other data."""
        return self.kind not in {NONE, SET}

    def was_lost(self, marks: Iterable[int]) -> bool:
        """Return whether the set to which these marks in the shards belong was lost."""
        return any(self.version is None or shard_header.is_far(self.version, mark) for mark in marks)


NOTHING = ForgottenSet(NONE, None, 0, 0)


class InspectForgotten(NamedTuple):
    """Inspect the set of a filter's forgotten items."""

    key: str
    epoch: int

    def command(self) -> Command:
        return Command("EVAL", _INSPECT_FORGOTTEN, 1, self.key, sentinel(self.epoch))

    def parse_reply(self, raw: Any) -> ForgottenSet:
        kind, version, items, memory_bytes = raw
        return ForgottenSet(as_text(kind), int(version) if version else None, int(items), int(memory_bytes))

    def apply(self, memory: Memory) -> ForgottenSet:
        stored = memory.hashes.get(self.key, {})
        version = stored.get(_as_field(sentinel(self.epoch)))
        if version is None:
            return NOTHING._replace(kind=SET if stored else NONE)
        return ForgottenSet(SET, int(version), len(stored) - 1, 0)


class ScanForgotten(NamedTuple):
    """Read a part of a set of forgotten items from a `cursor` on, 0 for the first part.

    Returns the next cursor, 0 after the last part, and the members of all filters with their scores.
    """

    key: str
    cursor: int

    def command(self) -> Command:
        return BinaryCommand("ZSCAN", self.key, self.cursor, "COUNT", SCAN_BATCH)

    def parse_reply(self, raw: Any) -> tuple[int, dict[bytes, int]]:
        cursor, parts = raw
        return int(cursor), {name: int(float(score)) for name, score in zip(parts[::2], parts[1::2], strict=True)}

    def apply(self, memory: Memory) -> tuple[int, dict[bytes, int]]:
        stored = memory.hashes.get(self.key, {})
        return 0, {field.encode("latin-1"): int(score) for field, score in stored.items()}


def _as_field(name: bytes) -> str:
    """Return a member as a field: memory keeps the sorted set as a hash."""
    return name.decode("latin-1")
