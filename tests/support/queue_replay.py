"""Each distinct state and operation of small searches, with the twin's reply and its state afterwards.

Operations that no search has are tried in the same states, and so are states with a request from a producer.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import cycle
from typing import Any, NamedTuple, Self

from scrapy_bloom._format import as_bytes
from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.operations import Reply
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.commands import Command
from tests.support.queue_memory import QueueMemory, Registration
from tests.support.queue_model import LEASE, NUMBER, OLDEST
from tests.support.queue_scenarios import SCENARIOS
from tests.support.queue_search import search
from tests.support.replay import State

# Searches of a second or two, which cover nearly every reply of the scripts.
NAMES = (
    *(name for name in SCENARIOS if name.startswith("no fault")),
    *("lost, a tree", "crash, a tree", "crash twice", "two queues, any fault", "crash or lost, equal requests"),
    *("crash or lost, a request that leads to itself", "lost, one request a sync, equal requests"),
    *("false, one request a sync", "flush, one request a sync", "failover"),
    *("the queue is deleted", "dead letters after two deaths"),
    "a shared filter, begun anew by another, a crash",
)


class QueueCase(NamedTuple):
    """An operation on a state of the twin, its reply, and the state afterwards.

    Heartbeats and the time of a loss are counters in the twin and times on a server. Only their changes are compared:
    the failure detector and the audit use nothing else.
    """

    memory: QueueMemory
    operation: ops.QueueOperation
    reply: Reply
    later: QueueMemory

    @classmethod
    def of(cls, state: bytes, operation: ops.QueueOperation) -> Self:
        """Return the case of a frozen state."""
        later = _thawed(state)
        return cls(_thawed(state), operation, later.apply(operation), later)

    def before(self, key: str) -> State:
        """Return the state before the operation."""
        return _state(self.memory, QueueKeys(key))

    def after(self, key: str) -> State:
        """Return the twin's state after the operation."""
        return _state(self.later, QueueKeys(key))

    def command(self, key: str, now: int) -> Command:  # noqa: ARG002  # no operation has a time
        """Return the command."""
        return self.operation.command(QueueKeys(key))

    def difference(self, reply: Any, found: State, key: str) -> str:
        """Return how a server's reply and state differ from the twin's; "" if they are equal."""
        keys = QueueKeys(key)
        actual = self._outcome(Reply.parse(reply, as_bytes), found, keys)
        expected = self._outcome(self.reply, self.after(key), keys)
        parts = [f"{name}: {actual[name]}, not {expected[name]}" for name in expected if actual[name] != expected[name]]
        return "\n".join([*parts, f"after {self.operation}", f"on {vars(self.memory)}"]) if parts else ""

    def _outcome(self, reply: Reply, state: State, keys: QueueKeys) -> dict[str, object]:
        """Return the parts to compare."""
        values: dict[str, Any] = dict(state.values)
        workers = {name.decode(): value.decode() for name, value in values.pop(keys.workers, {}).items()}
        audit = dict(values.pop(keys.audit, {}))
        loss, earlier = audit.pop(b"loss", None), self.memory.audit.fields().get(b"loss")
        return {
            "reply": comparable(reply),
            "values": values,
            "expiries": state.hours,
            "workers": without_beats(workers),
            "changed workers": changed(self.memory.workers, workers),
            "audit": audit,
            "loss": (loss is not None, loss != earlier),
        }


def comparable(reply: Reply) -> Reply:
    """Return a reply without heartbeats and times."""
    reply = replace(reply, loss=int(reply.loss > 0))
    return reply if reply.workers is None else replace(reply, workers=without_beats(reply.workers))


def without_beats(workers: Mapping[str, str]) -> dict[str, str]:
    """Return registrations without heartbeats."""
    return {name: str(replace(Registration.parse(value), beats=0)) for name, value in workers.items()}


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, bool]:
    """Return whether the registration of each remaining worker has changed."""
    return {name: before[name] != after[name] for name in before.keys() & after.keys()}


def frozen(memory: QueueMemory) -> bytes:
    """Return the state of a twin."""
    names = vars(QueueMemory())
    return pickle.dumps({name: part for name, part in vars(memory).items() if name in names})


def cases() -> Iterator[QueueCase]:
    """Yield the operations of the searches, the same beside a producer, and further ones."""
    return (QueueCase.of(state, operation) for state, operation in _met())


def neighbours(state: bytes, operation: ops.QueueOperation, turn: int) -> Iterator[tuple[bytes, ops.QueueOperation]]:
    """Yield one of the further operations on a state, in turn, and rare operations beside a producer."""
    memory, worker = _thawed(state), operation.worker
    other = next((name for name in memory.workers if name != worker), "nobody")
    text = memory.workers.get(worker)
    last = Registration.parse(text).number if text else 0
    yield state, _FURTHER[turn % len(_FURTHER)](_Place(memory, worker, other, last, last))
    if not isinstance(operation, _OFTEN):
        yield _fed(state), operation


def _state(memory: QueueMemory, keys: QueueKeys) -> State:
    return State({**memory.sorted_sets(keys), **memory.hashes(keys)})


@cache
def _met() -> list[tuple[bytes, ops.QueueOperation]]:
    found: dict[tuple[bytes, ops.QueueOperation], None] = {}

    class Recorder(QueueMemory):
        """The twin, which records its states and operations."""

        def apply(self, operation: Any) -> Reply:
            found[frozen(self), operation] = None
            return super().apply(operation)

    for name in NAMES:
        violation = search(SCENARIOS[name], memory=Recorder).violation
        assert violation is None, violation
    states = dict.fromkeys(state for state, _ in found)
    further = ((state, make(_Place(_thawed(state)))) for state, make in zip(states, cycle(_FURTHER), strict=False))
    beside = ((_fed(state), operation) for state, operation in found if not isinstance(operation, _OFTEN))
    spiders = ((_of_a_spider(state), ops.Join("nobody", LEASE, NUMBER, True, "news")) for state in states)
    return list(dict.fromkeys((*found, *further, *beside, *spiders)))


def _fed(state: bytes) -> bytes:
    """Return a state with a request of a producer in the queue."""
    memory = _thawed(state)
    memory.queue[b"of a producer"] = 0.5
    return frozen(memory)


def _of_a_spider(state: bytes) -> bytes:
    """Return a state whose workers have a spider."""
    memory = _thawed(state)
    memory.workers = {name: f"{text} @shop" for name, text in memory.workers.items()}
    return frozen(memory)


def _thawed(state: bytes) -> QueueMemory:
    memory = QueueMemory()
    vars(memory).update(pickle.loads(state))  # noqa: S301  # frozen above
    return memory


# The most frequent operations. A producer's request changes the outcome of the others, joins and ends.
_OFTEN = (ops.Sync, ops.ResolveInDoubt)


class _Place(NamedTuple):
    """A state, two of its workers, and numbers for their syncs."""

    memory: QueueMemory
    worker: str = "w0"
    other: str = "w1"
    oldest: int = OLDEST
    number: int = NUMBER

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(self.memory.workers)

    @property
    def dead_letters(self) -> tuple[bytes, ...]:
        return tuple(self.memory.dead_letters)


# Operations that no search has, late ones, and those of an unregistered worker.
_FURTHER: tuple[Callable[[_Place], ops.QueueOperation], ...] = (
    lambda at: ops.Heartbeat(at.worker),
    lambda _: ops.Heartbeat("nobody"),
    lambda at: ops.Flush(at.worker),
    lambda at: ops.Flush(at.worker, lease_seconds=LEASE),
    lambda at: ops.Flush("nobody", "zset", at.workers, LEASE),
    lambda at: ops.Flush(at.worker, "zset", at.workers),
    lambda at: ops.Flush("nobody", "zset", at.workers[1:]),
    lambda at: ops.Flush(at.worker, "list", at.workers),
    lambda at: ops.Redrive(at.worker, at.dead_letters),
    lambda at: ops.Redrive("nobody", at.dead_letters),
    lambda at: ops.Sync(at.worker, at.oldest - 1, 1),
    lambda at: ops.Sync(at.other, at.number + 2, 1),
    lambda at: ops.ResolveInDoubt(at.worker, at.oldest - 1, ()),
    lambda at: ops.Requeue("nobody", at.worker, at.memory.workers.get(at.worker, ""), LEASE, at.number),
    lambda at: ops.Join("nobody", LEASE, at.number, is_new=True),
    lambda at: ops.Join(at.worker, LEASE, at.number, is_new=False),
    lambda _: ops.ReadDeadLetters("nobody", 0, 10),
)
