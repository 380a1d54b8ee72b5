"""What a worker is told, what it holds, and its calls and their replies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol


class Entry(NamedTuple):
    """A serialized request and its score; the lowest score goes first."""

    score: float
    member: bytes


class Offer(NamedTuple):
    """A request on its way to the queue; without a fingerprint it bypasses the filter.

    Attributes:
        request: the request itself, if it cannot be serialized. Then it is only marked, and this process runs it;
            `member` is its name here.
    """

    score: float
    member: bytes
    fingerprint: bytes | None
    request: Any = None


class Outcome(Enum):
    """How the engine is done with a request."""

    DONE = "done"
    FAILED = "failed"
    UNREADABLE = "unreadable"


class Page(NamedTuple):
    """A request in the engine, or one that the engine is done with.

    Attributes:
        entry: the request.
        queue: the index of its queue.
        outcome: how the engine was done with it.
        end: the number of the first offer behind its links.
        is_requeued: after a rejoin, or given back, it waits in the queue again, so it is not this worker's any more.
    """

    entry: Entry
    queue: int
    outcome: Outcome = Outcome.DONE
    end: int = 0
    is_requeued: bool = False


class Phase(Enum):
    """The next step of a worker in a queue."""

    JOIN = "join"
    ALLOCATE = "allocate"
    WORK = "work"
    LEFT = "left"


class Call(NamedTuple):
    """A call of a script: its name, and its arguments behind the worker's name."""

    script: str
    arguments: tuple[Any, ...]


class Orders(NamedTuple):
    """What a worker asks of the next sync of a queue.

    Attributes:
        want: requests wanted.
        settled: pages that end at this number of an offer at the latest are acknowledged; None: those whose links are
            executed by this sync at the latest.
        is_idle: the worker holds nothing.
        may_suspect: it may take a request that another worker has died with.
        may_start: it may pop start data.
        must_call: call in any case.
    """

    want: int
    settled: float | None
    is_idle: bool
    may_suspect: bool
    may_start: bool
    must_call: bool


class Load(NamedTuple):
    """What a sync carries: its offers, the number of requeued requests, and the pages that it ends."""

    offers: int
    requeued: int
    ended: tuple[bytes, ...]


class Crawl(NamedTuple):
    """A queue's crawl, see `join.lua`: its id, run and origin, 1 if a worker has synced, and the id of its filter."""

    id: bytes = b""
    run: bytes = b""
    origin: bytes = b""
    has_synced: int = 0
    filter_id: bytes = b""


class News(NamedTuple):
    """The queue after a script: waiting requests, losses, lost requests, and whether it has itself found a loss.

    Then the forgets and lost shards of the filter.
    """

    waiting: int = 0
    losses: int = 0
    lost: int = 0
    found: int = 0
    forgets: int = 0
    lost_shards: int = 0


class DeadWorker(NamedTuple):
    """A worker that was presumed dead: its name, seconds since its last contact, requests that it had leased."""

    name: str
    seconds: float
    requests: int


class Others(NamedTuple):
    """What a script found out about the other workers.

    Attributes:
        is_quiet: nothing waits, nothing is leased, and each other worker was idle at its last sync.
        number: other workers.
        earliest: the earliest of their last syncs, in milliseconds of the server's clock.
        now: the server's clock.
        departures: registrations that have ended.
        dead: workers that it has presumed dead.
        dead_letters: requests that it has set aside, since too many workers had died with them.
    """

    is_quiet: bool
    number: int
    earliest: int
    now: int
    departures: int
    dead: tuple[DeadWorker, ...] = ()
    dead_letters: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, reply: list[Any] | None) -> "Others | None":
        """Return the values of a reply, or None if it has none."""
        if not reply:
            return None
        is_quiet, number, earliest, now, departures, dead, letters = reply
        workers = zip(dead[::3], dead[1::3], dead[2::3], strict=True)
        found = tuple(DeadWorker(name.decode(), ms / 1000, requests) for name, ms, requests in workers)
        return cls(bool(is_quiet), number, earliest, now, departures, found, tuple(letters))


class Synced(NamedTuple):
    """The reply to a sync that was executed.

    Attributes:
        load: what it carried.
        flags: of each offer whether it was new.
        taken: the requests that this worker has leased.
        suspect: the one of them that a worker has died with.
        problem: the error of a key of start data, or empty.
        others: what it found out about the other workers, if requests were wanted and none was taken.
    """

    load: Load
    flags: tuple[bool, ...]
    taken: tuple[Entry, ...]
    suspect: bytes | None
    problem: str
    others: Others | None


class Joined(NamedTuple):
    """The reply to a join, and what the server has kept.

    Attributes:
        has_calls: the server has executed all that it has told this worker, so no start request is lost.
        has_leases: the requests that the worker held wait again, and the filter is the same.
    """

    has_calls: bool
    has_leases: bool


class Rejoin(NamedTuple):
    """A reply that makes the worker join again, and its reason, see `sync.lua`; `stale` is that of a join."""

    reason: str


class Received(NamedTuple):
    """What the process has to know of a reply.

    Attributes:
        offers: the offers that have left the outbox, and whether each was new.
        others: what the script found out about the other workers.
        rejoin: the reason of a rejoin, or empty.
        problem: the error of a key of start data, or empty.
    """

    offers: Sequence[tuple[Offer, bool]] = ()
    others: Others | None = None
    rejoin: str = ""
    problem: str = ""


class JoinRefusedError(Exception):
    """Raised when a worker may not use the queue or the filter; the arguments are the reply to its join."""


class FilterSource(Protocol):
    """The filter that a join creates if there is none."""

    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        """Return parameters, a new id and secret, the TTL in ms, and the sizes, which take long to compute, or ''."""

    def hasher(self, secret: bytes) -> Callable[[bytes], bytes]:
        """Return the function from a fingerprint to its bytes in the filter with this secret."""


@dataclass(frozen=True)
class Terms:
    """What a worker's calls in all queues have in common.

    Attributes:
        lease: seconds after its last contact in which it is presumed dead.
        spider: the class path of the spider; workers of another one are refused.
        source: the filter to create if there is none.
        fingerprint_of: the fingerprint of a serialized request, or None if that bypasses the filter or is unreadable.
        queues: how many queues the crawl has.
        batch: requests that one sync offers at most.
        max_deaths: deaths of workers that make a request a dead letter; 0 is no bound.
        is_shared: other spiders use the filter, too, so that no crawl deletes it.
        starts: start data that one sync pops at most.
        start_kind: the type of their keys: list, set or zset.
    """

    lease: float
    spider: str
    source: FilterSource
    fingerprint_of: Callable[[bytes], bytes | None]
    queues: int = 1
    batch: int = 100
    max_deaths: int = 0
    is_shared: bool = False
    starts: int = 0
    start_kind: str = "list"
