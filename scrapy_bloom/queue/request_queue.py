"""Send the calls of a queue's workers to Redis: one script each, over the queue and its filter in one slot."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from redis.client import NEVER_DECODE

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.values import Call, IndexedCall, Offer
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.transport.connect import is_cluster
from scrapy_bloom.transport.scripts import FILTER, Script

# Failed requests that are read at once.
_PORTION = 500


@cache
def _script(name: str) -> Script:
    return Script(name, *FILTER) if name in ("allocate", "info") else Script(name, *FILTER, "queue")


class RequestQueue:
    """A queue and its filter. Nothing is retried.

    Args:
        client: a `redis.Redis` or `redis.RedisCluster`.
        queue: the queue's key.
        filter_key: the filter's key.

    Raises:
        ConfigError: the keys are the same, or in different slots of the client's cluster.

    Attributes:
        keys: the keys of the queue.
        filter_key: the filter's key.
    """

    def __init__(self, client: Any, queue: str, filter_key: str) -> None:
        self.keys = QueueKeys(queue)
        self.filter_key = filter_key
        self._client = client
        self._names = self.keys.of_scripts(filter_key)
        if self.keys.include(filter_key):
            raise ConfigError(
                f"SCHEDULER_DUPEFILTER_KEY = {filter_key!r}: the queue {queue!r} uses this key; set another one"
            )
        if is_cluster(client):
            _require_one_slot(self.keys, filter_key)

    def send(self, worker: str, call: Call) -> Any:
        """Execute a call of a worker, and return the script's reply."""
        if call.script == "allocate":
            return _script("allocate").call(self._client, [self.filter_key], call.arguments)
        return _script(call.script).call(self._client, self._names, (worker, *call.arguments))

    def describe_filter(self, filter_id: bytes) -> list[Any] | None:
        """Return the reply for `describe_reply`, or None if the key holds another filter."""
        status, *reply = _script("info").call(self._client, [self.filter_key], [filter_id])
        return reply if status == b"OK" else None

    def count_dead_letters(self) -> int:
        """Return the number of dead letters."""
        return int(self._client.execute_command("ZCARD", self.keys.dead_letters))

    def read_failed(self, cursor: int = 0) -> tuple[int, list[tuple[bytes, Offer]]]:
        """Return a portion of the kept requests, each with the run that it failed in, and the next cursor or 0."""
        command = ("HSCAN", self.keys.failed, cursor, "COUNT", _PORTION)
        cursor, found = self._client.execute_command(*command, **{NEVER_DECODE: []})
        return cursor, list(_kept(found))


def send_each(
    queues: Sequence[RequestQueue], runtime: Runtime = RUNTIME
) -> Callable[[str, Sequence[IndexedCall]], list[Any]]:
    """Return a function that executes calls of a worker, each in the queue of its index, at once.

    It returns the replies; a call that failed has its error for one.
    """

    def send(worker: str, call: IndexedCall) -> Any:
        try:
            return queues[call[0]].send(worker, call[1])
        except Exception as error:  # the caller raises it
            return error

    at_once = runtime.at_once(len(queues))
    return lambda worker, calls: list((map if len(calls) == 1 else at_once)(partial(send, worker), calls))


def _kept(found: dict[bytes, bytes]) -> Iterator[tuple[bytes, Offer]]:
    for member, value in found.items():
        run, score, fingerprint = value.split(b" ", 2)
        yield run, Offer(float(score), member, fingerprint or None)


def _require_one_slot(keys: QueueKeys, filter_key: str) -> None:
    """Refuse keys in different slots: a script runs in one."""
    if not keys.share_a_slot:
        raise ConfigError(
            f"SCHEDULER_QUEUE_KEY = {keys.queue!r}: the unpaired brace puts this key into another cluster slot than "
            "its other keys; use a name without braces, or with one pair"
        )
    if not keys.share_slot_with(filter_key):
        raise ConfigError(
            f"SCHEDULER_DUPEFILTER_KEY = {filter_key!r}: the cluster keeps it in another slot than the queue "
            f"{keys.queue!r}, but both change in one step; set SCHEDULER_DUPEFILTER_KEY = {keys.dupefilter!r}, or "
            "give both keys the same part in braces"
        )
