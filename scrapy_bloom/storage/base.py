"""The interfaces of operations and stores, and the results that a store returns."""

from collections.abc import Sequence
from typing import Any, Protocol

from scrapy_bloom.transport.commands import Command


class Memory(Protocol):
    """The data that operations work on without a server: hashes and strings by their keys, and a clock.

    `expiries` are the Unix times, in milliseconds, at which keys are over.
    """

    hashes: dict[str, dict[str, str]]
    strings: dict[str, bytearray]
    expiries: dict[str, int]

    def now(self) -> float:
        """Return Unix time in seconds."""


class Operation(Protocol):
    """An operation on one key, so that it is one command on one node of a cluster."""

    def command(self) -> Command:
        """Return the command."""

    def parse_reply(self, raw: Any) -> Any:
        """Return the result that the server's reply means."""

    def apply(self, memory: Memory) -> Any:
        """Do the same in memory, and return the same result."""


class Results(list[Any]):
    """The results of the operations of one round trip, in their order.

    It is a list, since steps unpack it: `(granted,) = yield [operation]`. Where it is `retried`, an earlier attempt
    whose reply was lost may have carried some of them out already. The `contact` is another number once the
    connection was interrupted, or may have been: the store may then lack what earlier results said.
    """

    retried = False
    contact = 0


class Store(Protocol):
    """Carries out operations."""

    def execute(self, operations: Sequence[Operation]) -> Results:
        """Carry out operations in their order, in one round trip, and return their results."""
