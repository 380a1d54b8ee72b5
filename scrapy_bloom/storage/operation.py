"""Operations on stored data, and steps over them (sans-I/O).

Steps are generators: they yield the operations of one round trip and receive the results. The same
steps run over Redis, over memory, and in a search that tries every order in which workers
interleave.
"""

from collections.abc import Callable, Generator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from scrapy_bloom.transport.commands import Command, Failure

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
    """The results of the operations of one round trip, in their order.

    Attributes:
        failures: the failed operations by index; their results are no results.
        retried: the indexes of operations that were executed again after a failure in doubt. The
            failed attempt may have had the effects that the result reports.
        contact: a number that changes once the connection was or may have been interrupted. The
            store may then lack data that earlier results reported.
    """

    failures: Mapping[int, Failure] = MappingProxyType({})
    retried: Set[int] = frozenset()
    contact = 0

    def may_have_changed(self, index: int, changes_nothing: Callable[[Any], bool]) -> bool:
        """Return whether an operation may have changed stored data; `changes_nothing` judges its result."""
        if index in self.retried:
            return True
        failure = self.failures.get(index)
        return not changes_nothing(self[index]) if failure is None else failure.is_in_doubt

    def replace_failures(self, results: "Results") -> None:
        """Put the results of a retry of the failed operations, in their order, in place of the failures."""
        indexes = list(self.failures)
        self.retried = self.retried | {index for index, failure in self.failures.items() if failure.is_in_doubt}
        for index, result in zip(indexes, results, strict=True):
            self[index] = result
        self.failures = {indexes[number]: failure for number, failure in results.failures.items()}
        self.contact = results.contact


class Store(Protocol):
    """Executes operations."""

    def execute(self, operations: Operations) -> Results:
        """Execute operations in one round trip, in any order.

        A cluster executes them on several nodes, and a failed one is executed again, after the others.
        """


Steps = Generator[Operations, Results, T]


def one(operation: Operation[R]) -> Steps[R]:
    """Execute one operation in a round trip of its own, and return its result."""
    results = yield [operation]
    return results[0]  # type: ignore[no-any-return]  # a list of results does not know its types
