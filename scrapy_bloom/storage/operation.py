"""Operations on stored data, and steps over them (sans-I/O).

Steps are generators: they yield the operations of one round trip and receive the results. The same
steps run over Redis, over memory, and in a search that tries every order in which workers
interleave.
"""

from collections.abc import Generator, Sequence
from typing import Any, Protocol, TypeVar

from scrapy_bloom.transport.commands import Command

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Memory(Protocol):
    """Stored data in this process: hashes and strings by key, and a clock.

    `expiries` are Unix times in milliseconds.
    """

    hashes: dict[str, dict[str, str]]
    strings: dict[str, bytearray]
    expiries: dict[str, int]

    def now(self) -> float:
        """Return Unix time in seconds."""


def keep_until(memory: Memory, key: str, expiry: int | None) -> None:
    """Extend the expiry of a key, in Unix milliseconds.

    An earlier expiry, or None, changes nothing.
    """
    if expiry is not None and (key not in memory.expiries or expiry > memory.expiries[key]):
        if expiry <= _milliseconds(memory):
            delete(memory, key)
        else:
            memory.expiries[key] = expiry


def delete(memory: Memory, key: str) -> bool:
    """Delete a key with its expiry, and return whether the key existed."""
    memory.expiries.pop(key, None)
    fields, string = memory.hashes.pop(key, None), memory.strings.pop(key, None)
    return bool(fields) or string is not None


def delete_expired(memory: Memory) -> None:
    """Delete expired keys."""
    now = _milliseconds(memory)
    for key in [key for key, expiry in memory.expiries.items() if now > expiry]:
        delete(memory, key)


def _milliseconds(memory: Memory) -> int:
    return int(memory.now() * 1000)


class Operation(Protocol[R_co]):
    """An operation on one key: one command on one node of a cluster."""

    def command(self) -> Command:
        """Return the command."""

    def parse_reply(self, raw: Any) -> R_co:
        """Return the result from the server's reply."""

    def apply(self, memory: Memory) -> R_co:
        """Do the same in memory, and return the same result."""


Operations = Sequence[Operation[Any]]


class Results(list[Any]):
    """The results of the operations of one round trip, in order.

    Attributes:
        retried: an earlier attempt lost its reply, and may have executed some of the operations.
        contact: a number that changes once the connection was or may have been interrupted. The
            store may then lack data that earlier results reported.
    """

    retried = False
    contact = 0


class Store(Protocol):
    """Executes operations."""

    def execute(self, operations: Operations) -> Results:
        """Execute operations in order, in one round trip."""


Steps = Generator[Operations, Results, T]


def one(operation: Operation[R]) -> Steps[R]:
    """Execute one operation in a round trip of its own, and return its result."""
    results = yield [operation]
    return results[0]  # type: ignore[no-any-return]  # a list of results does not know its types
