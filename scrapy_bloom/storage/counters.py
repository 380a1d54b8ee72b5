"""Operations on the counter of a layer: as a command, from a reply, and in memory.

The counter is a field of the filter's hash: the granted room as a number, after `closed ` if it
grants no more. A grant reads and raises the counter in one step. If two workers read it first and
raised it afterwards, both would be granted the last of the room.
"""

from typing import Any, NamedTuple

from scrapy_bloom.storage.operation import Memory
from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.scripts import load_script

UNLIMITED = -1
# Beyond its immediate need a worker is granted at most this fraction of the remaining room.
BLOCK_DIVISOR = 64

_CLOSED = "closed "

_GRANT_CREDIT, _CLOSE_COUNTER, _RETURN_CREDIT, _CHARGE_COUNTER = (
    load_script(__package__, name) for name in ("grant_credit", "close_counter", "return_credit", "charge_counter")
)


def granted_of(text: str) -> int:
    """Return the granted room from a counter's text.

    Raises:
        ValueError: the text has no number.
    """
    number = text.removeprefix(_CLOSED)
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{text!r} is no counter")
    return int(number)


def is_closed(text: str) -> bool:
    """Return whether a counter grants no more."""
    return text.startswith(_CLOSED)


def closed(granted: int) -> str:
    """Return the text of a closed counter."""
    return f"{_CLOSED}{granted}"


class Granted(NamedTuple):
    """The room granted to a worker, and the `total` granted to all workers by then."""

    number: int
    total: int


class GrantCredit(NamedTuple):
    """Grant room for `need` items and, if plenty is left, for up to `block` more.

    The layer has `limit` in all. Returns the `Granted` room, or None without a counter.
    """

    key: str
    field: str
    need: int
    block: int
    limit: int

    def command(self) -> Command:
        return Command("EVAL", _GRANT_CREDIT, 1, self.key, self.field, self.need, self.block, self.limit, BLOCK_DIVISOR)

    def parse_reply(self, raw: Any) -> Granted | None:
        return Granted(int(raw[0]), int(raw[1])) if raw[0] >= 0 else None

    def apply(self, memory: Memory) -> Granted | None:
        fields = memory.hashes.get(self.key, {})
        if self.field not in fields:
            return None
        before = granted_of(fields[self.field])
        if is_closed(fields[self.field]):
            return Granted(0, before)
        number = self.need + self.block
        if self.limit != UNLIMITED:
            left = max(0, self.limit - before)
            number = min(left, self.need + min(self.block, left // BLOCK_DIVISOR))
        fields[self.field] = str(before + number)
        return Granted(number, before + number)


class CloseCounter(NamedTuple):
    """Close a counter. Returns the granted room, or None without a counter."""

    key: str
    field: str

    def command(self) -> Command:
        return Command("EVAL", _CLOSE_COUNTER, 1, self.key, self.field)

    def parse_reply(self, raw: Any) -> int | None:
        return int(raw) if raw >= 0 else None

    def apply(self, memory: Memory) -> int | None:
        fields = memory.hashes.get(self.key, {})
        if self.field not in fields:
            return None
        granted = granted_of(fields[self.field])
        fields[self.field] = closed(granted)
        return granted


class ReturnCredit(NamedTuple):
    """Return unused room. Must never be sent twice.

    Returns False if the counter is closed or missing.
    """

    key: str
    field: str
    number: int

    def command(self) -> Command:
        return Command("EVAL", _RETURN_CREDIT, 1, self.key, self.field, self.number)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        if self.field not in fields or is_closed(fields[self.field]):
            return False
        fields[self.field] = str(max(0, granted_of(fields[self.field]) - self.number))
        return True


class ChargeCounter(NamedTuple):
    """Count items that were added without credit, even if the counter is closed.

    Returns whether there is a counter.
    """

    key: str
    field: str
    number: int

    def command(self) -> Command:
        return Command("EVAL", _CHARGE_COUNTER, 1, self.key, self.field, self.number)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        if self.field not in fields:
            return False
        granted = granted_of(fields[self.field]) + self.number
        fields[self.field] = closed(granted) if is_closed(fields[self.field]) else str(granted)
        return True
