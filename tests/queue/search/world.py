"""States of a searched crawl: the server, the workers, and an oracle.

A state is a tuple of numbers and an `Oracle`: equal servers and equal processes have one number. So that equal
situations are equal states, growing numbers are made small again after each move, see `normal`.

Sets of pages are bit masks; page 3 is the request b"3". A local request has a name that its process has for no other
one: b"3", b"03" and so on.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import count
from operator import or_
from typing import Any, NamedTuple

from scrapy_bloom.cache import TwoGenerationCache
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.steps import Steps
from scrapy_bloom.queue.keys import partition_of
from scrapy_bloom.queue.messages import Call
from scrapy_bloom.queue.queue import Queue
from scrapy_bloom.queue.worker import Worker, _Rounds
from tests.support.script_server import ScriptServer

QUEUES = ("q", "r")
# The filter of each queue: those of two spiders share one. The other queue of a crawl in two is q1.
FILTERS = {"q": "f", "r": "f", "q1": "f1"}
_NAMES = ("crawl", "workers", "dead-letter", "failed", "deaths", "absent")
# Milliseconds. Nothing expires by itself: a lease is longer than all scripts, and shorter than the time before.
LEASE = 10**9
NOW = 10**10


def key(queue: str, name: str) -> str:
    """Return a key of a queue."""
    return f"{{{queue}}}:{name}"


KEYS = {queue: (name, queue, *(key(queue, each) for each in _NAMES)) for queue, name in FILTERS.items()}


@cache
def fingerprint(page: int) -> bytes:
    """Return a fingerprint that puts even pages into the first of two queues, and odd ones into the other."""
    found = (b"%d %d" % (page, i) for i in count())
    return next(each for each in found if partition_of(each, 2) == page % 2)


def filter_id(server: ScriptServer, name: str) -> bytes | None:
    """Return the id of a filter, or None."""
    state = server.call("HGET", name, "state")
    return state and bytes(state.split()[0])


def registrations(server: ScriptServer, queue: str) -> dict[bytes, list[int]]:
    """Return the registrations of a queue's workers, see `queue.lua`."""
    raw = server.call("HGETALL", key(queue, "workers"))
    return {name: [*map(int, text.split())] for name, text in zip(raw[::2], raw[1::2], strict=True)}


def pages_of(mask: int) -> Iterator[int]:
    """Yield the pages of a mask."""
    page = 0
    while mask:
        if mask & 1:
            yield page
        mask >>= 1
        page += 1


def mask_of(members: Iterable[bytes]) -> int:
    """Return the mask of requests."""
    return union(1 << int(member) for member in members)


def union(masks: Iterable[int]) -> int:
    """Return the union of masks."""
    return reduce(or_, masks, 0)


@dataclass(frozen=True)
class Scenario:
    """A site, its workers, and their faults.

    Attributes:
        links: the children of each page.
        roots: the start pages of each worker.
        faults: how many faults there are at most.
        kinds: kinds of faults: `crash`, `lost` (a reply, or a call that is late or arrives twice), `false` (a living
            worker is presumed dead), and losses of the server, see `moves`.
        spare: workers that start when no other is left, and work is.
        late, anew: workers that may start at any time; the latter begin with a flush.
        stop: workers that a user may stop.
        want, batch, at_once: requests to hold, to offer in one sync, and to run at once.
        is_slow: links are found one at a time.
        overlaps: the engine goes on while a call is under way.
        persist: leave with `keep`.
        unfiltered, local, failing, poison: masks of pages that bypass the filter, cannot be serialized, may fail once,
            or kill their worker.
        max_deaths: deaths that make a dead letter.
        most: fetches of a page at most, if that is not the number that S5 says.
        spider: the spider of each worker; each spider has a queue, and all share the filter.
        parts: queues of the crawl.
    """

    links: tuple[tuple[int, ...], ...]
    roots: tuple[tuple[int, ...], ...]
    faults: int = 0
    kinds: tuple[str, ...] = ()
    spare: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    anew: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    want: int = 1
    batch: int = 8
    at_once: int = 1
    is_slow: bool = False
    overlaps: bool = False
    persist: bool = False
    unfiltered: int = 0
    local: int = 0
    failing: int = 0
    poison: int = 0
    max_deaths: int = 0
    most: int = 0
    spider: tuple[int, ...] = ()
    parts: int = 1

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of all spiders, or of the crawl."""
        return ("q", "q1") if self.parts > 1 else QUEUES[: max(self.spider, default=0) + 1]

    def queues_of(self, w: int) -> tuple[str, ...]:
        """Return the queues of a worker, the first one first."""
        return self.queues if self.parts > 1 else (QUEUES[self.spider[w] if self.spider else 0],)

    def filter_of(self, page: int) -> str:
        """Return the filter that knows a page."""
        return FILTERS[self.queues[page % self.parts]]

    def closure(self, mask: int, without: int = 0) -> int:
        """Return pages and all that they lead to, but not through some."""
        todo = list(pages_of(mask & ~without))
        for page in todo:
            for child in self.links[page]:
                if not (mask | without) >> child & 1:
                    mask |= 1 << child
                    todo.append(child)
        return mask


class Oracle(NamedTuple):
    """The expected outcome of a crawl; masks of pages unless said otherwise.

    Attributes:
        found: some worker has met a link to it.
        fetched: how often each page was fetched.
        faults: faults that are left.
        exempt: only the server had it, and lost it; or only a process had it that could not store it.
        owed: requests that bypass the filter, and must be fetched once more.
        failed: a fetch failed.
        is_lost, is_reported: the server has lost pages; a worker has said so.
        excused: workers whose death no other could notice.
        kills: workers that died of a page.
        deaths: of workers that had leased each page, counted where there are dead letters.
        again: how often a page may be fetched again after the faults so far.
    """

    found: int
    fetched: tuple[int, ...]
    faults: int
    exempt: int = 0
    owed: int = 0
    failed: int = 0
    is_lost: bool = False
    is_reported: bool = False
    excused: int = 0
    kills: int = 0
    deaths: tuple[int, ...] = ()
    again: int = 0


# A call that is late: its worker, the index of its queue, and the call.
Packet = tuple[int, int, Call]


class State(NamedTuple):
    """A state of the search: numbers of the server, the processes, an earlier server, and a call that is late."""

    server: int
    processes: tuple[int, ...]
    oracle: Oracle
    packet: int | None = None
    snapshot: int | None = None


class Source:
    """The filter to create; the search sets the function that finds its id."""

    next_id: Callable[[], int]
    hasher = FilterParameters(fingerprint="scrapy-redis").hasher

    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        """Return a filter for a thousand items."""
        return "p", self.next_id(), "secret", 0, "1000 1 32 4;1000 1 32 4;" if sizes else ""


@dataclass
class Process:
    """A worker's process.

    Attributes:
        life: new, alive, crashed, or gone.
        worker: its worker, while it is alive.
        progress: how many links of each running page were found, or that it was given back.
        pending: calls that are not executed yet, each with the index of its queue.
    """

    life: str
    worker: Worker | None = None
    progress: dict[bytes, int] = field(default_factory=dict)
    pending: tuple[tuple[int, Call], ...] = ()

    def copy(self) -> "Process":
        """Return a copy that shares no mutable part."""
        return Process(self.life, _copied(self.worker), dict(self.progress), self.pending)

    def freeze(self) -> Any:
        """Return a hashable value, equal for equal processes."""
        return self.life, _frozen(self.worker), tuple(sorted(self.progress.items())), self.pending


_PARTS = (Worker, Queue, Steps, TwoGenerationCache, _Rounds)
# Equal in all states, or known from the rest.
_CONSTANT = {"_terms", "_hash", "dropped"}


def _copied(value: Any) -> Any:
    if isinstance(value, _PARTS):
        result = object.__new__(type(value))
        result.__dict__.update({name: _copied(each) for name, each in vars(value).items()})
        return result
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return value.copy() if isinstance(value, dict | set | deque) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, _PARTS):
        return tuple(_frozen(each) for name, each in vars(value).items() if name not in _CONSTANT)
    if isinstance(value, list | deque):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return frozenset(value.items())
    return frozenset(value) if isinstance(value, set) else value
