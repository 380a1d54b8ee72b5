"""The audit of a queue, for those who read it, or take requests without the scripts that keep it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from scrapy_bloom._text import as_text
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.transport.base import transport_for
from scrapy_bloom.transport.commands import Command

# At one moment, or workers would change one of both between.
_READ = "return {redis.call('ZCARD', KEYS[1]), redis.call('HGETALL', KEYS[2])}"


class Audit(NamedTuple):
    """The number of requests that have vanished with their queue, and whether there were losses without a number, too.

    Of a queue that `is_shared` with scrapy-redis's scheduler nobody can tell whether it was deleted or emptied.
    """

    lost: int = 0
    has_losses: bool = False
    is_shared: bool = False


def items_of(values: Any) -> Sequence[tuple[Any, Any]]:
    """Return the fields of a hash, which a client gives as a dict over RESP3, and as a list otherwise."""
    return list(values.items()) if isinstance(values, dict) else list(zip(values[::2], values[1::2], strict=True))


def read_audit(client: Any, queue: str) -> Audit:
    """Return the audit of a queue that is a sorted set, or is not there; one without has counted nothing.

    Requests that have vanished since the last script are among the lost ones.
    """
    command = Command("EVAL", _READ, 2, queue, QueueKeys(queue).audit)
    waiting, raw = transport_for(client).execute([command])[0]
    fields = {as_text(name): int(as_text(value)) for name, value in items_of(raw)}
    is_shared = "shared" in fields
    missing = 0 if int(waiting) or is_shared else fields.get("waiting", 0)
    return Audit(fields.get("lost", 0) + missing, "loss" in fields or missing > 0, is_shared)


def mark_shared(client: Any, queue: str) -> None:
    """Note that a worker without the scripts takes requests of a queue, which is not lost when it is empty."""
    transport_for(client).execute([Command("HSET", QueueKeys(queue).audit, "shared", 1)])


def delete_audit(client: Any, queue: str) -> None:
    """Delete the audit of a queue that is deleted without the scripts."""
    transport_for(client).execute([Command("DEL", QueueKeys(queue).audit)])
