"""The queue on a server: it carries operations out."""

from typing import Any

from scrapy_bloom._format import as_bytes
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.operations import QueueOperation, Reply
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Command


class RequestQueue:
    """The queue at `key`, a sorted set of serialised requests by their scores, over a Redis client.

    Raises:
        ConfigError: the client is a cluster's, and the key is such that the queue's other keys are elsewhere.
    """

    def __init__(self, client: Any, key: str) -> None:
        self.keys = QueueKeys(key)
        # What a cluster's client has and no other.
        if hasattr(client, "keyslot") and not self.keys.share_a_slot:
            raise ConfigError(
                f"SCHEDULER_QUEUE_KEY = {key!r}: a cluster has this key elsewhere than those that its workers make "
                "beside it, since a brace in it is not one of a pair; set a name without braces, or with one pair"
            )
        self._transport = transport_for(client)
        self._encoder = client.get_encoder() if hasattr(client, "get_encoder") else None

    def execute(self, operation: QueueOperation) -> Reply:
        """Carry out an operation.

        Raises:
            ConfigError: it was carried out, and the client cannot decode a request in the reply.
        """
        try:
            (raw,) = self._transport.execute([operation.command(self.keys)])
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"REDIS_DECODE_RESPONSES = True: the queue {self.keys.queue!r} has requests that are no text in "
                f"{error.encoding}, as Scrapy's pickles are; set it to False (in REDIS_PARAMS decode_responses), or "
                "SCHEDULER_SERIALIZER to a module that makes text, and delete the queue"
            ) from None
        return Reply.parse(raw, self.encode)

    def count(self) -> int:
        """Return how many requests wait."""
        return int(self._transport.execute([Command("ZCARD", self.keys.queue)])[0])

    def encode(self, member: str | bytes) -> bytes:
        """Return what Redis has of a serialised request."""
        return as_bytes(member) if self._encoder is None else bytes(self._encoder.encode(member))

    def decode(self, member: bytes) -> str | bytes:
        """Return a serialised request as the client gives it back: as text, if it decodes replies."""
        return member if self._encoder is None else self._encoder.decode(member)
