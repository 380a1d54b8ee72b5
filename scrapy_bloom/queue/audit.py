"""The audit of a queue, for those who read it, or take requests without the scripts that keep it."""

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


def read_audit(client: Any, queue: str) -> Audit:
    """Return the audit of a queue; one without has counted nothing."""
    command = Command("HMGET", QueueKeys(queue).audit, "waiting", "lost", "loss", "shared")
    waiting, lost, loss, shared = transport_for(client).execute([command])[0]
    return Audit(int(as_text(waiting or "0")), int(as_text(lost or "0")), loss is not None, shared is not None)


def mark_shared(client: Any, queue: str) -> None:
    """Note that a worker without the scripts takes requests of a queue, which is not lost when it is empty."""
    transport_for(client).execute([Command("HSET", QueueKeys(queue).audit, "shared", 1)])


def delete_audit(client: Any, queue: str) -> None:
    """Delete the audit of a queue that is deleted without the scripts."""
    transport_for(client).execute([Command("DEL", QueueKeys(queue).audit)])
