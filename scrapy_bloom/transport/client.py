"""Check a Redis client, choose its transport, and close it."""

import inspect
from typing import Any, Protocol

from redis import Redis, RedisCluster
from redis.client import Pipeline, PubSub
from redis.cluster import ClusterPipeline

from scrapy_bloom.errors import SETTING_NAMES, ConfigError, Names
from scrapy_bloom.transport.cluster import ClusterTransport
from scrapy_bloom.transport.pooled import PooledTransport
from scrapy_bloom.transport.sequential import SequentialTransport
from scrapy_bloom.transport.slots import disconnect_nodes
from scrapy_bloom.transport.transport import Transport

# They have `execute_command`, but it does not return a reply.
_NO_CLIENTS = (type, Pipeline, ClusterPipeline, PubSub)
# All characters of the replies that are decoded.
_ASCII = bytes(range(32, 127))


class Client(Protocol):
    """A Redis client: `redis.Redis`, `redis.RedisCluster` and compatible classes."""

    def execute_command(self, *args: Any) -> Any:
        """Send one command and return its reply."""


def transport_for(client: Any) -> Transport:
    """Return the transport for a client; a class with an `execute_command` of its own sends each command through that.

    Raises:
        ConfigError: the client cannot be used.
    """
    require_usable(client)
    execute = getattr(type(client), "execute_command", None)
    if execute is RedisCluster.execute_command:
        return ClusterTransport(client)
    if execute is Redis.execute_command and client.connection is None:
        return PooledTransport(client)
    return SequentialTransport(client)


def disconnect(client: Any) -> None:
    """Close a client's connections; do nothing for a user's class without `close`."""
    disconnect_nodes(client)
    # A cluster's `close` leaves the connections open if the client was made from a URL.
    close = getattr(client, "disconnect_connection_pools", None) or getattr(client, "close", None)
    if close is not None:
        close()
    # redis-py keeps a connection to each Sentinel that it has asked for the master.
    sentinels = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for sentinel in getattr(sentinels, "sentinels", ()):
        sentinel.close()


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
