"""Inspect a queue, its audit and its workers without changing anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scrapy_bloom._format import as_text
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.queue.operations import Registration
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import BinaryCommand, Command
from scrapy_bloom.transport.transport import Transport

# In one script, so that no worker changes either key in between.
_READ = "return {redis.call('ZCARD', KEYS[1]), redis.call('HGETALL', KEYS[2])}"


class Audit(NamedTuple):
    """Losses of a queue.

    Attributes:
        lost: requests that have vanished with the queue, as far as the number is known.
        has_losses: there were losses, with or without a known number.
        is_shared: scrapy-redis's scheduler takes requests, too, so that an empty queue is no loss.
    """

    lost: int = 0
    has_losses: bool = False
    is_shared: bool = False


def items_of(values: Any) -> Sequence[tuple[Any, Any]]:
    """Return a hash's fields from a client's reply: a dict over RESP3, else a list."""
    return list(values.items()) if isinstance(values, dict) else list(zip(values[::2], values[1::2], strict=True))


def read_audit(client: Any, queue: str) -> Audit:
    """Return the audit of a sorted set, including losses since the last script."""
    command = Command("EVAL", _READ, 2, queue, QueueKeys(queue).audit)
    waiting, raw = transport_for(client).execute([command])[0]
    fields = {as_text(name): int(as_text(value)) for name, value in items_of(raw)}
    is_shared = "shared" in fields
    missing = 0 if int(waiting) or is_shared else fields.get("waiting", 0)
    return Audit(fields.get("lost", 0) + missing, "loss" in fields or missing > 0, is_shared)


def mark_shared(client: Any, queue: str) -> None:
    """Note that scrapy-redis's scheduler shares a queue: an empty queue is no loss."""
    transport_for(client).execute([Command("HSET", QueueKeys(queue).audit, "shared", 1)])


def delete_audit(client: Any, queue: str) -> None:
    """Delete the audit of a queue whose deletion is no loss."""
    transport_for(client).execute([Command("DEL", QueueKeys(queue).audit)])


# The command that counts the requests of each type of queue; scrapy-redis has lists, too.
_COUNTS = {"zset": "ZCARD", "list": "LLEN", "none": None}


@dataclass(frozen=True)
class RegisteredWorker:
    """A registered worker.

    Attributes:
        name: the worker's name.
        lease: its lease in seconds.
        silent: seconds since its last heartbeat, or None if an earlier release registered it.
        holds: requests that it has leased.
        is_closing: it closes the queue.
        spider: the name of its spider, or "" if it does not crawl.
    """

    name: str
    lease: float
    silent: float | None
    holds: int
    is_closing: bool
    spider: str = ""

    @property
    def is_silent(self) -> bool:
        """True if its lease has passed, so that other workers presume it dead."""
        return self.silent is not None and self.silent > self.lease


@dataclass(frozen=True)
class QueueState:
    """The state of a queue.

    Attributes:
        key: the key of the queue.
        kind: its type in Redis.
        waiting: waiting requests.
        dead_letters: dead letters.
        workers: registered workers.
        lost: requests that have vanished with the queue, as far as the number is known.
        has_losses: there were losses, with or without a known number.
        is_shared: scrapy-redis's scheduler takes requests, too, so that further losses are not
            detected.
    """

    key: str
    kind: str
    waiting: int
    dead_letters: int
    workers: tuple[RegisteredWorker, ...]
    lost: int = 0
    has_losses: bool = False
    is_shared: bool = False

    @property
    def leased(self) -> int:
        """The number of leased requests."""
        return sum(worker.holds for worker in self.workers)

    @property
    def is_empty(self) -> bool:
        """True if the queue has no requests, dead letters or workers, and no record of losses or another scheduler."""
        return not (self.waiting or self.dead_letters or self.workers or self.has_losses or self.is_shared)


def inspect(client: Any, key: str) -> QueueState:
    """Return the state of a queue; malformed registrations are skipped.

    Raises:
        WrongTypeError: the key holds a type that no queue has.
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
    """Return the first request's stored bytes, or None from an empty queue or a list."""
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


def _worker(name: str, registration: Registration, holds: int, now: float) -> RegisteredWorker:
    heard = registration.last_heard
    silent = None if heard is None else max(0.0, now - heard)
    return RegisteredWorker(name, registration.lease, silent, holds, registration.is_closing, registration.spider)
