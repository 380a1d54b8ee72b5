"""The steps that a worker takes on a queue, each as one script; `lua/` has their text.

None of them has an effect for a worker that is not registered any more: it says `expired`.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self

from scrapy_bloom._format import as_text
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.members import spider_mark
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.commands import Argument, Command
from scrapy_bloom.transport.scripts import load_script

Encode = Callable[[Any], bytes]


def digests(members: Iterable[bytes]) -> tuple[str, ...]:
    """Return what stands for members where they would be too long: the begin of their SHA-1, which a server's Lua has.

    Of 16 digits: among 1,000 members two have the same with a probability of 3e-14.
    """
    return tuple(sorted(hashlib.sha1(member, usedforsecurity=False).hexdigest()[:16] for member in members))


class Status(StrEnum):
    """The words that scripts answer with."""

    OK = "ok"
    EXPIRED = "expired"  # the worker is not registered any more
    WAIT = "wait"  # another worker closes the queue
    KEPT = "kept"  # the filter stays, since another queue uses it
    YOURS = "yours"  # this worker is to finish the closing
    AGAIN = "again"  # an exchange of this number was carried out before
    LATE = "late"  # and one of a higher number, too
    DONE = "done"  # the exchange was carried out
    VOID = "void"  # it was not, and never will be
    ALIVE = "alive"
    REQUEUED = "requeued"
    ROLLED_BACK = "rolled_back"  # the server has gone back to an earlier state
    LOST = "lost"  # nobody is registered any more: the server has lost its data, or the others have ended
    PRESUMED_DEAD = "presumed_dead"  # others have requeued this worker's leases
    LEFT = "left"
    LAST = "last"
    FOREIGN = "foreign"  # something else is at the queue's key, or somebody else works on it


# The numbers of a reply, in their order; they are fields of `Reply`.
_NUMBERS = ("waiting", "leased", "dead", "loss", "lost")
# A worker that joins is registered then.
REGISTERED = frozenset({Status.OK, Status.ROLLED_BACK, Status.LOST, Status.PRESUMED_DEAD})


@dataclass(frozen=True)
class Reply:
    """The answer to an operation; which of its parts there are is told by each.

    `waiting`, `leased` and `dead` are numbers of entries. `workers` are the registered ones with their values, which
    change with each sign of life. `loss` identifies the last loss of the queue, and is 0 where there was none. `lost`
    is the number of requests that have vanished with the queue. `suspects` are the members of entries that a worker has
    died with, and how many have.
    """

    status: Status
    entries: tuple[QueueEntry, ...] = ()
    workers: Mapping[str, str] | None = None
    waiting: int = 0
    leased: int = 0
    dead: int = 0
    loss: int = 0
    lost: int = 0
    suspects: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Sequence[Any], encode: Encode) -> Self:
        """Return the answer that a server's reply means; `encode` undoes the decoding of the client."""
        tail: list[Any] = [(), None, (), ()]
        said, entries, workers, numbers, suspects = (*raw, *tail[len(raw) - 1 :])
        pairs = zip(entries[::2], entries[1::2], strict=True)
        deaths = zip(suspects[::2], suspects[1::2], strict=True)
        values = None if workers is None else zip(workers[::2], workers[1::2], strict=True)
        return cls(
            Status(as_text(said)),
            tuple(QueueEntry(float(score), encode(member)) for score, member in pairs),
            None if values is None else {as_text(name): as_text(value) for name, value in values},
            **dict(zip(_NUMBERS, map(int, numbers), strict=False)),
            suspects={encode(member): int(number) for member, number in deaths},
        )


@dataclass(frozen=True)
class QueueOperation:
    """A step of a worker. The fields that follow the worker's name are the arguments of the script."""

    worker: str
    script: ClassVar[str]
    head: ClassVar[tuple[str, ...]] = ("registration",)

    def command(self, keys: QueueKeys) -> Command:
        """Return the command."""
        own = (keys.queue, keys.workers, keys.dead_letters, keys.leases(self.worker), keys.audit, keys.deliveries)
        names = (*own, *self._further_keys(keys))
        return Command("EVAL", _load(*self.head, self.script), len(names), *names, self.worker, *self._arguments())

    def _arguments(self) -> Iterable[Argument]:
        return astuple(self)[1:]

    def _further_keys(self, keys: QueueKeys) -> Iterable[str]:  # noqa: ARG002  # one of the operations has some
        return ()


@dataclass(frozen=True)
class Join(QueueOperation):
    """Register, unless another worker closes the queue: `wait`. What is leased goes back to the queue.

    If the worker is new, so do the dead letters. A worker that was to close the queue is told `yours`, and one that has
    lost its registration why. Where workers of another spider are registered, it is `foreign`; without a `spider` that
    is not looked at. The answer has the workers, and how many entries wait.
    """

    script = "join"
    lease: str
    number: int
    is_new: bool
    spider: str = ""

    def _arguments(self) -> Iterable[Argument]:
        return self.lease, self.number, int(self.is_new), spider_mark(self.spider)


@dataclass(frozen=True)
class Sync(QueueOperation):
    """Lease, push, set aside, acknowledge, start, and take up to `want` entries, in this order.

    A suspect is started before the engine gets it, so that the death of its worker counts. The first `released` of the
    pushes are leased no longer. The answer has the entries that were taken. Where none were that were wanted, it has
    the numbers of all workers' entries and the workers.
    """

    script = "sync"
    number: int
    want: int
    leases: tuple[QueueEntry, ...] = ()
    pushes: tuple[QueueEntry, ...] = ()
    released: int = 0
    asides: tuple[QueueEntry, ...] = ()
    acks: tuple[bytes, ...] = ()
    starts: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all requests in it."""
        entries = (*self.leases, *self.pushes, *self.asides)
        return sum(len(entry.member) for entry in entries) + sum(map(len, self.acks))

    def _arguments(self) -> Iterable[Argument]:
        entries = (part for entry in (*self.leases, *self.pushes, *self.asides) for part in entry)
        numbers = (len(self.leases), len(self.pushes), self.released, *map(len, (self.asides, self.acks, self.starts)))
        return self.number, self.want, *numbers, *entries, *self.acks, *self.starts


@dataclass(frozen=True)
class ResolveInDoubt(QueueOperation):
    """Find out whether an exchange was carried out whose reply was lost: `done`, or `void`.

    If it was, what it took goes back to the queue: that is what is leased and not in `kept`, which are `digests`.
    Where that is None it took nothing.
    """

    script = "resolve_in_doubt"
    number: int
    kept: tuple[str, ...] | None

    def _arguments(self) -> Iterable[Argument]:
        return self.number, int(self.kept is not None), *(self.kept or ())


@dataclass(frozen=True)
class Heartbeat(QueueOperation):
    """Say that this worker is alive, and list all workers. It registers nobody."""

    script = "heartbeat"


@dataclass(frozen=True)
class Requeue(QueueOperation):
    """Requeue what a dead worker had leased, and take it out; `waiting` is the number of entries that were requeued.

    A request that `max_deliveries` workers died with becomes a dead letter, and is one of the answer's entries; 0
    means no bound. If the value of the dead worker is not the one that was seen, it is `alive`. A worker that died
    while it closed the queue is replaced by one that is not registered, and only by such a one: `yours`.
    """

    script = "requeue"
    dead: str
    value: str
    lease: str
    number: int
    max_deliveries: int = 0

    def _further_keys(self, keys: QueueKeys) -> Iterable[str]:
        return (keys.leases(self.dead),)


class Ending(StrEnum):
    """The ways in which a worker ends, by which the last one leaves the queue."""

    KEEP = "keep"  # nothing is cleared
    FINISHED = "finished"  # cleared only where nothing waits
    STOPPED = "stopped"  # cleared with what waits


@dataclass(frozen=True)
class Leave(QueueOperation):
    """Take this worker out, and requeue what it has leased: `left`. The `last` one closes the queue, if it may clear.

    The answer says how many entries are `waiting` and how many are `dead` letters.
    """

    script = "leave"
    number: int
    ending: Ending


@dataclass(frozen=True)
class EndClosing(QueueOperation):
    """Take this worker out, which has closed the queue; `clears` deletes what waits."""

    script = "end_closing"
    clears: bool

    def _arguments(self) -> Iterable[Argument]:
        return (int(self.clears),)


@dataclass(frozen=True)
class ReadDeadLetters(QueueOperation):
    """List `count` dead letters from the one at the place `start`, which stay there."""

    script = "read_dead_letters"
    start: int
    count: int


@dataclass(frozen=True)
class Redrive(QueueOperation):
    """Queue those of some dead letters again that are still there, with their deaths forgotten."""

    script = "redrive"
    members: tuple[bytes, ...]

    def _arguments(self) -> Iterable[Argument]:
        return self.members


@dataclass(frozen=True)
class Flush(QueueOperation):
    """Delete everything of the queue, whoever works on it.

    With a `lease` this worker is registered as closing the queue then. Nobody joins before it has deleted the filter,
    too, and ends the closing; if it dies before, another worker takes over.

    With the `kind` of a key it is left if something of another is at the queue's: `foreign`. It is then left, too, if a
    worker is registered that is not among those `known`.
    """

    script = "flush"
    head = ()
    kind: str = ""
    known: tuple[str, ...] = ()
    lease: str = ""

    def _arguments(self) -> Iterable[Argument]:
        return self.lease, self.kind, *self.known


@functools.cache
def _load(*scripts: str) -> str:
    return load_script(__package__, *scripts)
