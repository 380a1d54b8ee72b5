"""The operations of a worker on the queue, each one script in `lua/`, and the queue that executes them.

A script has no effect for a worker that is not registered any more: its reply is `expired`.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import quote, unquote

from scrapy_bloom._format import as_bytes, as_text
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.entries import OutboxEntry, QueueEntry
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Argument, Command
from scrapy_bloom.transport.scripts import load_script

# Unix time in milliseconds, of September 2001; smaller values are counts of heartbeats.
_FIRST_TIME = 10**12

Encode = Callable[[Any], bytes]


def digests(members: Iterable[bytes]) -> tuple[str, ...]:
    """Return the first 16 hex digits of each member's SHA-1.

    A server's Lua computes the same. Among 1,000 members, two are equal with a probability of 3e-14.
    """
    return tuple(sorted(hashlib.sha1(member, usedforsecurity=False).hexdigest()[:16] for member in members))


class Registration(NamedTuple):
    """A worker's value in the hash of workers.

    Attributes:
        lease: the lease in seconds.
        number: the number of the worker's last sync.
        is_closing: the worker closes the queue.
        last_heard: Unix time of the last heartbeat in seconds, by the server's clock. None if an
            earlier release wrote the value, which only counts heartbeats.
        spider: the name of the worker's spider, or "" if it does not crawl.

    Example:
        >>> Registration.parse("30 7 1700000000250 @news")
        Registration(lease=30.0, number=7, is_closing=False, last_heard=1700000000.25, spider='news')
    """

    lease: float
    number: int
    is_closing: bool
    last_heard: float | None
    spider: str = ""

    @classmethod
    def parse(cls, value: str) -> Self:
        """Return the registration in a stored value."""
        lease, number, beats, *marks = value.split()
        last_heard = int(beats) / 1000 if int(beats) >= _FIRST_TIME else None
        spider = next((unquote(mark[1:]) for mark in marks if mark.startswith("@")), "")
        return cls(float(lease), int(number.removesuffix("v")), "closing" in marks, last_heard, spider)


def spider_mark(spider: str) -> str:
    """Return the suffix of a stored value that names the spider; "" has none."""
    return f" @{quote(spider, safe='')}" if spider else ""


class Status(StrEnum):
    """The status of a reply."""

    OK = "ok"
    EXPIRED = "expired"  # the worker is not registered
    WAIT = "wait"  # another worker closes the queue
    KEPT = "kept"  # another queue uses the filter
    YOURS = "yours"  # this worker completes the closing
    FLUSHED = "flushed"  # this worker completes the closing of a flush: the filter knows the deleted requests
    AGAIN = "again"  # the sync was executed before
    LATE = "late"  # a later sync was executed before
    DONE = "done"  # the sync was executed
    VOID = "void"  # the sync was not executed, and never will be
    ALIVE = "alive"
    REQUEUED = "requeued"
    ROLLED_BACK = "rolled_back"  # the server has gone back to an earlier state
    LOST = "lost"  # no worker is registered: the server has lost its data, or the others have left
    PRESUMED_DEAD = "presumed_dead"  # other workers have requeued this worker's leases
    LEFT = "left"
    LAST = "last"
    FOREIGN = "foreign"  # the key holds another type, or foreign workers are registered


# The fields of `Reply` that are the numbers of a script's reply, in their order.
_NUMBERS = ("waiting", "leased", "dead", "loss", "lost", "requeued")
# Replies to a join after which the worker is registered.
REGISTERED = frozenset({Status.OK, Status.ROLLED_BACK, Status.LOST, Status.PRESUMED_DEAD})


@dataclass(frozen=True)
class Reply:
    """The reply to an operation; each operation lists the parts that it fills.

    Attributes:
        status: the status.
        entries: entries of the queue, or dead letters.
        workers: the registered workers' values, which change with each heartbeat.
        waiting: waiting requests.
        leased: requests that all workers have leased.
        dead: dead letters.
        loss: identifies the last loss of the queue; 0 if there was none.
        lost: requests that have vanished with the queue.
        requeued: requests of a dead worker that are back in the queue.
        suspects: members among the entries that workers have died with, and how many have.
    """

    status: Status
    entries: tuple[QueueEntry, ...] = ()
    workers: Mapping[str, str] | None = None
    waiting: int = 0
    leased: int = 0
    dead: int = 0
    loss: int = 0
    lost: int = 0
    requeued: int = 0
    suspects: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Sequence[Any], encode: Encode) -> Self:
        """Parse a script's reply; `encode` undoes the client's decoding."""
        tail: list[Any] = [(), None, (), ()]
        status, entries, workers, numbers, suspects = (*raw, *tail[len(raw) - 1 :])
        pairs = zip(entries[::2], entries[1::2], strict=True)
        deaths = zip(suspects[::2], suspects[1::2], strict=True)
        values = None if workers is None else zip(workers[::2], workers[1::2], strict=True)
        return cls(
            Status(as_text(status)),
            tuple(QueueEntry(float(score), encode(member)) for score, member in pairs),
            None if values is None else {as_text(name): as_text(value) for name, value in values},
            **dict(zip(_NUMBERS, map(int, numbers), strict=False)),
            suspects={encode(member): int(number) for member, number in deaths},
        )


@dataclass(frozen=True)
class QueueOperation:
    """One script of a worker. The fields after the worker's name are its arguments."""

    worker: str
    script: ClassVar[str]
    head: ClassVar[tuple[str, ...]] = ("registration",)

    def command(self, keys: QueueKeys) -> Command:
        """Return the command that executes the script on a queue."""
        own = (keys.queue, keys.workers, keys.dead_letters, keys.leases(self.worker), keys.audit, keys.deliveries)
        names = (*own, *self._further_keys(keys), keys.absent)
        return Command(
            "EVAL",
            load_script(__package__, *self.head, self.script),
            len(names),
            *names,
            self.worker,
            *self._arguments(),
        )

    def _arguments(self) -> Iterable[Argument]:
        return astuple(self)[1:]

    def _further_keys(self, keys: QueueKeys) -> Iterable[str]:  # noqa: ARG002  # `Requeue` has one
        return ()


@dataclass(frozen=True)
class Join(QueueOperation):
    """Register the worker and requeue its leases; a new worker requeues dead letters.

    The reply has the workers and the number of waiting requests. Its status is `wait` while another
    worker closes the queue, and `yours` or `flushed` if this one is to close it. It is `foreign` if
    workers of another spider are registered, which is not checked without a `spider`. A worker that
    has lost its registration gets the reason.
    """

    script = "join"
    lease_seconds: str
    number: int
    is_new: bool
    spider: str = ""

    def _arguments(self) -> Iterable[Argument]:
        return self.lease_seconds, self.number, int(self.is_new), spider_mark(self.spider)


@dataclass(frozen=True)
class Sync(QueueOperation):
    """Lease, push, dead-letter, acknowledge, start and take entries, in this order.

    A suspect is started before the engine gets it, so that a death of its worker counts. The reply
    has the entries that were taken. If none could be taken, it has the workers and the numbers of
    requests.

    Attributes:
        number: the number of the sync, one more than the last.
        want: entries to take at most.
        leases: entries to lease.
        pushes: entries to push to the queue.
        released: the number of pushes, the first ones, whose leases end.
        dead_letters: entries that cannot be deserialized.
        acks: members to acknowledge.
        starts: suspects that the engine gets next.
    """

    script = "sync"
    number: int
    want: int
    leases: tuple[QueueEntry, ...] = ()
    pushes: tuple[QueueEntry, ...] = ()
    released: int = 0
    dead_letters: tuple[QueueEntry, ...] = ()
    acks: tuple[bytes, ...] = ()
    starts: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all its requests."""
        entries = (*self.leases, *self.pushes, *self.dead_letters)
        return sum(len(entry.member) for entry in entries) + sum(map(len, self.acks))

    def _arguments(self) -> Iterable[Argument]:
        entries = (part for entry in (*self.leases, *self.pushes, *self.dead_letters) for part in entry)
        numbers = (
            len(self.leases),
            len(self.pushes),
            self.released,
            *map(len, (self.dead_letters, self.acks, self.starts)),
        )
        return self.number, self.want, *numbers, *entries, *self.acks, *self.starts


@dataclass(frozen=True)
class ResolveInDoubt(QueueOperation):
    """Resolve a sync whose reply was lost: it is `done`, or becomes `void`.

    The entries that a done sync took go back to the queue: all leases whose `digests` are not in
    `kept`. None means that it took none.
    """

    script = "resolve_in_doubt"
    number: int
    kept: tuple[str, ...] | None

    def _arguments(self) -> Iterable[Argument]:
        return self.number, int(self.kept is not None), *(self.kept or ())


@dataclass(frozen=True)
class Heartbeat(QueueOperation):
    """Renew the registration, if there is one, and return all workers."""

    script = "heartbeat"


@dataclass(frozen=True)
class Requeue(QueueOperation):
    """Requeue the leases of a dead worker, and remove its registration.

    The reply has the number of requeued entries. Requests that `max_deliveries`
    workers have died with become dead letters, which are the reply's entries; 0 is no bound. The
    status is `alive` if the registration is not `value` any more. Only an unregistered worker takes
    over from a worker that died while it closed the queue: `yours`.
    """

    script = "requeue"
    dead: str
    value: str
    lease_seconds: str
    number: int
    max_deliveries: int = 0

    def _further_keys(self, keys: QueueKeys) -> Iterable[str]:
        return (keys.leases(self.dead),)


class Ending(StrEnum):
    """The ways in which a worker leaves; the last worker's one applies to the queue."""

    KEEP = "keep"  # clear nothing
    FINISHED = "finished"  # clear unless requests wait
    STOPPED = "stopped"  # clear, with the waiting requests


@dataclass(frozen=True)
class Leave(QueueOperation):
    """Remove the registration and requeue the leases; the last worker stays, to clear.

    The status is `left` or `last`, or `flushed` if the worker has to complete a flush. The reply has
    the numbers of waiting requests and dead letters.
    """

    script = "leave"
    number: int
    ending: Ending


@dataclass(frozen=True)
class EndClosing(QueueOperation):
    """End the closing.

    Attributes:
        clears: delete the waiting requests.
        stays: the worker stays registered, with its `spider`, and joins next. Otherwise a worker
            that joins before it would find no worker, and report a loss of the queue.
    """

    script = "end_closing"
    clears: bool
    stays: bool = False
    spider: str = ""

    def _arguments(self) -> Iterable[Argument]:
        return int(self.clears), int(self.stays), spider_mark(self.spider)


@dataclass(frozen=True)
class ReadDeadLetters(QueueOperation):
    """Return `count` dead letters from the place `start` on."""

    script = "read_dead_letters"
    start: int
    count: int


@dataclass(frozen=True)
class Redrive(QueueOperation):
    """Requeue the given dead letters that are still there, and forget their deaths."""

    script = "redrive"
    members: tuple[bytes, ...]

    def _arguments(self) -> Iterable[Argument]:
        return self.members


@dataclass(frozen=True)
class Flush(QueueOperation):
    """Delete the queue and all its keys, under its workers if there are any.

    Attributes:
        kind: the type that the queue must have, if any; another one, or a worker that is not
            `known`, leaves everything as it is: `foreign`.
        known: the workers that may be registered, with a `kind`.
        lease_seconds: if set, registers this worker as closing the queue, so that no worker joins
            before it has deleted the filter, too, and ended the closing. If it dies before that,
            another worker takes over, and deletes the filter even if other queues use it.
    """

    script = "flush"
    head = ()
    kind: str = ""
    known: tuple[str, ...] = ()
    lease_seconds: str = ""

    def _arguments(self) -> Iterable[Argument]:
        return self.lease_seconds, self.kind, *self.known


@dataclass(frozen=True)
class AskFilter:
    """Check entries against the filter, and add them to it."""

    entries: tuple[OutboxEntry, ...]


@dataclass(frozen=True)
class UseFilter:
    """Add the queue's reference to the filter."""


@dataclass(frozen=True)
class ReleaseFilter:
    """Remove the queue's reference; the filter is deleted with its last one."""


@dataclass(frozen=True)
class ClearFilter:
    """Delete the filter under all its references, to complete a flush: it knows the deleted requests."""


@dataclass(frozen=True)
class ForgetFailed:
    """Let the filter forget failed requests, before their leases end."""

    fingerprints: tuple[bytes, ...]


FilterOperation = AskFilter | UseFilter | ReleaseFilter | ClearFilter | ForgetFailed


class RequestQueue:
    """The queue at `key`, a sorted set of serialized requests by score.

    Args:
        client: a Redis client.
        key: the key of the queue.

    Raises:
        ConfigError: the queue's other keys are in another slot of the client's cluster.
    """

    def __init__(self, client: Any, key: str) -> None:
        self.keys = QueueKeys(key)
        # Only a cluster's client has this method.
        if hasattr(client, "keyslot") and not self.keys.share_a_slot:
            raise ConfigError(
                f"SCHEDULER_QUEUE_KEY = {key!r}: the unpaired brace puts this key into another cluster slot than the "
                "keys of its workers; use a name without braces, or with one pair"
            )
        self._transport = transport_for(client)
        self._encoder = client.get_encoder() if hasattr(client, "get_encoder") else None

    def execute(self, operation: QueueOperation) -> Reply:
        """Execute an operation and return its reply.

        Raises:
            ConfigError: the operation was executed, but the client cannot decode its reply.
        """
        try:
            (raw,) = self._transport.execute([operation.command(self.keys)])
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"REDIS_DECODE_RESPONSES = True: the queue {self.keys.queue!r} holds requests that are not valid "
                f"{error.encoding} text, such as Scrapy's pickles. Set it to False (decode_responses in REDIS_PARAMS), "
                "or set SCHEDULER_SERIALIZER to a text serializer and delete the queue"
            ) from None
        return Reply.parse(raw, self.encode)

    def count(self) -> int:
        """Return the number of waiting requests."""
        return int(self._transport.execute([Command("ZCARD", self.keys.queue)])[0])

    def encode(self, member: str | bytes) -> bytes:
        """Return a serialized request as Redis stores it."""
        return as_bytes(member) if self._encoder is None else bytes(self._encoder.encode(member))

    def decode(self, member: bytes) -> str | bytes:
        """Return a serialized request as the client does: text if it decodes replies."""
        return member if self._encoder is None else self._encoder.decode(member)


def require_own_queue(queue: str, reply: Reply, spider: str) -> None:
    """Refuse a queue with a registered worker of a spider other than `spider`.

    Raises:
        ConfigError: a worker of another spider is registered.
    """
    for worker, value in (reply.workers or {}).items():
        other = Registration.parse(value).spider
        if other not in ("", spider):
            raise ConfigError(
                f"SCHEDULER_QUEUE_KEY: worker {worker} of the spider {other!r} is registered with the queue {queue!r}. "
                "Spiders cannot share a queue, since each would take the other's requests; set a key with %(spider)s "
                "in it. If that worker is dead, start its spider again, or delete the queue with `scrapy bloom clear "
                "--with-queue`"
            )
