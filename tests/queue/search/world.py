"""States of a searched crawl: the server, the workers, and an oracle.

A state is a tuple of numbers and an `Oracle`: equal servers and equal processes have one number. So that equal
situations are equal states, growing numbers are made small again after each move (`normal`): times are ranks, and
ids are the smallest that are free.

Sets of pages are bit masks; page 3 is the request b"3", and its own fingerprint. A local request has a name that its
process has for no other one: b"3", b"03" and so on.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.partitioned import PartitionedWorker
from scrapy_bloom.queue.values import Call
from scrapy_bloom.queue.worker import Worker
from tests.support.running import AnyWorker
from tests.support.script_server import ScriptServer

WorkerT = TypeVar("WorkerT", Worker, PartitionedWorker)


def filter_id(server: ScriptServer, name: str) -> bytes | None:
    """Return the id of a filter, or None."""
    state = server.call("HGET", name, "state")
    return state and bytes(state.split()[0])


def key(queue: str, name: str) -> str:
    """Return a key of a queue."""
    return f"{{{queue}}}:{name}"


_NAMES = ("crawl", "departed", "dead-letter", "failed", "deliveries", "suspects", "absent")
QUEUES = ("q", "r")
# The filter of each queue: those of two spiders share one. The other partition of the queue q is q1.
FILTERS = {"q": "f", "r": "f", "q1": "f1"}
KEYS = {queue: (name, queue, *(key(queue, each) for each in _NAMES)) for queue, name in FILTERS.items()}
NOW = 1_000_000
LEASE = 10**12


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
    mask = 0
    for member in members:
        mask |= 1 << int(member)
    return mask


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
        kinds: kinds of faults: `crash`, `lost` (a reply, or a call that is late), `false` (a living worker is presumed
            dead), and losses of the server: `flushall`, `queue`, `filter`, `lease`, `rollback`, `failed`.
        spare: workers that start when no other is left, and work is.
        late, anew: workers that may start at any time; the latter begin with a flush.
        stop: workers that a user may stop.
        want, batch, at_once: requests to hold, to offer in one exchange, and to run at once.
        is_slow: links are found one at a time.
        persist: leave with `keep`.
        unfiltered, local, failing, poison: masks of pages that bypass the filter, cannot be serialized, may fail once,
            or kill their worker.
        max_deliveries: deaths that make a dead letter.
        most: fetches of a page at most, if that is not one more than faults.
        spider: the spider of each worker; each spider has a queue, and all share the filter.
        partitions: partitions of the queue.
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
    persist: bool = False
    unfiltered: int = 0
    local: int = 0
    failing: int = 0
    poison: int = 0
    max_deliveries: int = 0
    most: int = 0
    spider: tuple[int, ...] = ()
    partitions: int = 1

    @property
    def bound(self) -> int:
        """Fetches of a page at most: without faults one, and one more for each."""
        return self.most or 1 + self.faults

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of the spiders, and of all partitions."""
        return ("q", "q1") if self.partitions > 1 else QUEUES[: max(self.spider, default=0) + 1]

    def queue_of(self, w: int) -> str:
        """Return the queue of a worker, in the first partition."""
        return QUEUES[self.spider[w] if self.spider else 0]

    def queues_of(self, w: int) -> tuple[str, ...]:
        """Return the queues of a worker, of all partitions."""
        return self.queues if self.partitions > 1 else (self.queue_of(w),)

    def filter_of(self, page: int) -> str:
        """Return the filter that knows a page."""
        return "f1" if self.partitions > 1 and (crc32(b"%d" % page) >> 16) % self.partitions else "f"

    def closure(self, mask: int) -> int:
        """Return pages and all that they lead to."""
        todo = list(pages_of(mask))
        for page in todo:
            for child in self.links[page]:
                if not mask >> child & 1:
                    mask |= 1 << child
                    todo.append(child)
        return mask


class Oracle(NamedTuple):
    """The expected outcome of a crawl; masks of pages unless said otherwise.

    Attributes:
        found: some worker has met a link to it.
        fetched: how often each page was fetched.
        exempt: only the server had it, and lost it.
        owed: requests that bypass the filter, and must be fetched once more.
        failed: a fetch failed.
        faults: faults that are left.
        is_lost, is_reported: the server has lost pages; a worker has said so.
        excused: workers whose death no other could notice.
        kills: workers that died of a page.
        deaths: of workers that had leased each page, counted where there are dead letters.
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


# A call that is late: its worker, the index of its partition, and the call.
Packet = tuple[int, int, Call]


class State(NamedTuple):
    """A state of the search: numbers of the server, the processes, an earlier server, and a call that is late."""

    server: int
    processes: tuple[int, ...]
    oracle: Oracle
    packet: int | None = None
    snapshot: int | None = None


@dataclass
class Source:
    """The filter to create; the search sets its id, the smallest that is free."""

    id: int = 1

    def to_create(self, *, sizes: bool) -> tuple[Any, ...]:
        """Return a filter for ten items."""
        return "p", self.id, "secret", 0, "1000 1 32 4;1000 1 32 4;" if sizes else ""

    hasher = FilterParameters(fingerprint="scrapy-redis").hasher


@dataclass
class Process:
    """A worker's process.

    Attributes:
        life: new, alive, crashed, or gone.
        worker: its worker, while it is alive.
        progress: how many links of each running page were found.
        pending: calls of a round that are not executed yet, each with the index of its partition.
    """

    life: str
    worker: AnyWorker | None = None
    progress: dict[bytes, int] = field(default_factory=dict)
    pending: tuple[tuple[int, Call], ...] = ()

    def copy(self) -> "Process":
        """Return a copy that shares no mutable part."""
        return Process(self.life, self.worker and _copy(self.worker), dict(self.progress), self.pending)

    def freeze(self) -> Any:
        """Return a hashable value, equal for equal processes."""
        return self.life, self.worker and _frozen(self.worker), tuple(sorted(self.progress.items())), self.pending


def _copy(worker: AnyWorker) -> AnyWorker:
    if isinstance(worker, Worker):
        return _copy_part(worker)
    other = _copy_values(worker)
    other.parts = [_copy_part(part) for part in worker.parts]
    return other


def _copy_part(worker: Worker) -> Worker:
    other = _copy_values(worker)
    other.repeats = object.__new__(type(worker.repeats))
    other.repeats.__dict__.update(worker.repeats.__dict__)
    other.repeats._young, other.repeats._old = worker.repeats._young.copy(), worker.repeats._old.copy()
    return other


def _copy_values(worker: WorkerT) -> WorkerT:
    other: WorkerT = object.__new__(type(worker))
    for name, value in worker.__dict__.items():
        other.__dict__[name] = value.copy() if type(value) in (list, dict, set, deque) else value
    return other


def _frozen(worker: AnyWorker) -> Any:
    if isinstance(worker, Worker):
        return _frozen_part(worker)
    w = worker
    return (
        tuple(
            (_frozen_part(p), p.quiet, p.is_stale, p.is_gone, p.is_deleted, p.is_last_chance, p.origin) for p in w.parts
        ),
        w.is_stopping,
        tuple(p.waiting > 0 and not p._is_dry for p in w.parts),
        frozenset(w._wishes(1)),
        frozenset(w._silent),
        tuple((member, tuple(counts)) for member, counts in w._began.items()),
        tuple((tuple(ends), waiting) for ends, waiting in w._waiting),
        tuple(w._unsettled),
        w._is_settling,
        tuple(w._ends),
        frozenset(w._to_confirm),
        w._asked,
        frozenset(w._visits),
        tuple(w._quiet),
        w._is_quiet,
        w._has_compared,
        w._leaves_as,
    )


def _frozen_part(w: Worker) -> Any:
    return (
        w.phase,
        w.crawl,
        w.run,
        w.filter_id,
        frozenset(w.repeats._young),
        tuple(w.outbox),
        tuple(w.ready),
        frozenset(w.running.items()),
        tuple(w.finished.items()),
        w.is_stopping,
        w.may_finish,
        w._is_new,
        w._flush,
        w._sizes,
        tuple(w.local.items()),
        tuple(w.local_ready),
        tuple(w.unmarked.items()),
        tuple(w._returns),
        tuple(w._kept),
        w._suspect,
        w._has_started,
        w._joins,
        w._stamp,
        w._under_way,
        w.claims,
        tuple(w.relied),
        w._leaves_as,
        w._has_lost_a_leave,
        w._quiet_since,
        w.losses,
        w.forgets,
        w.lost_shards,
    )
