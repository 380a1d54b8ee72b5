"""Send the calls of a queue's workers to Redis: one script each, over the queue and its filter in one slot."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from redis.client import NEVER_DECODE

from scrapy_bloom._format import as_bytes
from scrapy_bloom.atomic.scripts import Script
from scrapy_bloom.atomic.values import Call, Offer
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.queue_keys import QueueKeys, tagged
from scrapy_bloom.transport.server_info import is_cluster

# Failed requests that are read at once.
_PORTION = 500


@dataclass(frozen=True)
class Keys:
    """The keys of a queue and of its filter.

    Attributes:
        filter: the filter.
        queue: the sorted set of requests.
    """

    filter: str
    queue: str

    def of_scripts(self) -> tuple[str, ...]:
        """Return KEYS, in the order of `queue.lua`."""
        others = ("crawl", "departed", "dead-letter", "failed", "deliveries", "suspects", "absent")
        return (self.filter, self.queue, *map(self._beside, others))

    @property
    def dead_letters(self) -> str:
        """The sorted set of dead letters."""
        return self._beside("dead-letter")

    @property
    def failed(self) -> str:
        """The hash of failed requests."""
        return self._beside("failed")

    def _beside(self, name: str) -> str:
        return f"{tagged(self.queue)}:{name}"


@cache
def _script(name: str) -> Script:
    return Script(name, "filter") if name in ("allocate", "info") else Script(name, "filter", "queue")


class AtomicQueue:
    """A queue and its filter. Nothing is retried.

    Args:
        client: a `redis.Redis` or `redis.RedisCluster`.
        keys: their keys.

    Raises:
        ConfigError: the keys are the same, or in different slots of the client's cluster.
    """

    def __init__(self, client: Any, keys: Keys) -> None:
        self.keys = keys
        self._client = client
        self._names = keys.of_scripts()
        self._encoder = client.get_encoder() if hasattr(client, "get_encoder") else None
        if keys.filter in self._names[1:]:
            raise ConfigError(
                f"SCHEDULER_DUPEFILTER_KEY = {keys.filter!r}: the queue {keys.queue!r} uses this key; set another one"
            )
        if is_cluster(client):
            _require_one_slot(keys)

    def send(self, worker: str, call: Call) -> Any:
        """Execute a call of a worker, and return the script's reply."""
        if call.script == "allocate":
            return _script("allocate").call(self._client, [self.keys.filter], call.arguments)
        return _script(call.script).call(self._client, self._names, (worker, *call.arguments))

    def describe(self, filter_id: bytes) -> list[Any] | None:
        """Return sizes, lost shards and layers of the filter, or None if it is another one."""
        status, *reply = _script("info").call(self._client, [self.keys.filter], [filter_id])
        return reply if status == b"OK" else None

    def count_dead_letters(self) -> int:
        """Return the number of dead letters."""
        return int(self._client.execute_command("ZCARD", self.keys.dead_letters))

    def read_failed(self, cursor: int = 0) -> tuple[int, list[tuple[bytes, Offer]]]:
        """Return a portion of the kept requests, each with the run that it failed in, and the next cursor or 0."""
        command = ("HSCAN", self.keys.failed, cursor, "COUNT", _PORTION)
        cursor, found = self._client.execute_command(*command, **{NEVER_DECODE: []})
        portion = []
        for member, value in found.items():
            run, score, fingerprint = value.split(b" ", 2)
            portion.append((run, Offer(float(score), member, fingerprint or None)))
        return cursor, portion

    def encode(self, member: str | bytes) -> bytes:
        """Return a serialized request as Redis stores it."""
        return as_bytes(member) if self._encoder is None else bytes(self._encoder.encode(member))

    def decode(self, member: bytes) -> str | bytes:
        """Return a serialized request as the client would return it: text if it decodes replies."""
        return member if self._encoder is None else self._encoder.decode(member)


def _require_one_slot(keys: Keys) -> None:
    """Refuse keys in different slots: a script runs in one."""
    of_queue = QueueKeys(keys.queue)
    if not of_queue.share_a_slot:
        raise ConfigError(
            f"SCHEDULER_QUEUE_KEY = {keys.queue!r}: the unpaired brace puts this key into another cluster slot than "
            "its other keys; use a name without braces, or with one pair"
        )
    if not of_queue.share_slot_with(keys.filter):
        raise ConfigError(
            f"SCHEDULER_DUPEFILTER_KEY = {keys.filter!r}: the cluster keeps it in another slot than the queue "
            f"{keys.queue!r}, but both change in one step; set SCHEDULER_DUPEFILTER_KEY = {of_queue.dupefilter!r}, or "
            "give both keys the same part in braces"
        )
