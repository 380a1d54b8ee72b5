"""The audit of a queue, for those who read it, or take requests without the scripts that keep it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from scrapy_bloom._text import as_text
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.transport.base import transport_for
from scrapy_bloom.transport.commands import Command


class Audit(NamedTuple):
    """The number of requests that waited after the last script, and of those that have vanished with their queue.

    Of a queue that `is_shared` with scrapy-redis's scheduler nobody can tell whether it was deleted or emptied.
    """

    waiting: int = 0
    lost: int = 0
    has_losses: bool = False
    is_shared: bool = False

    def missing(self, waiting: int) -> int:
        """Return how many requests are gone of a queue in which so many wait now, beside those known to be lost."""
        return 0 if waiting or self.is_shared else self.waiting


def items_of(values: Any) -> Sequence[tuple[Any, Any]]:
    """Return the fields of a hash, which a client gives as a dict over RESP3, and as a list otherwise."""
    return list(values.items()) if isinstance(values, dict) else list(zip(values[::2], values[1::2], strict=True))


def read_audit(client: Any, queue: str) -> Audit:
    """Return the audit of a queue; one without has counted nothing."""
    raw = transport_for(client).execute([Command("HGETALL", QueueKeys(queue).audit)])[0]
    fields = {as_text(name): int(as_text(value)) for name, value in items_of(raw)}
    return Audit(fields.get("waiting", 0), fields.get("lost", 0), "loss" in fields, "shared" in fields)


def mark_shared(client: Any, queue: str) -> None:
    """Note that a worker without the scripts takes requests of a queue, which is not lost when it is empty."""
    transport_for(client).execute([Command("HSET", QueueKeys(queue).audit, "shared", 1)])


def delete_audit(client: Any, queue: str) -> None:
    """Delete the audit of a queue that is deleted without the scripts."""
    transport_for(client).execute([Command("DEL", QueueKeys(queue).audit)])
