"""The store in a Redis-compatible server or cluster."""

from collections.abc import Sequence

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.storage.base import Operation, Results
from scrapy_bloom.transport.base import Client, transport_for


class RedisStore:
    """Sends each operation as one command."""

    def __init__(self, client: Client) -> None:
        self._transport = transport_for(client)

    def execute(self, operations: Sequence[Operation]) -> Results:
        """Carry out operations in their order.

        Raises:
            WrongTypeError: a reply is not UTF-8, which nothing that a filter stores as text is.
        """
        try:
            replies = self._transport.execute([operation.command() for operation in operations])
        except UnicodeDecodeError:
            raise WrongTypeError(
                "a key of the filter holds bytes that are not UTF-8, which no filter stores: use another key"
            ) from None
        results = Results([operation.parse_reply(raw) for operation, raw in zip(operations, replies, strict=True)])
        results.contact = self._transport.connections
        return results
