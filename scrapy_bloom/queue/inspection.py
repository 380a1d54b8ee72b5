"""Inspect a queue, its losses and its workers without changing anything."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Self

from redis.client import NEVER_DECODE

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.text import as_text, plural
from scrapy_bloom.transport.scripts import Script

_INSPECT = Script("inspect")
# The types of queues; scrapy-redis has lists, too.
_KINDS = ("zset", "list", "none")
# The fields of a crawl that are text.
_TEXTS = "id", "filter", "spider"


@dataclass(frozen=True)
class RegisteredWorker:
    """A registered worker.

    Attributes:
        name: the worker's name.
        lease: its lease in seconds.
        silent: seconds since its last heartbeat.
        synced: seconds since its last sync, None before the first one.
        holds: requests that it has leased.
        spider: the class of its spider.
    """

    name: str
    lease: float
    silent: float
    synced: float | None
    holds: int
    spider: str

    @property
    def is_silent(self) -> bool:
        """True if its lease has passed, so that other workers presume it dead."""
        return self.silent > self.lease

    @classmethod
    def of(cls, name: str, text: bytes, spider: str, now: int) -> Self:
        """Return the worker of a registration, see `queue.lua`."""
        held, _, contact, synced, lease, _ = map(int, text.split())
        silent, since_sync = max(0, now - contact) / 1000, max(0, now - synced) / 1000
        return cls(name, lease / 1000, silent, since_sync if synced else None, held, spider)


@dataclass(frozen=True)
class QueueState:
    """The state of a queue.

    Attributes:
        key: the key of the queue.
        kind: its type in Redis.
        waiting: waiting requests.
        dead_letters: dead letters.
        failed: failed requests that are kept for the next run.
        lost: requests that have vanished with the queue, as far as the number is known.
        has_losses: there were losses, with or without a known number.
        crawl: the id of the crawl, or "".
        filter: the key of the workers' filter, or "".
        partitions: partitions of the crawl, or 0.
        workers: registered workers.
    """

    key: str
    kind: str
    waiting: int
    dead_letters: int
    failed: int
    lost: int
    has_losses: bool
    crawl: str
    filter: str
    partitions: int
    workers: tuple[RegisteredWorker, ...]

    @property
    def has_live_workers(self) -> bool:
        """True if there is a worker that others do not presume dead."""
        return not all(worker.is_silent for worker in self.workers)

    @property
    def leased(self) -> int:
        """The number of leased requests."""
        return sum(worker.holds for worker in self.workers)

    @property
    def loss(self) -> str:
        """The number of lost requests, as far as it is known."""
        return f"at least {plural(self.lost, 'request')}" if self.lost else "an unknown number of requests"

    @property
    def is_empty(self) -> bool:
        """True if there are no requests, and no record of a crawl."""
        return not (self.waiting or self.dead_letters or self.failed or self.crawl)


def inspect(client: Any, queue: str) -> QueueState:
    """Return the state of a queue. A replica will do.

    Args:
        client: a `redis.Redis` or `redis.RedisCluster`; nothing is retried.
        queue: the queue's key.

    Returns:
        Its state, read at once.

    Raises:
        WrongTypeError: the key holds a type that no queue has.
    """
    keys = QueueKeys(queue)
    reply: list[Any] = _INSPECT.call(client, [queue, keys.crawl, keys.workers, keys.dead_letters, keys.failed], [])
    kind = as_text(reply[0])
    waiting, dead_letters, failed, crawl, workers, now = reply[1:]
    if kind not in _KINDS:
        raise WrongTypeError(f"the key {queue!r} holds a {kind} that is not a queue: give the --queue")
    fields = {name.decode(errors="replace"): value for name, value in zip(crawl[::2], crawl[1::2], strict=True)}
    crawl_id, filter_key, spider = (fields.get(name, b"").decode(errors="replace") for name in _TEXTS)
    # The next script of a worker would note this loss.
    missing = max(0, int(fields.get("waiting", 0)) - waiting)
    return QueueState(
        key=queue,
        kind=kind,
        waiting=waiting,
        dead_letters=dead_letters,
        failed=failed,
        lost=int(fields.get("lost", 0)) + missing,
        has_losses=missing > 0 or int(fields.get("losses", 0)) > 0,
        crawl=crawl_id,
        filter=filter_key,
        partitions=int(fields.get("queues", 0)),
        workers=tuple(
            RegisteredWorker.of(name.decode(errors="replace"), text, spider, now)
            for name, text in sorted(zip(workers[::2], workers[1::2], strict=True))
        ),
    )


def sum_of(states: Sequence[QueueState]) -> QueueState:
    """Return the sum of a queue's partitions, with the key of the first one; a worker is registered with each."""
    registered = sorted((each for state in states for each in state.workers), key=attrgetter("name"))
    counts = ("waiting", "dead_letters", "failed", "lost")
    return replace(
        states[0],
        has_losses=any(state.has_losses for state in states),
        workers=tuple(_sum_of_workers([*each]) for _, each in groupby(registered, attrgetter("name"))),
        **{name: sum(getattr(state, name) for state in states) for name in counts},
    )


def _sum_of_workers(registered: Sequence[RegisteredWorker]) -> RegisteredWorker:
    """Return the sum of one worker's registrations, with the longest silence."""
    synced = max((each.synced for each in registered if each.synced is not None), default=None)
    silent, holds = max(each.silent for each in registered), sum(each.holds for each in registered)
    return replace(registered[0], silent=silent, synced=synced, holds=holds)


def first_request(client: Any, queue: str) -> bytes | None:
    """Return the first request's stored bytes, or None from a queue without requests."""
    commands: dict[str, tuple[str | int, ...]] = {
        # Start data have the lowest score.
        "zset": ("ZRANGEBYSCORE", queue, "(-inf", "+inf", "LIMIT", 0, 1),
        "list": ("LRANGE", queue, 0, 0),
    }
    if (command := commands.get(as_text(client.type(queue)))) is None:
        return None
    found: list[bytes] = client.execute_command(*command, **{NEVER_DECODE: []})
    return found[0] if found else None
