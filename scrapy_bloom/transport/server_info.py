"""Read a server's INFO and its maxmemory-policy, and list the commands that its ACL must allow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Info = Mapping[str, Any]

# The oldest version that the tests run on, as INFO's `redis_version`; Valkey reports 7.2 or newer.
OLDEST_REDIS = (6, 2)


def nodes(client: Any) -> Iterator[tuple[dict[str, Any], Info]]:
    """Yield redis-py's options to address a node, and its INFO, for a server or each primary of a cluster."""
    addresses = [{"target_nodes": node} for node in client.get_primaries()] if is_cluster(client) else [{}]
    for address in addresses:
        yield address, client.info(**address)


def is_cluster(client: Any) -> bool:
    """Return whether a client is connected to a cluster."""
    return hasattr(client, "get_primaries")


def evicts(info: Info, *, expires: bool) -> bool:
    """Return whether a full server evicts the keys in question, which `expires` says have an expiry."""
    policies = ("allkeys-", "volatile-") if expires else ("allkeys-",)
    return bool(info.get("maxmemory")) and policy(info).startswith(policies)


def policy(info: Info) -> str:
    """Return the maxmemory-policy; managed servers may hide it."""
    return str(info.get("maxmemory_policy", "unknown"))


# On the filter's keys: the hash, and all keys that begin with its name and a colon.
FILTER_COMMANDS = (
    "BITFIELD",
    "BITFIELD_RO",
    "BITCOUNT",
    "EVAL",
    "EVALSHA",
    "EXISTS",
    "GETRANGE",
    "HDEL",
    "HEXISTS",
    "HGET",
    "HGETALL",
    "HINCRBY",
    "HSET",
    "HSETNX",
    "PERSIST",
    "PEXPIREAT",
    "PTTL",
    "SCARD",
    "STRLEN",
    "TIME",
    "TYPE",
    "UNLINK",
)
# On the filter's keys as well, once a request is forgotten.
FORGET_COMMANDS = ("ZADD", "ZMSCORE", "ZREM", "ZSCORE")
# On the queue's keys: the queue itself, and all keys that begin with its name in braces.
QUEUE_COMMANDS = (
    "PING",
    "EVAL",
    "EVALSHA",
    "TIME",
    "ZADD",
    "ZREM",
    "ZPOPMIN",
    "ZRANGE",
    "ZSCORE",
    "ZCARD",
    "HGET",
    "HGETALL",
    "HKEYS",
    "HLEN",
    "HSET",
    "HDEL",
    "DEL",
)


def as_sentence(commands: Sequence[str]) -> str:
    """Return commands as an enumeration: `A, B and C`."""
    *most, last = commands
    return f"{', '.join(most)} and {last}"
