"""The steps that a worker takes on a queue, each as one script; `lua/` has their text.

None of them has an effect for a worker that is not registered any more: it says `expired`.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from scrapy_bloom._lua import load_script
from scrapy_bloom._text import as_text
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.transport.commands import Argument, Command

Encode = Callable[[Any], bytes]


def digests(members: Iterable[bytes]) -> tuple[str, ...]:
    """Return what stands for members where they would be too long: the begin of their SHA-1, which a server's Lua has.

    Of 16 digits: among 1,000 members two have the same with a probability of 3e-14.
    """
    return tuple(sorted(hashlib.sha1(member, usedforsecurity=False).hexdigest()[:16] for member in members))


class Said(StrEnum):
    """The words that scripts answer with."""

    OK = "ok"
    EXPIRED = "expired"  # the worker is not registered any more
    WAIT = "wait"  # another worker closes the queue
    YOURS = "yours"  # this worker is to finish the closing
    AGAIN = "again"  # an exchange of this number was carried out before
    LATE = "late"  # and one of a higher number, too
    DONE = "done"  # the exchange was carried out
    VOID = "void"  # it was not, and never will be
    ALIVE = "alive"
    REQUEUED = "requeued"
    LEFT = "left"
    LAST = "last"
    FOREIGN = "foreign"  # something else is at the queue's key, or somebody else works on it


@dataclass(frozen=True)
class Answer:
    """The answer to an operation; which of its parts there are is told by each.

    `waiting`, `leased` and `dead` are numbers of entries. `workers` are the registered ones with their values, which
    change with each sign of life.
    """

    said: Said
    entries: tuple[QueueEntry, ...] = ()
    workers: Mapping[str, str] | None = None
    waiting: int = 0
    leased: int = 0
    dead: int = 0

    @classmethod
    def parse(cls, raw: Sequence[Any], encode: Encode) -> Self:
        """Return the answer that a server's reply means; `encode` undoes the decoding of the client."""
        tail: list[Any] = [(), None]
        said, entries, workers, *numbers = (*raw, *tail[len(raw) - 1 :])
        pairs = zip(entries[::2], entries[1::2], strict=True)
        values = None if workers is None else zip(workers[::2], workers[1::2], strict=True)
        return cls(
            Said(as_text(said)),
            tuple(QueueEntry(float(score), encode(member)) for score, member in pairs),
            None if values is None else {as_text(name): as_text(value) for name, value in values},
            *map(int, numbers),
        )


@dataclass(frozen=True)
class Operation:
    """A step of a worker. The fields that follow the worker's name are the arguments of the script."""

    worker: str
    script: ClassVar[str]

    def command(self, keys: QueueKeys) -> Command:
        """Return the command."""
        names = (keys.queue, keys.workers, keys.dead_letters, keys.leases(self.worker), *self._further_keys(keys))
        return Command("EVAL", _load(self.script), len(names), *names, self.worker, *self._arguments())

    def _arguments(self) -> Iterable[Argument]:
        return astuple(self)[1:]

    def _further_keys(self, keys: QueueKeys) -> Iterable[str]:  # noqa: ARG002  # one of the operations has some
        return ()


@dataclass(frozen=True)
class Join(Operation):
    """Register, unless another worker closes the queue: `wait`. What is leased goes back to the queue.

    If the worker is new, so do the dead letters. A worker that was to close the queue is told `yours`. The answer has
    the workers, and how many entries wait.
    """

    script = "join"
    lease: str
    number: int
    is_new: bool

    def _arguments(self) -> Iterable[Argument]:
        return self.lease, self.number, int(self.is_new)


@dataclass(frozen=True)
class Exchange(Operation):
    """Lease, push, set aside, acknowledge, and take up to `want` entries, in this order.

    The first `released` of those pushed are leased no longer. The answer has the entries that were taken. Where none
    were that were wanted, it has the numbers of all workers' entries and the workers.
    """

    script = "exchange"
    number: int
    want: int
    leases: tuple[QueueEntry, ...] = ()
    pushes: tuple[QueueEntry, ...] = ()
    released: int = 0
    asides: tuple[QueueEntry, ...] = ()
    acks: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all requests in it."""
        entries = (*self.leases, *self.pushes, *self.asides)
        return sum(len(entry.member) for entry in entries) + sum(map(len, self.acks))

    def _arguments(self) -> Iterable[Argument]:
        numbers = (len(self.leases), len(self.pushes), self.released, len(self.asides), len(self.acks))
        entries = (part for entry in (*self.leases, *self.pushes, *self.asides) for part in entry)
        return self.number, self.want, *numbers, *entries, *self.acks


@dataclass(frozen=True)
class Settle(Operation):
    """Find out whether an exchange was carried out whose reply was lost: `done`, or `void`.

    If it was, what it took goes back to the queue: that is what is leased and not in `kept`, which are `digests`.
    Where that is None it took nothing.
    """

    script = "settle"
    number: int
    kept: tuple[str, ...] | None

    def _arguments(self) -> Iterable[Argument]:
        return self.number, int(self.kept is not None), *(self.kept or ())


@dataclass(frozen=True)
class Heartbeat(Operation):
    """Say that this worker is alive, and list all workers. It registers nobody."""

    script = "heartbeat"


@dataclass(frozen=True)
class Requeue(Operation):
    """Requeue what a dead worker had leased, and take it out; `waiting` is the number of entries that were requeued.

    If its value is not the one that was seen, it is `alive`. One that died while it closed the queue is replaced by a
    worker that is not registered, and only by such a one: `yours`.
    """

    script = "requeue"
    dead: str
    value: str
    lease: str
    number: int

    def _further_keys(self, keys: QueueKeys) -> Iterable[str]:
        return (keys.leases(self.dead),)


class Ending(StrEnum):
    """The ways in which a worker ends, by which the last one leaves the queue."""

    KEEP = "keep"  # nothing is cleared
    FINISHED = "finished"  # cleared only where nothing waits
    STOPPED = "stopped"  # cleared with what waits


@dataclass(frozen=True)
class Leave(Operation):
    """Take this worker out, and requeue what it has leased: `left`. The `last` one closes the queue, if it may clear.

    The answer says how many entries are `waiting` and how many are `dead` letters.
    """

    script = "leave"
    number: int
    ending: Ending


@dataclass(frozen=True)
class EndClosing(Operation):
    """Take this worker out, which has closed the queue; `clears` deletes what waits."""

    script = "end_closing"
    clears: bool

    def _arguments(self) -> Iterable[Argument]:
        return (int(self.clears),)


@dataclass(frozen=True)
class ReadDeadLetters(Operation):
    """List `count` dead letters from the one at the place `start`, which stay there."""

    script = "read_dead_letters"
    start: int
    count: int


@dataclass(frozen=True)
class Redrive(Operation):
    """Queue those of some dead letters again that are still there."""

    script = "redrive"
    members: tuple[bytes, ...]

    def _arguments(self) -> Iterable[Argument]:
        return self.members


@dataclass(frozen=True)
class Flush(Operation):
    """Delete everything of the queue, whoever works on it.

    With the `kind` of a key it is left if something of another is at the queue's: `foreign`. It is then left, too, if a
    worker is registered that is not among those `known`.
    """

    script = "flush"
    kind: str = ""
    known: tuple[str, ...] = ()

    def _arguments(self) -> Iterable[Argument]:
        return self.kind, *self.known


_texts: dict[str, str] = {}


def _load(script: str) -> str:
    if script not in _texts:
        _texts[script] = load_script(__package__, "registration", script)
    return _texts[script]
