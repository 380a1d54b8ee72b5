"""The workers of a queue: which are alive, the requests of those that died, and the last one to leave.

Each sends a few heartbeats in its lease. What a silent one has leased is requeued by any other.
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

from scrapy_bloom._text import as_text
from scrapy_bloom.queue import keys
from scrapy_bloom.queue.request_queue import RequestQueue, requeue_all
from scrapy_bloom.transport.base import transport_for
from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.failures import FAULTS

logger = logging.getLogger(__name__)

# Heartbeats in a lease.
_HEARTBEATS_PER_LEASE = 4
# Seconds for which the worker that requeues a dead one's requests keeps others from doing the same.
_RECOVERY_SECONDS = 10
# Seconds for which a worker that may be about to clear everything keeps others from joining, if it dies meanwhile.
_CLOSING_SECONDS = 30
_CLOSING_PAUSE = 0.05
_LAST_BEAT_SECONDS = 2.0

# Records a heartbeat, and lists all workers with the seconds since their last one.
_HEARTBEAT = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
redis.call('ZADD', KEYS[1], string.format('%.6f', now), ARGV[1])
local found = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 2, #found, 2 do found[i] = string.format('%.3f', now - found[i]) end
return found
"""


# Removes a worker, unless it has sent a heartbeat since it was found silent.
_REMOVE_SILENT_WORKER = """
local t = redis.call('TIME')
local said = redis.call('ZSCORE', KEYS[1], ARGV[1])
if said and t[1] + t[2] / 1000000 - said > tonumber(ARGV[2]) then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return 0
"""


class WorkerRegistry:
    """One worker's part among those of the queue at `key`; `requests` is that queue.

    `lease` is the number of seconds without a heartbeat after which a worker's requests are requeued.
    """

    def __init__(self, client: Any, key: str, lease: float) -> None:
        self.recovered = 0
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._transport = transport_for(client)
        self.requests = RequestQueue(self._transport, key, self.name)
        self._key = key
        self._all = keys.workers_key(key)
        self._lease = lease
        self._last_beat = -math.inf
        self._steady_since = 0.0
        self._stopped = threading.Event()
        self._heartbeat_thread = threading.Thread(
            target=self._run_heartbeats, name="scrapy-bloom heartbeat", daemon=True
        )

    def join(self) -> None:
        """Register this worker, redrive the dead letters, and start the heartbeats.

        A thread sends them until `stop_heartbeats`: a busy reactor is not a dead worker.
        """
        self.heartbeat()
        requeue_all(self._transport, self._key, keys.dead_letter_key(self._key))
        # Two workers must not miss each other. The leaving one announces `closing`, then counts workers. The joining
        # one registers, then looks for `closing`. In every order at least one of them sees the other.
        while self._transport.execute([Command("EXISTS", keys.closing_key(self._key))])[0]:
            time.sleep(_CLOSING_PAUSE)
        self._heartbeat_thread.start()

    def others_are_active(self) -> bool:
        """Return whether others have leased requests, or one is so silent that it may have died with some."""
        idle = self.heartbeat()
        leases = [keys.leases_key(self._key, worker) for worker in idle]
        if any(seconds > 2 * self._lease / _HEARTBEATS_PER_LEASE for seconds in idle.values()):
            return True
        # Requests move from the queue to a worker, and new ones from the worker to the queue. Leases, queue, leases and
        # queue are counted: whatever moves between two counts is seen by one of them.
        return bool(leases) and any(
            self._transport.execute([Command("ZCARD", key) for key in (*leases, self._key, *leases, self._key)])
        )

    def stop_heartbeats(self) -> None:
        """Send no more heartbeats, and wait for one that is under way."""
        self._stopped.set()
        if self._heartbeat_thread.is_alive():
            self._heartbeat_thread.join(_LAST_BEAT_SECONDS)

    def leave(self, on_last: Callable[[], None] | None) -> None:
        """Requeue what is still leased, and leave; the last worker to do so calls `on_last`."""
        requeue_all(self._transport, self._key, keys.leases_key(self._key, self.name))
        self._transport.execute([Command("ZREM", self._all, self.name)])
        if on_last is None:
            return
        closing = keys.closing_key(self._key)
        *_, others = self._transport.execute(
            [
                Command("SADD", closing, self.name),
                Command("EXPIRE", closing, _CLOSING_SECONDS),
                Command("ZCARD", self._all),
            ]
        )
        if not others:
            on_last()
        self._transport.execute([Command("SREM", closing, self.name)])

    def delete_all(self) -> None:
        """Delete what all workers have leased."""
        workers = [as_text(worker) for worker in self._transport.execute([Command("ZRANGE", self._all, 0, -1)])[0]]
        doomed = [keys.leases_key(self._key, worker) for worker in (*workers, self.name)]
        self._transport.execute([Command("UNLINK", key) for key in (*doomed, keys.dead_letter_key(self._key))])

    def _run_heartbeats(self) -> None:
        while not self._stopped.wait(self._lease / _HEARTBEATS_PER_LEASE):
            try:
                self.heartbeat()
            except FAULTS as error:
                # The reactor's own attempts say so once, and in which state the crawl is.
                logger.debug("No heartbeat could be sent: %s", error)

    def heartbeat(self) -> dict[str, float]:
        """Send a heartbeat, requeue what silent workers had leased, and return the idle seconds of the others.

        After an outage every worker has been silent. None is taken for dead before all had the time for a heartbeat.
        """
        (pairs,) = self._transport.execute([Command("EVAL", _HEARTBEAT, 1, self._all, self.name)])
        idle = {as_text(name): float(seconds) for name, seconds in zip(pairs[::2], pairs[1::2], strict=True)}
        del idle[self.name]
        now = time.monotonic()
        if now - self._last_beat > self._lease / 2:
            self._steady_since = now
        self._last_beat = now
        for worker, seconds in idle.items():
            if seconds > self._lease and now - self._steady_since >= self._lease / 2:
                self._requeue_abandoned(worker, seconds)
        return idle

    def _requeue_abandoned(self, worker: str, seconds: float) -> None:
        lock = keys.recovery_key(self._key, worker)
        (is_ours,) = self._transport.execute([Command("SET", lock, self.name, "NX", "EX", _RECOVERY_SECONDS)])
        if not is_ours:
            return
        number = requeue_all(self._transport, self._key, keys.leases_key(self._key, worker))
        self._transport.execute(
            [Command("EVAL", _REMOVE_SILENT_WORKER, 1, self._all, worker, self._lease), Command("UNLINK", lock)]
        )
        self.recovered += number
        logger.warning(
            "Worker %s has been silent for %.0f s: %d requests that it held are back in the queue %r",
            worker,
            seconds,
            number,
            self._key,
        )
