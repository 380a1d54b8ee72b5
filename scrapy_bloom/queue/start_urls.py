"""The start URLs of a spider in Redis: leased by a worker, and acknowledged when their requests are queued.

One script ends, releases and takes leases; it may be executed twice or late, since a worker uses the number of a lease
once.
"""

from collections import deque
from collections.abc import Collection
from typing import Any, NamedTuple

from redis.client import NEVER_DECODE

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.queue.keys import QueueKeys, StartKeys
from scrapy_bloom.transport.scripts import Script

_EXCHANGE = Script("start_urls")


class StartUrl(NamedTuple):
    """A start URL: its field in the hash of leases, `<number>:<worker>:<queue>`, and its data."""

    field: str
    data: bytes


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


class StartUrls:
    """The start URLs at `key`, a `kind` ("list", "set" or "zset"), for the worker `worker` of a queue.

    Attributes:
        ready: leased start URLs to deliver.
        others_hold: True if other live workers had leases at the last look.
    """

    def __init__(self, client: Any, key: str, kind: str, worker: str, queue: str) -> None:
        self.key = key
        self.keys = StartKeys(key)
        self.ready: deque[StartUrl] = deque()
        self.others_hold = False
        self._client = client
        self._kind = kind
        self._mark = f":{worker}:{queue}"
        self._next_number = 0
        self._held: set[str] = set()
        self._done: list[str] = []
        self._dead: list[str] = []

    @property
    def needs_sync(self) -> bool:
        """True if acknowledged or buried start URLs are still leased in Redis."""
        return bool(self._done or self._dead)

    def acknowledge(self, url: StartUrl) -> None:
        """Note a start URL whose requests are queued: the next call ends its lease."""
        self._done.append(url.field)

    def bury(self, url: StartUrl) -> None:
        """Note a start URL that leads to no request: the next call moves it to the dead letters."""
        self._dead.append(url.field)

    def sync(self) -> int:
        """Return the number of start URLs at the key and in `ready`; like each call, end the noted ones."""
        waiting, _ = self._exchange()
        return waiting + len(self.ready)

    def lease(self, want: int) -> None:
        """Lease up to `want` start URLs, and append them to `ready`; `recover` releases those of a lost reply."""
        self._exchange(want=want)

    def recover(self) -> int:
        """Release the leases of dead workers and of lost replies; return their number."""
        leases = _leases(self._client, self.keys)
        mine = {field for field in leases if field.endswith(self._mark)}
        orphans = _abandoned(self._client, leases - mine) | (mine - self._held)
        self.others_hold = bool(leases - mine - orphans)
        return self._exchange(orphans)[1] if orphans else 0

    def release(self) -> int:
        """Release this worker's start URLs that are neither acknowledged nor buried; return their number."""
        self.ready.clear()
        _, released = self._exchange(self._held.difference(self._done, self._dead))
        self._held.clear()
        return released

    def _exchange(self, released: Collection[str] = (), want: int = 0) -> tuple[int, int]:
        """Return how many start URLs wait at the key, and how many were released.

        Raises:
            WrongTypeError: the start key is not a `kind`.
        """
        keys, first = self.keys, self._next_number
        self._next_number += want
        numbers = len(self._done), len(self._dead)
        # In the order in which they were leased.
        in_order = sorted(released, key=lambda field: (int(field.partition(":")[0]), field))
        status, *reply = _EXCHANGE.call(
            self._client,
            (keys.start, keys.leased, keys.dead_letters, keys.absent),
            (self._kind, want, first, self._mark, *numbers, *self._done, *self._dead, *in_order),
        )
        self._held.difference_update(self._done, self._dead)
        self._done, self._dead = [], []
        if status != b"OK":
            raise WrongTypeError(
                f"redis_key = {self.key!r}: holds a {status.decode()}, but start URLs are read from a {self._kind}; "
                "use another key, or set REDIS_START_URLS_AS_SET or REDIS_START_URLS_AS_ZSET to match"
            )
        data, waiting, moved = reply
        leased = [StartUrl(f"{number}{self._mark}", each) for number, each in enumerate(data, first)]
        self._held.update(url.field for url in leased)
        self.ready.extend(leased)
        return waiting, moved


def inspect(client: Any, key: str) -> StartState:
    """Return the state of the start URLs at a key, without changing anything."""
    keys = StartKeys(key)
    leases = _leases(client, keys)
    # A worker that leaves in between has released its leases.
    abandoned = (found := _abandoned(client, leases)) and found & _leases(client, keys)
    return StartState(key, len(leases), len(abandoned), client.llen(keys.dead_letters), keys.dead_letters)


def _leases(client: Any, keys: StartKeys) -> set[str]:
    return {field.decode() for field in _fields(client, keys.leased)}


def _abandoned(client: Any, leases: set[str]) -> set[str]:
    """Return the leases of workers that are not registered with their queue.

    Leases must be read before this: a worker registers before it leases, and would count as dead otherwise.
    """
    owners = {field: field.split(":", 2)[1:] for field in leases}
    queues = {queue for _, queue in owners.values()}
    registered = {queue: set(_fields(client, QueueKeys(queue).crawl)) for queue in queues}
    return {field for field, (worker, queue) in owners.items() if f"@{worker}".encode() not in registered[queue]}


def _fields(client: Any, key: str) -> list[bytes]:
    found: list[bytes] = client.execute_command("HKEYS", key, **{NEVER_DECODE: []})
    return found
