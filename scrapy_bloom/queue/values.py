"""The values that a worker of a queue works with."""

import math
from collections.abc import Callable
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
        request: the request itself, if it cannot be serialized; `member` is its name in this process then.
    """

    score: float
    member: bytes
    fingerprint: bytes | None
    request: Any = None


class Phase(Enum):
    """The next step of a worker."""

    JOIN = "join"
    RESET = "reset"
    ALLOCATE = "allocate"
    WORK = "work"
    LEFT = "left"


class Outcome(Enum):
    """How the engine is done with a request."""

    DONE = "done"
    FAILED = "failed"
    UNREADABLE = "unreadable"


class Trouble(Enum):
    """The trouble that a rejoin finds."""

    LOST = "lost"
    FLUSHED = "flushed"
    ROLLED_BACK = "rolled back"
    PRESUMED_DEAD = "presumed dead"
    FILTER_LOST = "filter lost"
    STARTS_LOST = "starts lost"
    LINKS_LOST = "links lost"


class RefusedError(Exception):
    """Raised when a worker may not use the queue or the filter; the arguments are the reply to its join."""


@dataclass(frozen=True)
class Page:
    """A request in the engine, or one of those it is done with.

    Attributes:
        pushes, drops: the worker's counts when the request began; a page relies on the ones counted since.
        has_dropped: while it ran the cache dropped a link.
        outcome: None while it runs.
        behind: sequence number of the last offer before its end, infinite while a local request is left.
    """

    entry: Entry
    pushes: int
    drops: int
    has_dropped: bool = False
    is_tainted: bool = False
    outcome: Outcome | None = None
    behind: float = math.inf


class Call(NamedTuple):
    """A call of a script, and its load.

    Attributes:
        script: its name.
        arguments: behind the worker's name.
        ended: the finished requests that it acknowledges, keeps or sets aside.
        returns: the requests that it returns.
        kept: how many requests of earlier runs it queues again.
        marks: fingerprints that it marks.
        is_idle: the worker held nothing.
    """

    script: str
    arguments: tuple[Any, ...]
    ended: tuple[bytes, ...] = ()
    returns: tuple[Entry, ...] = ()
    kept: int = 0
    marks: tuple[bytes, ...] = ()
    is_idle: bool = False


# A call, and the index of its partition.
IndexedCall = tuple[int, Call]


class Orders(NamedTuple):
    """Orders of `PartitionedWorker` to the worker of one partition; by default it is alone.

    Attributes:
        crawl: for a join, of the crawl in the first partition its id, run and origin, and `1` to replace a later one.
        unsure: pages not to be acknowledged: another partition may have lost their links.
        must_call: make a call even without news.
        is_settling: finished requests wait for local ones, or their links, of other partitions.
        may_start: a suspect may start.
        is_idle: the other partitions' workers hold nothing.
        relied: the crawl, and the stamps of all partitions.
    """

    crawl: tuple[bytes, bytes, bytes, bytes] = (b"", b"", b"", b"")
    unsure: frozenset[bytes] = frozenset()
    must_call: bool = False
    is_settling: bool = False
    may_start: bool = True
    is_idle: bool = True
    relied: bytes = b""


class FilterSource(Protocol):
    """The filter that a join creates if there is none."""

    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        """Return parameters, a new id and secret, the TTL in ms, and the sizes, which take long to compute, or ''."""

    def hasher(self, secret: bytes) -> Callable[[bytes], bytes]:
        """Return the function from a fingerprint to its bytes in the filter with this secret."""


class Reaped(NamedTuple):
    """A worker that was presumed dead: its name, the seconds since its last contact, its requests."""

    worker: str
    seconds: float
    requests: int
