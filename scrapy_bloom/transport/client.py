"""Check a Redis client and choose its transport."""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from redis import Redis
from redis.client import Pipeline, PubSub
from redis.cluster import ClusterPipeline

from scrapy_bloom.errors import SETTING_NAMES, ConfigError, Names
from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.pooled import PooledTransport
from scrapy_bloom.transport.sequential import SequentialTransport

# They have `execute_command`, but it does not return a reply.
_NO_CLIENTS = (type, Pipeline, ClusterPipeline, PubSub)
# All characters of the replies that are decoded.
_ASCII = bytes(range(32, 127))


class Client(Protocol):
    """A Redis client: `redis.Redis`, `redis.RedisCluster` and compatible classes."""

    def execute_command(self, *args: Any) -> Any:
        """Send one command and return its reply."""


class Transport(Protocol):
    """Sends commands and returns replies. A command is never executed twice."""

    @property
    def connections(self) -> int:
        """The number of connections so far; after a new one, the server may have lost its last writes."""

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in order and return their replies; raise the first error among them."""


def transport_for(client: Any) -> Transport:
    """Return the transport for a client: pooled for a plain `redis.Redis`, sequential for all others.

    Raises:
        ConfigError: the client cannot be used.
    """
    require_usable(client)
    is_plain = type(client).execute_command is Redis.execute_command and client.connection is None
    return PooledTransport(client) if is_plain else SequentialTransport(client)


def require_usable(client: Any, names: Names = SETTING_NAMES) -> Any:
    """Return the client unchanged. Errors show its type only, and the user's `names`.

    Raises:
        ConfigError: the client is asynchronous, is no client, or decodes replies in an encoding without ASCII.
    """
    execute = getattr(client, "execute_command", None)
    if execute is None or isinstance(client, _NO_CLIENTS) or inspect.iscoroutinefunction(execute):
        kind, name = (client, "the class ") if isinstance(client, type) else (type(client), "")
        raise ConfigError(
            f"server = {name}{kind.__module__}.{kind.__qualname__}: must be a synchronous Redis client; "
            f"pass a redis.Redis or redis.RedisCluster{names.client}"
        )
    encoder = client.get_encoder() if hasattr(client, "get_encoder") else None
    if encoder is not None and encoder.decode_responses and not _keeps_ascii(encoder.encoding):
        raise ConfigError(
            f"encoding = {encoder.encoding!r}: must contain ASCII, because the client decodes replies; pass "
            f"encoding='utf-8' or decode_responses=False{names.encoding}"
        )
    return client


def _keeps_ascii(encoding: str) -> bool:
    try:
        return _ASCII.decode(encoding) == _ASCII.decode("ascii")
    except (LookupError, ValueError):
        return False
