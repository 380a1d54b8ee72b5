"""Operations on stored data, and steps: generators that yield the operations of one round trip (sans-I/O).

A step is sent the results of its operations. So the same code runs over Redis, over memory, and in a search that tries
every order in which workers interleave.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

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


T = TypeVar("T")
Steps = Generator[Sequence[Operation], Results, T]


def run_steps(steps: Steps[T], execute: Callable[[Sequence[Operation]], Results]) -> T:
    """Have each step's operations carried out by `execute`, and return the result of the last one."""
    results: Results | None = None
    while True:
        try:
            operations = steps.send(results)  # type: ignore[arg-type]  # the first thing sent to a generator is None
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # T, which StopIteration does not know
        results = execute(operations)
