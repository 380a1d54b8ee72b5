"""Each distinct state of small searches with each operation that they meet in it, and what the twin makes of it.

A case stands alone: a server is given its state as a whole, however seldom random operations would come there. The same
states are tried with operations that no search has, and with a request in the queue that no worker knows.
"""

import pickle
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from typing import Any, NamedTuple

from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.operations import Answer
from tests.support.queue_memory import QueueMemory
from tests.support.queue_scenarios import SCENARIOS
from tests.support.queue_search import LEASE, NUMBER, OLDEST, Search

# Searches of a second or two, which meet between them nearly every reply of the scripts.
NAMES = (
    *(name for name in SCENARIOS if name.startswith("no fault")),
    *("lost, a tree", "crash, a tree", "crash twice", "two queues, any fault", "crash or lost, equal requests"),
    *("crash or lost, a request that leads to itself", "lost, one thing an exchange, equal requests"),
    *("false, one thing an exchange", "flush, one thing an exchange", "failover"),
    *("the queue is deleted", "dead letters after two deaths"),
)


class Case(NamedTuple):
    """An operation on a state of the twin, its answer, and the state after it."""

    before: QueueMemory
    operation: ops.Operation
    answer: Answer
    after: QueueMemory


def cases() -> Iterator[Case]:
    """Carry out in the twin what the searches meet, what they would meet beside a producer, and further operations."""
    for state, operation in _met():
        memory = _thawed(state)
        yield Case(_thawed(state), operation, memory.apply(operation), memory)


@cache
def _met() -> list[tuple[bytes, ops.Operation]]:
    found: dict[tuple[bytes, ops.Operation], None] = {}

    class Recorder(QueueMemory):
        """The twin, which notes its states and what is asked of it."""

        def apply(self, operation: Any) -> Answer:
            found[pickle.dumps(vars(self)), operation] = None
            return super().apply(operation)

    for name in NAMES:
        violation = Search(SCENARIOS[name], memory=Recorder).run().violation
        assert violation is None, violation
    states = dict.fromkeys(state for state, _ in found)
    further = ((state, make(_thawed(state))) for state, make in zip(states, cycle(_FURTHER), strict=False))
    beside = ((_fed(state), operation) for state, operation in found if not isinstance(operation, _OFTEN))
    spiders = ((_of_a_spider(state), ops.Join("nobody", LEASE, NUMBER, True, "news")) for state in states)
    return list(dict.fromkeys((*found, *further, *beside, *spiders)))


def _fed(state: bytes) -> bytes:
    """Return a state in which something has been queued that none of the workers knows."""
    memory = _thawed(state)
    memory.queue[b"of a producer"] = 0.5
    return pickle.dumps(vars(memory))


def _of_a_spider(state: bytes) -> bytes:
    """Return a state whose workers have the name of a spider."""
    memory = _thawed(state)
    memory.workers = {name: f"{text} @shop" for name, text in memory.workers.items()}
    return pickle.dumps(vars(memory))


def _thawed(state: bytes) -> QueueMemory:
    memory = QueueMemory()
    vars(memory).update(pickle.loads(state))  # noqa: S301  # what was noted above
    return memory


# What workers do most of the time. What others queue beside them changes the other steps: joins and ends.
_OFTEN = (ops.Exchange, ops.Settle)
# Steps that no search has, and steps that come late or from nobody.
_FURTHER: tuple[Callable[[QueueMemory], ops.Operation], ...] = (
    lambda _: ops.Heartbeat("w0"),
    lambda _: ops.Heartbeat("nobody"),
    lambda _: ops.Flush("w0"),
    lambda memory: ops.Flush("w0", "zset", tuple(memory.workers)),
    lambda memory: ops.Flush("nobody", "zset", tuple(memory.workers)[1:]),
    lambda memory: ops.Flush("w0", "list", tuple(memory.workers)),
    lambda memory: ops.Redrive("w0", tuple(memory.dead_letters)),
    lambda memory: ops.Redrive("nobody", tuple(memory.dead_letters)),
    lambda _: ops.Exchange("w0", OLDEST - 1, 1),
    lambda _: ops.Exchange("w1", NUMBER + 2, 1),
    lambda _: ops.Settle("w0", OLDEST - 1, ()),
    lambda memory: ops.Requeue("nobody", "w0", memory.workers.get("w0", ""), LEASE, NUMBER),
    lambda _: ops.Join("nobody", LEASE, NUMBER, is_new=True),
    lambda _: ops.ReadDeadLetters("nobody", 0, 10),
)
