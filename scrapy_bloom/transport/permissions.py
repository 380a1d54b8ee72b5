"""The commands that a user of the server must be allowed, as its ACL names them."""

from collections.abc import Sequence

# On the filter's keys: the hash, and those that begin with its name and a colon.
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
# On the queue's: its own, and those that begin with it in braces.
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
    """Return commands as they stand in a sentence."""
    *most, last = commands
    return f"{', '.join(most)} and {last}"
