"""Worker processes that add batches of new items to filters, and the costs of an item."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import redis

from benchmarks.harness.counters import Place, Share, add_share
from benchmarks.harness.crew import Crew
from devtools.servers import cpu_seconds

BATCH = 100


class Cost(NamedTuple):
    """Seconds for an item: by the clock times the number of workers, CPU of the workers, CPU of the servers."""

    clock: float
    client: float
    server: float


class Turn(NamedTuple):
    """Batches for each of some workers, in a place given by its index; their numbers begin at `start`."""

    place: int
    workers: int
    batches: int
    start: int

    @property
    def items(self) -> int:
        """The items of all workers."""
        return self.workers * self.batches * BATCH


@contextmanager
def adding(places: Sequence[Place]) -> Iterator[Callable[[Share], int]]:
    """Open each filter in a worker process; return the function that adds a share to one of them."""
    with ExitStack() as stack:
        filters = [stack.enter_context(place.opened()) for place in places]
        yield lambda share: add_share(filters[share.place], share)


def take(together: Crew, turn: Turn, clients: Sequence[redis.Redis]) -> Cost:
    """Let the workers take a turn, and return its costs; the clients are those of all servers of the place."""
    each = turn.items // turn.workers
    starts = range(turn.start, turn.start + turn.items, each)
    before = sum(map(cpu_seconds, clients))
    work = together.work([Share(turn.place, start, start + each, BATCH) for start in starts])
    used = sum(map(cpu_seconds, clients)) - before
    return Cost(work.seconds * turn.workers / turn.items, work.cpu / turn.items, used / turn.items)
