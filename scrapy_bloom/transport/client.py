"""The needed part of a Redis client, and the transport that suits each kind."""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from redis import Redis
from redis.client import Pipeline, PubSub
from redis.cluster import ClusterPipeline

from scrapy_bloom._names import SETTINGS, Names
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.pooled import PooledTransport
from scrapy_bloom.transport.sequential import SequentialTransport

# What has a client's method, and answers it by something else than the reply.
_NO_CLIENTS = (type, Pipeline, ClusterPipeline, PubSub)
# The characters of our own replies.
_ASCII = bytes(range(32, 127))


class Client(Protocol):
    """A Redis client: `redis.Redis`, `redis.RedisCluster` and what behaves like them."""

    def execute_command(self, *args: Any) -> Any:
        """Send one command and return its reply."""


class Transport(Protocol):
    """Carries commands to a server and replies back. It never sends anything twice."""

    @property
    def connections(self) -> int:
        """The number of connections that there were; where it grows, the server may have lost its last writes."""

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in their order and return their replies; raise the first error among them."""


def transport_for(client: Any) -> Transport:
    """Return the transport for a client: one round trip for all commands, where one pooled connection takes them all.

    Raises:
        ConfigError: the client cannot work.
    """
    require_usable(client)
    is_plain = type(client).execute_command is Redis.execute_command and client.connection is None
    return PooledTransport(client) if is_plain else SequentialTransport(client)


def require_usable(client: Any, names: Names = SETTINGS) -> Any:
    """Return the client, before anything is sent; an error shows no more of it than its type, and the user's `names`.

    Raises:
        ConfigError: the client is asynchronous or no client, or decodes replies by an encoding without ASCII.
    """
    execute = getattr(client, "execute_command", None)
    if execute is None or isinstance(client, _NO_CLIENTS) or inspect.iscoroutinefunction(execute):
        kind, name = (client, "the class ") if isinstance(client, type) else (type(client), "")
        raise ConfigError(
            f"server = {name}{kind.__module__}.{kind.__qualname__}: must be a client that answers when it is "
            f"called; pass a redis.Redis or redis.RedisCluster{names.client}"
        )
    encoder = client.get_encoder() if hasattr(client, "get_encoder") else None
    if encoder is not None and encoder.decode_responses and not _keeps_ascii(encoder.encoding):
        raise ConfigError(
            f"encoding = {encoder.encoding!r}: must be one in which ASCII is ASCII, where replies are decoded; pass "
            f"encoding='utf-8', or decode_responses=False{names.encoding}"
        )
    return client


def _keeps_ascii(encoding: str) -> bool:
    try:
        return _ASCII.decode(encoding) == _ASCII.decode("ascii")
    except (LookupError, ValueError):
        return False
