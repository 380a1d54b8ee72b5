"""The queue that workers share, and what each of them holds of it: no request is ever in a process alone.

Each worker has a sorted set of the serialised requests that it is about to queue or has taken, with their scores. It is
told of before and released after each step, so that whatever a killed worker held is found there and put back.
Everything here is at least once: where a reply is lost, a request is fetched twice at worst.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import redis

from scrapy_bloom import keys
from scrapy_bloom.ops import Wire

logger = logging.getLogger(__name__)

Member = bytes | str

# A worker says that it lives this many times in its lease.
_BEATS = 4
# Whoever puts a dead worker's requests back keeps others from doing the same for so long.
_RECOVERY_SECONDS = 10
# Whoever may be about to clear everything keeps others from joining for so long, if it dies while it does.
_CLOSING_SECONDS = 30
_CLOSING_PAUSE = 0.05
_LAST_BEAT_SECONDS = 2.0
_CHUNK = 500
# How far a worker looks along the queue: the head may be another's by the time that it is reached for.
_AHEAD = 16
_MOST_RACES = 1000

# Says that a worker lives, and lists all with the seconds since they last said so.
_BEAT = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
redis.call('ZADD', KEYS[1], string.format('%.6f', now), ARGV[1])
local found = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 2, #found, 2 do found[i] = string.format('%.3f', now - found[i]) end
return found
"""


class Hold(NamedTuple):
    """Hold requests, before the filter is told of them; an operation that goes with the filter's."""

    key: str
    members: tuple[tuple[Member, float], ...]

    def wire(self) -> Wire:
        """ZADD with scores and members."""
        return "ZADD", self.key, *(part for member, score in self.members for part in (score, member))

    def reply(self, raw: Any) -> int:
        """How many were not held yet."""
        return int(raw)

    def apply(self, memory: Any) -> int:
        """There is no queue in memory."""
        raise NotImplementedError


class Custody:
    """One worker's part in the queue at `key`, a sorted set of serialised requests by their scores.

    `lease` is the number of seconds without a sign of life after which a worker's requests are put back.
    """

    def __init__(self, client: Any, key: str, lease: float) -> None:
        self.recovered = 0
        self._client = client
        self._is_cluster = isinstance(client, redis.RedisCluster)
        self._key = key
        self._lease = lease
        self._worker = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._held = keys.held_key(key, self._worker)
        self._ahead: deque[tuple[Member, float]] = deque()
        self._claimed: tuple[Member, float] | None = None
        self._stopped = threading.Event()
        self._heart = threading.Thread(target=self._beat_on, name="scrapy-bloom heartbeat", daemon=True)

    def join(self) -> None:
        """Say that this worker lives, from now on until `leave`, in a thread: a busy reactor is not a dead worker."""
        self._beat()
        # Who clears looks for workers after it has said that it will; who joins looks for that after it has joined.
        while self._client.exists(keys.closing_key(self._key)):
            time.sleep(_CLOSING_PAUSE)
        self._heart.start()

    def hold(self, members: Mapping[Member, float]) -> list[Hold]:
        """Hold requests that are about to be checked: the operations that do it in the same round trip as the check.

        In a cluster, where a pipeline has no order, they are held at once and there is nothing left to do.
        """
        if self._is_cluster:
            self._client.zadd(self._held, dict(members))
            return []
        return [Hold(self._held, tuple(members.items()))]

    def put(self, members: Mapping[Member, float], release: Iterable[Member]) -> None:
        """Queue requests, then release those and others that are settled."""
        pipe = self._pipeline()
        if members:
            pipe.zadd(self._key, dict(members))
            self._ahead.clear()
        for chunk in _chunks(release):
            pipe.zrem(self._held, *chunk)
        pipe.execute()

    def take(self, release: Iterable[Member]) -> Member | None:
        """Release what is finished, and take the first request of the queue; None: there is none now.

        What was reached for when a reply was lost is taken the next time, whoever may have it.
        """
        for _ in range(_MOST_RACES):
            is_claimed = self._claimed is not None
            wanted = self._claimed or (self._ahead.popleft() if self._ahead else None)
            pipe = self._pipeline()
            for chunk in _chunks(release):
                pipe.zrem(self._held, *chunk)
            if wanted is not None:
                self._claimed = wanted
                pipe.zadd(self._held, {wanted[0]: wanted[1]})
                pipe.zrem(self._key, wanted[0])
            pipe.zrange(self._key, 0, _AHEAD - 1, withscores=True)
            *said, ahead = pipe.execute()
            self._claimed = None
            self._ahead = deque((member, score) for member, score in ahead)
            if wanted is not None and (is_claimed or said[-1]):
                return wanted[0]
            if wanted is None and not ahead:
                return None
            release = [] if wanted is None else [wanted[0]]
        return None

    def release_and_count(self, members: Iterable[Member]) -> int:
        """Let go of requests that are finished, and say how many there are in the queue."""
        for chunk in _chunks(members):
            self._client.zrem(self._held, *chunk)
        return int(self._client.zcard(self._key))

    def is_work_elsewhere(self) -> bool:
        """Whether other workers hold requests, or one is so silent that it may turn out to have died holding some."""
        silences = self._beat()
        held = [keys.held_key(self._key, worker) for worker in silences]
        if any(silence > 2 * self._lease / _BEATS for silence in silences.values()):
            return True
        # Requests go from the queue to a worker and, as others, back: both are looked at before and after the other.
        return bool(held) and any(self._client.zcard(key) for key in (*held, self._key, *held, self._key))

    def leave(self, clear: Callable[[], None] | None) -> None:
        """Put back what is still held and say goodbye; the last worker to do so is the one to `clear`."""
        self._put_back(self._worker)
        self._client.zrem(keys.workers_key(self._key), self._worker)
        if clear is None:
            return
        closing = keys.closing_key(self._key)
        self._client.sadd(closing, self._worker)
        self._client.expire(closing, _CLOSING_SECONDS)
        if not self._client.zcard(keys.workers_key(self._key)):
            clear()
        self._client.srem(closing, self._worker)

    def stop(self) -> None:
        """Give no more signs of life, nor one that is under way."""
        self._stopped.set()
        if self._heart.is_alive():
            self._heart.join(_LAST_BEAT_SECONDS)

    def clear(self) -> None:
        """Forget what all workers hold; the queue itself is the scheduler's."""
        workers = self._client.zrange(keys.workers_key(self._key), 0, -1)
        for worker in workers:
            self._client.unlink(keys.held_key(self._key, _text(worker)))
        self._client.unlink(self._held)

    def _pipeline(self) -> Any:
        """Commands that are carried out in their order, none after one that fails.

        One round trip on a server, as a transaction: a full server refuses to hold a request, but would still take it
        from the queue. One round trip each in a cluster, where a transaction cannot span the keys.
        """
        if self._is_cluster:
            return _OneByOne(self._client)
        return self._client.pipeline(transaction=True)

    def _beat_on(self) -> None:
        while not self._stopped.wait(self._lease / _BEATS):
            try:
                self._beat()
            except redis.RedisError as error:
                # The reactor's own attempts say so once, and in which state the crawl is.
                logger.debug("No sign of life could be given: %s", error)

    def _beat(self) -> dict[str, float]:
        """Say that this worker lives, put back what silent ones held, and give the seconds of silence of the others."""
        found = self._client.eval(_BEAT, 1, keys.workers_key(self._key), self._worker)
        silences = {_text(name): float(silence) for name, silence in zip(found[::2], found[1::2], strict=True)}
        del silences[self._worker]
        for worker, silence in silences.items():
            if silence > self._lease:
                self._recover(worker, silence)
        return silences

    def _recover(self, worker: str, silence: float) -> None:
        lock = keys.recovery_key(self._key, worker)
        if not self._client.set(lock, self._worker, nx=True, ex=_RECOVERY_SECONDS):
            return
        number = self._put_back(worker)
        self._client.zrem(keys.workers_key(self._key), worker)
        self._client.unlink(lock)
        self.recovered += number
        logger.warning(
            "Worker %s has been silent for %.0f s: %d requests that it held are back in the queue %r",
            worker,
            silence,
            number,
            self._key,
        )

    def _put_back(self, worker: str) -> int:
        held = keys.held_key(self._key, worker)
        found = self._client.zrange(held, 0, -1, withscores=True)
        for chunk in _chunks(found):
            self._client.zadd(self._key, dict(chunk))
            self._client.zrem(held, *(member for member, _ in chunk))
        return len(found)


class _OneByOne:
    """Looks like a pipeline, and carries each command out at once."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._said: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def command(*args: Any, **kwargs: Any) -> None:
            self._said.append(getattr(self._client, name)(*args, **kwargs))

        return command

    def execute(self) -> list[Any]:
        """What the commands said."""
        return self._said


def _chunks(members: Iterable[Any]) -> Iterable[list[Any]]:
    each = list(members)
    return (each[start : start + _CHUNK] for start in range(0, len(each), _CHUNK))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
