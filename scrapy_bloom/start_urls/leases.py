"""Start URLs in Redis as one worker takes them: leased first, and acknowledged when their requests are queued.

It does not know what requests are made of them, nor when. Each call but `acknowledge` and `bury` asks Redis.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from scrapy_bloom._format import as_text
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.queue.queue_keys import QueueKeys, StartKeys
from scrapy_bloom.transport.client import Transport, transport_for
from scrapy_bloom.transport.commands import Argument, Command
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.scripts import load_script

# The command that counts what is at a start key, by its type.
_COUNTS = {"list": "LLEN", "set": "SCARD", "zset": "ZCARD"}
# Start URLs that one script moves at most.
_SCAN_BATCH = 500


class StartUrl(NamedTuple):
    """The data that a start key held, and the field of the hash in which they are leased."""

    field: str
    data: Any


class StartState(NamedTuple):
    """The start URLs at `key` that are no longer there: leased, `abandoned` by workers that are gone, or dead letters.

    The abandoned ones are among the leased. The dead letters are at `dead_key`.
    """

    key: str
    leased: int
    abandoned: int
    dead_letters: int
    dead_key: str


class _Lease(NamedTuple):
    """The holder of a leased start URL: a worker of a queue, in the order in which it took them."""

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
    """The start URLs at `key`, which is a `kind` ("list", "set" or "zset"), for the worker `worker` of a queue.

    `ready` are those that are leased and were handed to nobody. `others_hold` is True if others than this worker were
    last seen to have some. No number is used twice, so that a command that is carried out late does no harm.
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
    def has_notes(self) -> bool:
        """True if there is something to settle."""
        return bool(self._finished or self._dead)

    def count(self) -> int:
        """Return how many wait: at the key, and ready here.

        Raises:
            WrongTypeError: the start key is no `kind`.
        """
        try:
            (number,) = self._transport.execute([Command(_COUNTS[self._kind], self.key)])
        except FAULTS as error:
            if "WRONGTYPE" in describe(error):
                raise self._refusal(self._transport.execute([Command("TYPE", self.key)])[0]) from None
            raise
        return int(number) + len(self.ready)

    def lease(self, want: int) -> None:
        """Lease up to `want`, which are ready then.

        Where the reply is lost, they are leased and nobody has them: `recover` gives them back.
        """
        first = self._next_number
        self._next_number += want
        holder = f":{self._worker}:{self._queue}"
        data: Sequence[Any] = self._run("lease_start", self._kind, want, first, holder)
        leased = [StartUrl(f"{number}{holder}", each) for number, each in enumerate(data, first)]
        self._held.update(each.field for each in leased)
        self.ready.extend(leased)

    def acknowledge(self, url: StartUrl) -> None:
        """Note that the requests of a start URL are queued; `settle` tells Redis."""
        self._finished.append(url.field)

    def bury(self, url: StartUrl) -> None:
        """Note that no request can be made of a start URL; `settle` moves it to the dead letters."""
        self._dead.append(url.field)

    def settle(self) -> None:
        """Tell Redis what was noted, a bounded part of it."""
        finished, dead = self._finished[:_SCAN_BATCH], self._dead[:_SCAN_BATCH]
        if finished:
            self._transport.execute([Command("HDEL", self.keys.leased, *finished)])
            self._forget(self._finished, finished)
        if dead:
            self._run("bury_start", *dead)
            self._forget(self._dead, dead)

    def recover(self) -> int:
        """Give back what dead workers hold, and what this one was never told of; return how many there were.

        The holders are read first and the registered workers after: a worker is registered before it leases. In the
        other order one that comes between would be taken for dead.
        """
        leases = _leases(self._transport, self.keys)
        self.others_hold = False
        if not leases:
            return 0
        registered = self._registered({lease.queue for lease in leases})
        orphans = [lease for lease in leases if self._is_orphan(lease, registered[lease.queue])]
        self.others_hold = any(not self._is_mine(lease) for lease in set(leases).difference(orphans))
        return self._release(lease.field for lease in sorted(orphans))

    def release(self) -> int:
        """Give back all that this worker holds and has not noted as finished or dead; return how many there were."""
        self.ready.clear()
        kept = {*self._finished, *self._dead}
        given_back = self._release(sorted(self._held - kept, key=lambda field: int(field.partition(":")[0])))
        self._held &= kept
        return given_back

    def _release(self, fields: Iterable[str]) -> int:
        # The last ones first, so that the first will be the first again.
        portions = list(_batches_of(list(fields)))
        return sum(int(self._run("release_start", self._kind, *portion)) for portion in reversed(portions))

    def _registered(self, queues: set[str]) -> dict[str, set[str]]:
        """Return the names of the workers of each queue."""
        return _registered(self._transport, queues)

    def _is_orphan(self, lease: _Lease, registered: set[str]) -> bool:
        """Return whether nobody makes requests of a start URL. Of what it holds this worker does, registered or not."""
        return lease.field not in self._held if self._is_mine(lease) else lease.worker not in registered

    def _is_mine(self, lease: _Lease) -> bool:
        return lease.worker == self._worker and lease.queue == self._queue

    def _forget(self, noted: list[str], told: list[str]) -> None:
        del noted[: len(told)]
        self._held.difference_update(told)

    def _run(self, script: str, *arguments: Argument) -> Any:
        """Return what a script gives.

        Raises:
            WrongTypeError: the start key is no `kind`.
        """
        names = (self.key, self.keys.leased, self.keys.dead_letters)
        command = Command("EVAL", _load(script), len(names), *names, *arguments)
        said, *result = self._transport.execute([command])[0]
        if as_text(said) != "ok":
            raise self._refusal(said)
        return result[0] if result else None

    def _refusal(self, found: Any) -> WrongTypeError:
        return WrongTypeError(
            f"redis_key = {self.key!r}: it holds a {as_text(found)}, and start URLs are read from a {self._kind}; use "
            "another key, or set REDIS_START_URLS_AS_SET or REDIS_START_URLS_AS_ZSET by what it holds"
        )


def inspect(client: Any, key: str) -> StartState:
    """Return the state of the start URLs at a key: nothing is changed.

    The order of the looks is that of `recover`. What a worker gives back that leaves in between is leased no more.
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
    """Return the names of the workers of each queue."""
    names = sorted(queues)
    replies = transport.execute([Command("HKEYS", QueueKeys(name).workers) for name in names]) if names else []
    return {name: set(map(as_text, workers)) for name, workers in zip(names, replies, strict=True)}


def _batches_of(fields: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(fields), _SCAN_BATCH):
        yield fields[first : first + _SCAN_BATCH]


_texts: dict[str, str] = {}


def _load(script: str) -> str:
    if script not in _texts:
        _texts[script] = load_script(__package__, "start_key", script)
    return _texts[script]
