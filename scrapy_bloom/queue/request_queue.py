"""The queue on a server: execute operations as scripts."""

from typing import Any

from scrapy_bloom._format import as_bytes
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.operations import QueueOperation, Reply
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Command


class RequestQueue:
    """The queue at `key`, a sorted set of serialized requests by score.

    Args:
        client: a Redis client.
        key: the key of the queue.

    Raises:
        ConfigError: the queue's other keys are in another slot of the client's cluster.
    """

    def __init__(self, client: Any, key: str) -> None:
        self.keys = QueueKeys(key)
        # Only a cluster's client has this method.
        if hasattr(client, "keyslot") and not self.keys.share_a_slot:
            raise ConfigError(
                f"SCHEDULER_QUEUE_KEY = {key!r}: the unpaired brace puts this key into another cluster slot than the "
                "keys of its workers; use a name without braces, or with one pair"
            )
        self._transport = transport_for(client)
        self._encoder = client.get_encoder() if hasattr(client, "get_encoder") else None

    def execute(self, operation: QueueOperation) -> Reply:
        """Execute an operation and return its reply.

        Raises:
            ConfigError: the operation was executed, but the client cannot decode its reply.
        """
        try:
            (raw,) = self._transport.execute([operation.command(self.keys)])
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"REDIS_DECODE_RESPONSES = True: the queue {self.keys.queue!r} holds requests that are not valid "
                f"{error.encoding} text, such as Scrapy's pickles. Set it to False (decode_responses in REDIS_PARAMS), "
                "or set SCHEDULER_SERIALIZER to a text serializer and delete the queue"
            ) from None
        return Reply.parse(raw, self.encode)

    def count(self) -> int:
        """Return the number of waiting requests."""
        return int(self._transport.execute([Command("ZCARD", self.keys.queue)])[0])

    def encode(self, member: str | bytes) -> bytes:
        """Return a serialized request as Redis stores it."""
        return as_bytes(member) if self._encoder is None else bytes(self._encoder.encode(member))

    def decode(self, member: bytes) -> str | bytes:
        """Return a serialized request as the client does: text if it decodes replies."""
        return member if self._encoder is None else self._encoder.decode(member)
