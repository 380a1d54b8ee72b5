"""Inspect a queue, its audit and its workers without changing or registering anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scrapy_bloom._format import as_text
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.queue.members import Registration
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.client import Transport, transport_for
from scrapy_bloom.transport.commands import BinaryCommand, Command

# At one moment, or workers would change one of both between.
_READ = "return {redis.call('ZCARD', KEYS[1]), redis.call('HGETALL', KEYS[2])}"


class Audit(NamedTuple):
    """The number of requests that have vanished with their queue, and whether there were losses without a number, too.

    Of a queue that `is_shared` with scrapy-redis's scheduler nobody can tell whether it was deleted or emptied.
    """

    lost: int = 0
    has_losses: bool = False
    is_shared: bool = False


def items_of(values: Any) -> Sequence[tuple[Any, Any]]:
    """Return the fields of a hash, which a client gives as a dict over RESP3, and as a list otherwise."""
    return list(values.items()) if isinstance(values, dict) else list(zip(values[::2], values[1::2], strict=True))


def read_audit(client: Any, queue: str) -> Audit:
    """Return the audit of a queue that is a sorted set, or is not there; one without has counted nothing.

    Requests that have vanished since the last script are among the lost ones.
    """
    command = Command("EVAL", _READ, 2, queue, QueueKeys(queue).audit)
    waiting, raw = transport_for(client).execute([command])[0]
    fields = {as_text(name): int(as_text(value)) for name, value in items_of(raw)}
    is_shared = "shared" in fields
    missing = 0 if int(waiting) or is_shared else fields.get("waiting", 0)
    return Audit(fields.get("lost", 0) + missing, "loss" in fields or missing > 0, is_shared)


def mark_shared(client: Any, queue: str) -> None:
    """Note that a worker without the scripts takes requests of a queue, which is not lost when it is empty."""
    transport_for(client).execute([Command("HSET", QueueKeys(queue).audit, "shared", 1)])


def delete_audit(client: Any, queue: str) -> None:
    """Delete the audit of a queue that is deleted without the scripts."""
    transport_for(client).execute([Command("DEL", QueueKeys(queue).audit)])


# What queues are, and how each is counted: scrapy-redis has lists, too.
_COUNTS = {"zset": "ZCARD", "list": "LLEN", "none": None}


@dataclass(frozen=True)
class WorkerState:
    """A registered worker: its lease and its silence in seconds, how many requests it holds, and its spider's name.

    The silence is None where an earlier release does not tell when it was last heard of. A worker that does not
    crawl has the spider "".
    """

    name: str
    lease: float
    silent: float | None
    holds: int
    is_closing: bool
    spider: str = ""

    @property
    def is_silent(self) -> bool:
        """True if others take it for dead, or are about to."""
        return self.silent is not None and self.silent > self.lease


@dataclass(frozen=True)
class QueueState:
    """The queue at `key`, and what Redis calls it: requests that wait, its workers, and its dead letters.

    `lost` requests have vanished with the queue, as far as the number is known; it `has_losses` without that, too. A
    queue that `is_shared` with scrapy-redis's scheduler cannot tell of further ones.
    """

    key: str
    kind: str
    waiting: int
    dead_letters: int
    workers: tuple[WorkerState, ...]
    lost: int = 0
    has_losses: bool = False
    is_shared: bool = False

    @property
    def leased(self) -> int:
        """Requests that workers hold."""
        return sum(worker.holds for worker in self.workers)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing of it."""
        return not (self.waiting or self.dead_letters or self.workers)


def inspect(client: Any, key: str) -> QueueState:
    """Return the state of a queue; a value that is no registration is left out.

    Raises:
        WrongTypeError: it is no queue, neither of this package nor of scrapy-redis.
    """
    keys, transport = QueueKeys(key), transport_for(client)
    kind, dead, values, (seconds, microseconds) = transport.execute(
        [Command("TYPE", key), Command("ZCARD", keys.dead_letters), Command("HGETALL", keys.workers), Command("TIME")]
    )
    kind = as_text(kind)
    waiting = _count(transport, key, kind)
    registered = _registrations(values)
    held = transport.execute([Command("ZCARD", keys.leases(name)) for name in registered]) if registered else []
    now = int(seconds) + int(microseconds) / 1e6
    workers = tuple(
        _worker(name, registration, int(holds), now)
        for (name, registration), holds in zip(registered.items(), held, strict=True)
    )
    audit = Audit() if kind == "list" else read_audit(client, key)
    return QueueState(key, kind, waiting, int(dead), workers, *audit)


def first_request(client: Any, key: str) -> bytes | None:
    """Return the stored bytes of the request that goes first, or None: nothing waits, or the queue is a list."""
    transport = transport_for(client)
    if as_text(transport.execute([Command("TYPE", key)])[0]) != "zset":
        return None
    return next(iter(transport.execute([BinaryCommand("ZRANGE", key, 0, 0)])[0]), None)


def _count(transport: Transport, key: str, kind: str) -> int:
    if kind not in _COUNTS:
        raise WrongTypeError(f"the key {key!r} holds a {kind} that is not a queue: give the --queue")
    verb = _COUNTS[kind]
    return 0 if verb is None else int(transport.execute([Command(verb, key)])[0])


def _registrations(values: Any) -> dict[str, Registration]:
    found = {}
    for name, value in items_of(values):
        try:
            found[as_text(name)] = Registration.parse(as_text(value))
        except (ValueError, UnicodeDecodeError):
            continue
    return found


def _worker(name: str, registration: Registration, holds: int, now: float) -> WorkerState:
    heard = registration.last_heard
    silent = None if heard is None else max(0.0, now - heard)
    return WorkerState(name, registration.lease, silent, holds, registration.is_closing, registration.spider)
