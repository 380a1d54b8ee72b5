"""Check a Redis client, and close it."""

from typing import Any

from redis import Redis, RedisCluster
from redis.client import Pipeline
from redis.cluster import ClusterPipeline

from scrapy_bloom.errors import ConfigError

# They are clients by their classes, but `execute_command` does not return a reply.
NO_CLIENTS = (Pipeline, ClusterPipeline)

Client = Redis | RedisCluster


def drop_connections(client: Any) -> None:
    """Close a client's connections; its next command opens another one."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:  # of a cluster; its `close` leaves the connections open if it was made from a URL
        client.disconnect_connection_pools()
    else:
        pool.disconnect()


def disconnect(client: Any) -> None:
    """Close a client's connections for good."""
    drop_connections(client)
    # redis-py keeps a connection to each Sentinel that it has asked for the master.
    sentinels = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for sentinel in getattr(sentinels, "sentinels", ()):
        sentinel.close()


def require_usable(client: Any) -> Any:
    """Return the client unchanged. Errors show its type only.

    Raises:
        ConfigError: it is neither a `redis.Redis` nor a `redis.RedisCluster`.
    """
    if not isinstance(client, (Redis, RedisCluster)) or isinstance(client, NO_CLIENTS):
        kind, name = (client, "the class ") if isinstance(client, type) else (type(client), "")
        raise ConfigError(
            f"server = {name}{kind.__module__}.{kind.__qualname__}: must be a synchronous Redis client; "
            "pass a redis.Redis or redis.RedisCluster"
        )
    return client
