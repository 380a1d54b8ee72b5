"""The commands that a server's ACL must allow."""

from collections.abc import Sequence

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
    "PEXPIREAT",
    "PTTL",
    "SCARD",
    "STRLEN",
    "TIME",
    "TYPE",
    "UNLINK",
)
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
