"""The workers of a queue: who lives, what becomes of the work of one that died, and who is the last to leave.

Each says that it lives a few times in its lease. What a silent one holds is put back into the queue by any other.
"""

import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from scrapy_bloom import keys
from scrapy_bloom.custody import Custody, put_back
from scrapy_bloom.line import as_text, line, pack
from scrapy_bloom.patience import FAULTS

logger = logging.getLogger(__name__)

# A worker says that it lives this many times in its lease.
_BEATS = 4
# Whoever puts a dead worker's requests back keeps others from doing the same for so long.
_RECOVERY_SECONDS = 10
# Whoever may be about to clear everything keeps others from joining for so long, if it dies while it does.
_CLOSING_SECONDS = 30
_CLOSING_PAUSE = 0.05
_LAST_BEAT_SECONDS = 2.0

# Says that a worker lives, and lists all with the seconds since they last said so.
_BEAT = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
redis.call('ZADD', KEYS[1], string.format('%.6f', now), ARGV[1])
local found = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 2, #found, 2 do found[i] = string.format('%.3f', now - found[i]) end
return found
"""


# Takes a worker out, unless it has given a sign of life since it was found silent.
_BURY = """
local t = redis.call('TIME')
local said = redis.call('ZSCORE', KEYS[1], ARGV[1])
if said and t[1] + t[2] / 1000000 - said > tonumber(ARGV[2]) then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return 0
"""


class Workers:
    """One worker's part among those of the queue at `key`; `custody` is of what all of them hold.

    `lease` is the number of seconds without a sign of life after which a worker's requests are put back.
    """

    def __init__(self, client: Any, key: str, lease: float) -> None:
        self.recovered = 0
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._line = line(client)
        self.custody = Custody(self._line, key, self.name)
        self._key = key
        self._all = keys.workers_key(key)
        self._lease = lease
        self._last_beat = -math.inf
        self._steady_since = 0.0
        self._stopped = threading.Event()
        self._heart = threading.Thread(target=self._beat_on, name="scrapy-bloom heartbeat", daemon=True)

    def join(self) -> None:
        """Say that this worker lives, from now on until `leave`, in a thread: a busy reactor is not a dead worker.

        What an earlier crawl could not read is in the queue again.
        """
        self.beat()
        put_back(self._line, self._key, keys.unreadable_key(self._key))
        # Who clears looks for workers after it has said that it will; who joins looks for that after it has joined.
        while self._line.send([pack("EXISTS", keys.closing_key(self._key))])[0]:
            time.sleep(_CLOSING_PAUSE)
        self._heart.start()

    def are_at_work(self) -> bool:
        """Whether others hold requests, or one is so silent that it may turn out to have died holding some."""
        silences = self.beat()
        held = [keys.held_key(self._key, worker) for worker in silences]
        if any(silence > 2 * self._lease / _BEATS for silence in silences.values()):
            return True
        # Requests go from the queue to a worker and, as others, back: both are looked at before and after the other.
        return bool(held) and any(self._line.send([pack("ZCARD", key) for key in (*held, self._key, *held, self._key)]))

    def stop(self) -> None:
        """Give no more signs of life, nor one that is under way."""
        self._stopped.set()
        if self._heart.is_alive():
            self._heart.join(_LAST_BEAT_SECONDS)

    def leave(self, clear: Callable[[], None] | None) -> None:
        """Put back what is still held and say goodbye; the last worker to do so is the one to `clear`."""
        put_back(self._line, self._key, keys.held_key(self._key, self.name))
        self._line.send([pack("ZREM", self._all, self.name)])
        if clear is None:
            return
        closing = keys.closing_key(self._key)
        *_, others = self._line.send(
            [pack("SADD", closing, self.name), pack("EXPIRE", closing, _CLOSING_SECONDS), pack("ZCARD", self._all)]
        )
        if not others:
            clear()
        self._line.send([pack("SREM", closing, self.name)])

    def forget(self) -> None:
        """Delete what all workers hold."""
        workers = [as_text(worker) for worker in self._line.send([pack("ZRANGE", self._all, 0, -1)])[0]]
        doomed = [keys.held_key(self._key, worker) for worker in (*workers, self.name)]
        self._line.send([pack("UNLINK", key) for key in (*doomed, keys.unreadable_key(self._key))])

    def _beat_on(self) -> None:
        while not self._stopped.wait(self._lease / _BEATS):
            try:
                self.beat()
            except FAULTS as error:
                # The reactor's own attempts say so once, and in which state the crawl is.
                logger.debug("No sign of life could be given: %s", error)

    def beat(self) -> dict[str, float]:
        """Say that this worker lives, put back what silent ones held, and give the seconds of silence of the others.

        After an outage every worker has been silent: nobody is taken for dead before all had the time to say otherwise.
        """
        (found,) = self._line.send([pack("EVAL", _BEAT, 1, self._all, self.name)])
        silences = {as_text(name): float(silence) for name, silence in zip(found[::2], found[1::2], strict=True)}
        del silences[self.name]
        now = time.monotonic()
        if now - self._last_beat > self._lease / 2:
            self._steady_since = now
        self._last_beat = now
        for worker, silence in silences.items():
            if silence > self._lease and now - self._steady_since >= self._lease / 2:
                self._recover(worker, silence)
        return silences

    def _recover(self, worker: str, silence: float) -> None:
        lock = keys.recovery_key(self._key, worker)
        (is_ours,) = self._line.send([pack("SET", lock, self.name, "NX", "EX", _RECOVERY_SECONDS)])
        if not is_ours:
            return
        number = put_back(self._line, self._key, keys.held_key(self._key, worker))
        self._line.send([pack("EVAL", _BURY, 1, self._all, worker, self._lease), pack("UNLINK", lock)])
        self.recovered += number
        logger.warning(
            "Worker %s has been silent for %.0f s: %d requests that it held are back in the queue %r",
            worker,
            silence,
            number,
            self._key,
        )
