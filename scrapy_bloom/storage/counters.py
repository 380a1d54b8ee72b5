"""Operations on the counter of a layer, each once: as a command, from a reply, and in memory.

The counter is a field of the filter's hash. It says how much of the layer's room was granted: a number, or `closed` and
a number, and then nothing is granted any more. Raising it and looking at it is one step. If two workers looked first
and raised it then, both would be granted the last of the room.
"""

from typing import Any, NamedTuple

from scrapy_bloom.storage.operation import Memory
from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.scripts import load_script

UNLIMITED = -1
# A worker is given at most this part of what is left beyond what it needs at once.
BLOCK_DIVISOR = 64

_CLOSED = "closed "

_GRANT_CREDIT, _CLOSE_COUNTER, _RETURN_CREDIT, _CHARGE_COUNTER = (
    load_script(__package__, name) for name in ("grant_credit", "close_counter", "return_credit", "charge_counter")
)


def granted_of(text: str) -> int:
    """Return how much room was granted, by a counter's text.

    Raises:
        ValueError: the text has no number.
    """
    number = text.removeprefix(_CLOSED)
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{text!r} is no counter")
    return int(number)


def is_closed(text: str) -> bool:
    """Return whether a counter gives no more."""
    return text.startswith(_CLOSED)


def closed(granted: int) -> str:
    """Return the text of a counter that gives no more."""
    return f"{_CLOSED}{granted}"


class Granted(NamedTuple):
    """The room that a worker was granted, and the `total` that was granted to all by then."""

    number: int
    total: int


class GrantCredit(NamedTuple):
    """Ask for room for `need` items and, if much is left, for `block` more; the layer has `limit` in all.

    Returns what was `Granted`, or None where there is no counter.
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
    """Close a counter: it gives no more. Returns how much it gave, or None where there is no counter."""

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
    """Return room that was not used. Must never be sent twice. Returns whether the counter took it."""

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
    """Count items that were added without credit, whether the counter is closed or not. Returns whether it is there."""

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
