"""Send the calls of a queue's workers to Redis: one script each, over the queue and its filter in one slot."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from redis.client import NEVER_DECODE

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Call, Offer, Received
from scrapy_bloom.queue.worker import Worker
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.transport.connect import is_cluster, tagged
from scrapy_bloom.transport.scripts import FILTER, Script

# Failed requests that are read at once, and requests that are converted at once.
_PORTION = 500
_CONVERT = Script("convert")


@cache
def _script(name: str) -> Script:
    return Script(name, *FILTER) if name == "info" else Script(name, *FILTER, "steps", "queue")


class RequestQueue:
    """A queue and its filter. Nothing is retried.

    Args:
        client: a `redis.Redis` or `redis.RedisCluster`.
        queue: the queue's key.
        filter_key: the filter's key.
        starts: the keys of start data.

    Raises:
        ConfigError: the keys are the same, or in different slots of the client's cluster.

    Attributes:
        keys: the keys of the queue.
        filter_key: the filter's key.
        connections: the most that its client holds at once.
    """

    def __init__(self, client: Any, queue: str, filter_key: str, starts: Sequence[str] = ()) -> None:
        self.keys = QueueKeys(queue)
        self.filter_key = filter_key
        self._client = client
        self.connections: float = getattr(getattr(client, "connection_pool", None), "max_connections", math.inf)
        self._names = self.keys.of_scripts(filter_key)
        self._starts = tuple(starts)
        if self.keys.include(filter_key):
            raise ConfigError(
                f"SCHEDULER_DUPEFILTER_KEY = {filter_key!r}: the queue {queue!r} uses this key; set another one"
            )
        if is_cluster(client):
            _require_one_slot(self.keys, filter_key)

    def send(self, worker: str, call: Call) -> Any:
        """Execute a call of a worker, and return the script's reply."""
        names = (*self._names, *self._starts) if call.script == "sync" else self._names
        return _script(call.script).call(self._client, names, (worker, *call.arguments))

    def describe_filter(self, filter_id: bytes) -> list[Any] | None:
        """Return the reply for `describe_reply`, or None if the key holds another filter."""
        status, *reply = _script("info").call(self._client, [self.filter_key], [filter_id])
        return reply if status == b"OK" else None

    def requeue(self, filter_id: bytes | str, requests: Iterable[tuple[bytes, bytes]]) -> int:
        """Move dead letters and failed requests to the queue.

        Args:
            filter_id: the filter in which they are marked, or "".
            requests: of each its item in the filter, or b"", and its bytes.

        Returns:
            How many were moved: others were meanwhile. -1 if there is another filter.
        """
        arguments = (value for request in requests for value in request)
        return int(_script("requeue").call(self._client, self._names, ("", filter_id, *arguments)))

    def convert(self, kind: str, order: str) -> int:
        """Move a portion of a list of scrapy-redis into a sorted set, or back; the next pops are the same.

        Args:
            kind: the type that the queue is to have, `zset` or `list`.
            order: the order of the list, `fifo` or `lifo`.

        Returns:
            How many requests are left to be moved.
        """
        names = self.keys.queue, self.keys.rest, self.keys.absent
        return int(_CONVERT.call(self._client, names, (kind, order, _PORTION)))

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
) -> Callable[[str, Sequence[tuple[int, Call]]], list[Any]]:
    """Return a function that executes calls of a worker, each in the queue of its index, at once.

    It returns the replies; a call that failed has its error for one.
    """

    def send(worker: str, call: tuple[int, Call]) -> Any:
        try:
            return queues[call[0]].send(worker, call[1])
        except Exception as error:  # the caller raises it
            return error

    # A pool refuses a call beyond its connections, which looks like an outage.
    at_once = runtime.at_once(int(min(queues[0].connections, len(queues))))
    return lambda worker, calls: list((map if len(calls) == 1 else at_once)(partial(send, worker), calls))


class Sender:
    """Sends the calls of a worker.

    Args:
        name: the worker's name.
        worker: the worker.
        queues: its queues.
        note: called with the index of a queue and what its reply says.
        runtime: the clock and threads.
    """

    def __init__(
        self,
        name: str,
        worker: Worker,
        queues: Sequence[RequestQueue],
        note: Callable[[int, Received], object],
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._name, self._worker, self._note, self._runtime = name, worker, note, runtime
        self._send = send_each(queues, runtime)
        self._count = len(queues)

    def step(self, want: int = 0) -> bool:
        """Execute the next calls of the worker at once, one for each queue at most; return whether there were any.

        Raises:
            JoinRefusedError: the queue or the filter is not this worker's.
            RedisError: a call has no reply, or was refused.
        """
        calls = self._worker.next_calls(want, self._runtime.monotonic())
        left, problem = [index for index, _ in calls], None
        try:
            for (index, call), reply in zip(calls, self._send(self._name, calls), strict=True):
                if isinstance(reply, Exception):
                    problem = reply
                else:
                    left.remove(index)
                    self._note(index, self._worker.receive(index, call, reply))
            if problem is not None:
                if self._count > 1:
                    problem.add_note(f"{'partition' if len(left) == 1 else 'partitions'} {', '.join(map(str, left))}")
                raise problem
        finally:
            for index in left:
                self._worker.lose(index)
        return bool(calls)


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


def require_slot_of_start(keys: QueueKeys, start: str, spider: str) -> None:
    """Refuse a key of start data of this spider that a cluster keeps in another slot than the queue.

    Raises:
        ConfigError: it does; it names a key for the queue, with the spider's name as `%(spider)s` if possible, so that
            the filter's default key follows.
    """
    if not keys.share_slot_with(start):
        parts = re.split(rf"\b{re.escape(spider)}\b", tagged(start), maxsplit=1)
        template = "%(spider)s".join(part.replace("%", "%%") for part in parts)
        raise ConfigError(
            f"SCHEDULER_QUEUE_KEY = {keys.queue!r}: the cluster keeps the start URLs at {start!r} in another slot than "
            "the queue, but a worker takes and leases them in one step; set SCHEDULER_QUEUE_KEY = "
            f"{template + ':requests'!r}, or give both keys the same part in braces"
        )
