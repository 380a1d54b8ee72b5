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


# The commands of the scripts of a filter, and of a look at it, on its key and on the keys that begin with it in braces.
FILTER_COMMANDS = (
    "EVAL",
    "EVALSHA",
    "EXISTS",
    "GET",
    "GETRANGE",
    "HDEL",
    "HEXISTS",
    "HGET",
    "HINCRBY",
    "HMGET",
    "HSET",
    "PEXPIREAT",
    "PTTL",
    "SET",
    "SETRANGE",
    "STRLEN",
    "TIME",
    "TYPE",
    "UNLINK",
)
# Further commands of a queue, on its key and on the keys that begin with it in braces; HKEYS: of start URLs.
QUEUE_COMMANDS = (
    "DEL",
    "HGETALL",
    "HKEYS",
    "HLEN",
    "HSCAN",
    "PERSIST",
    "PEXPIRE",
    "PING",
    "ZADD",
    "ZCARD",
    "ZRANGE",
    "ZREM",
    "ZSCORE",
)


def as_sentence(commands: Sequence[str]) -> str:
    """Return commands as an enumeration: `A, B and C`."""
    *most, last = commands
    return f"{', '.join(most)} and {last}"
