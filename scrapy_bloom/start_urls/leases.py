"""Start URLs leased by one worker, until their requests are queued.

Requests and their delivery are the feed's business. Each call but `acknowledge` and `bury` sends commands to Redis.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from scrapy_bloom._format import as_text
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.queue.queue_keys import QueueKeys, StartKeys, tagged
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Argument, Command
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.scripts import load_script
from scrapy_bloom.transport.transport import Transport

# The command that counts the data of a start key, by its type.
_COUNTS = {"list": "LLEN", "set": "SCARD", "zset": "ZCARD"}
# Start URLs moved by one script.
_MAX_BATCH = 500


class StartUrl(NamedTuple):
    """A start URL: its field in the hash of leases, and its data."""

    field: str
    data: Any


class StartState(NamedTuple):
    """The start URLs taken from `key`.

    Attributes:
        key: the start key.
        leased: leases of all workers.
        abandoned: leases of dead workers, included in `leased`.
        dead_letters: start URLs that led to no request.
        dead_key: the key of the dead letters.
    """

    key: str
    leased: int
    abandoned: int
    dead_letters: int
    dead_key: str


class _Lease(NamedTuple):
    """The owner of a leased start URL: a worker of a queue; `number` is the order in which the worker leased."""

    number: int
    worker: str
    queue: str

    @classmethod
    def parse(cls, field: str) -> Self | None:
        number, _, holder = field.partition(":")
        worker, colon, queue = holder.partition(":")
        return cls(int(number), worker, queue) if number.isdecimal() and colon else None

    @property
    def field(self) -> str:
        return f"{self.number}:{self.worker}:{self.queue}"


class StartUrls:
    """The start URLs at `key`, a `kind` ("list", "set" or "zset"), for the worker `worker` of a queue.

    A lease number is used once, so a script that is executed late does no harm.

    Attributes:
        ready: leased start URLs to deliver.
        others_hold: True if other live workers had leases at the last look.
    """

    def __init__(self, client: Any, key: str, kind: str, worker: str, queue: str) -> None:
        self.key = key
        self.keys = StartKeys(key)
        self.ready: deque[StartUrl] = deque()
        self.others_hold = False
        self._transport = transport_for(client)
        self._kind = kind
        self._worker = worker
        self._queue = queue
        self._next_number = 0
        self._held: set[str] = set()
        self._finished: list[str] = []
        self._dead: list[str] = []

    @property
    def needs_sync(self) -> bool:
        """True if acknowledged or buried start URLs are still leased in Redis."""
        return bool(self._finished or self._dead)

    def count(self) -> int:
        """Return the number of start URLs at the key and in `ready`.

        Raises:
            WrongTypeError: the start key is not a `kind`.
        """
        try:
            (number,) = self._transport.execute([Command(_COUNTS[self._kind], self.key)])
        except FAULTS as error:
            if "WRONGTYPE" in describe(error):
                raise self._wrong_type(self._transport.execute([Command("TYPE", self.key)])[0]) from None
            raise
        return int(number) + len(self.ready)

    def lease(self, want: int) -> None:
        """Lease up to `want` start URLs, and append them to `ready`.

        If the reply is lost, the leases belong to no live worker, and `recover` releases them.
        """
        first = self._next_number
        self._next_number += want
        holder = f":{self._worker}:{self._queue}"
        data: Sequence[Any] = self._run("lease_start", self._kind, want, first, holder)
        leased = [StartUrl(f"{number}{holder}", each) for number, each in enumerate(data, first)]
        self._held.update(each.field for each in leased)
        self.ready.extend(leased)

    def acknowledge(self, url: StartUrl) -> None:
        """Mark a start URL whose requests are queued; the next `sync` ends its lease."""
        self._finished.append(url.field)

    def bury(self, url: StartUrl) -> None:
        """Mark a start URL that leads to no request; the next `sync` moves it to the dead letters."""
        self._dead.append(url.field)

    def sync(self) -> None:
        """End the leases of acknowledged and buried start URLs, one batch of each."""
        finished, dead = self._finished[:_MAX_BATCH], self._dead[:_MAX_BATCH]
        if finished:
            self._transport.execute([Command("HDEL", self.keys.leased, *finished)])
            self._forget(self._finished, finished)
        if dead:
            self._run("bury_start", *dead)
            self._forget(self._dead, dead)

    def recover(self) -> int:
        """Release the leases of dead workers and of lost replies; return their number.

        Leases are read before registered workers, since a worker registers before it leases. In the other order, a
        worker that registers in between would count as dead.
        """
        leases = _leases(self._transport, self.keys)
        self.others_hold = False
        if not leases:
            return 0
        registered = _registered(self._transport, {lease.queue for lease in leases})
        orphans = [lease for lease in leases if self._is_orphan(lease, registered[lease.queue])]
        self.others_hold = any(not self._is_mine(lease) for lease in set(leases).difference(orphans))
        return self._release(lease.field for lease in sorted(orphans))

    def release(self) -> int:
        """Release this worker's start URLs that are neither acknowledged nor buried; return their number."""
        self.ready.clear()
        kept = {*self._finished, *self._dead}
        released = self._release(sorted(self._held - kept, key=lambda field: int(field.partition(":")[0])))
        self._held &= kept
        return released

    def _release(self, fields: Iterable[str]) -> int:
        ordered = list(fields)
        # The last batch goes first, so that the start URLs keep their order at the start key.
        starts = reversed(range(0, len(ordered), _MAX_BATCH))
        batches = (ordered[start : start + _MAX_BATCH] for start in starts)
        return sum(int(self._run("release_start", self._kind, *batch)) for batch in batches)

    def _is_orphan(self, lease: _Lease, registered: set[str]) -> bool:
        """Return whether no live worker has a start URL; this worker trusts its own list of leases."""
        return lease.field not in self._held if self._is_mine(lease) else lease.worker not in registered

    def _is_mine(self, lease: _Lease) -> bool:
        return lease.worker == self._worker and lease.queue == self._queue

    def _forget(self, marked: list[str], synced: list[str]) -> None:
        del marked[: len(synced)]
        self._held.difference_update(synced)

    def _run(self, script: str, *arguments: Argument) -> Any:
        """Return the result of a script.

        Raises:
            WrongTypeError: the start key is not a `kind`.
        """
        names = (self.key, self.keys.leased, self.keys.dead_letters, self.keys.absent)
        command = Command("EVAL", load_script(__package__, "start_key", script), len(names), *names, *arguments)
        status, *result = self._transport.execute([command])[0]
        if as_text(status) != "ok":
            raise self._wrong_type(status)
        return result[0] if result else None

    def _wrong_type(self, found: Any) -> WrongTypeError:
        return WrongTypeError(
            f"redis_key = {self.key!r}: holds a {as_text(found)}, but start URLs are read from a {self._kind}; use "
            "another key, or set REDIS_START_URLS_AS_SET or REDIS_START_URLS_AS_ZSET to match"
        )


def inspect(client: Any, key: str) -> StartState:
    """Return the state of the start URLs at a key, without changing anything.

    Leases are read before registered workers, as in `recover`. A worker that leaves in between has released its leases,
    so the leases are read again.
    """
    keys, transport = StartKeys(key), transport_for(client)
    leases = _leases(transport, keys)
    registered = _registered(transport, {lease.queue for lease in leases})
    left = {lease for lease in leases if lease.worker not in registered[lease.queue]}
    abandoned = len(left.intersection(_leases(transport, keys))) if left else 0
    (dead,) = transport.execute([Command("LLEN", keys.dead_letters)])
    return StartState(key, len(leases), abandoned, int(dead), keys.dead_letters)


def _leases(transport: Transport, keys: StartKeys) -> list[_Lease]:
    (fields,) = transport.execute([Command("HKEYS", keys.leased)])
    return [lease for field in fields if (lease := _Lease.parse(as_text(field))) is not None]


def _registered(transport: Transport, queues: set[str]) -> dict[str, set[str]]:
    """Return the names of each queue's registered workers, those of the atomic scheduler included."""
    names = sorted(queues)
    keys = [key for name in names for key in (QueueKeys(name).workers, f"{tagged(name)}:crawl")]
    replies = transport.execute([Command("HKEYS", key) for key in keys]) if keys else []
    fields = [{as_text(field).removeprefix("@") for field in reply} for reply in replies]
    return {name: old | new for name, old, new in zip(names, fields[::2], fields[1::2], strict=True)}
