"""Classify a server's errors as transient or final, and give advice on the final ones."""

import re
from collections.abc import Sequence

from redis import exceptions

from scrapy_bloom.errors import BloomError, UnavailableError

# All errors of redis-py; RedisClusterException is not a RedisError.
FAULTS = (exceptions.RedisError, exceptions.RedisClusterException)
# LOADING is a ConnectionError too; MASTERDOWN and CLUSTERDOWN are ClusterErrors.
_TRANSIENT_ERRORS = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
)
# The errors that guarantee that a command was not executed. A full server refuses a script before its first write only.
_NOT_EXECUTED_ERRORS = (
    exceptions.OutOfMemoryError,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
)
# Error codes of a server that has executed nothing and will recover by itself. Scripts get them as well, before their
# first write. An EXEC and the scripts of Redis 6 cite the code in the error text.
_NOT_NOW = "BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|READONLY|TRYAGAIN"
# A server with too many clients closes a new connection before any command.
_TOO_MANY_CLIENTS = "max number of clients"

# The commands of the scripts of a filter, and of a look at it, on its key and on the keys that begin with it in braces.
_OF_FILTER = (
    "EVAL, EVALSHA, GETRANGE, HDEL, HEXISTS, HGET, HMGET, HSET, PEXPIREAT, PTTL, SETRANGE, STRLEN, TIME, TYPE, UNLINK"
)
# Further commands of a queue, on its key and on the keys that begin with it in braces.
_OF_QUEUE = (
    "DEL, EXISTS, HGETALL, HINCRBY, HKEYS, HLEN, HSCAN, PERSIST, PEXPIRE, PING, ZADD, ZCARD, ZRANGE, ZRANGEBYSCORE, "
    "ZREM, ZSCORE, ZUNIONSTORE"
)
FILTER_COMMANDS, QUEUE_COMMANDS = tuple(_OF_FILTER.split(", ")), tuple(_OF_QUEUE.split(", "))
# Further commands on a key of start data, by its type.
START_COMMANDS = {"list": ("LPOP", "LPUSH"), "set": ("SPOP", "SADD"), "zset": ("ZPOPMAX", "ZADD")}

_LOGIN = "check the user name and the password of the client (REDIS_URL or REDIS_PARAMS)"
_PERMISSION = (
    f"allow {_OF_FILTER} on the filter's keys, and with BloomScheduler these and {_OF_QUEUE} on the queue's keys, too: "
    "on each key and on the keys that begin with it in braces; `scrapy bloom doctor` names the missing rights"
)
_MEMORY = "raise the server's maxmemory, or set a smaller capacity (BLOOMFILTER_CAPACITY)"
_OLD_SERVER = "the server is older than RESP3: set protocol=2 for the client (REDIS_PARAMS = {'protocol': 2})"
_CLUSTER = (
    "the server is a node of a cluster: begin REDIS_URL with redis+cluster://, or rediss+cluster:// for TLS, and omit "
    "the database, or pass a redis.RedisCluster"
)
_SINGLE = (
    "the server belongs to no cluster: begin REDIS_URL with redis://, or rediss:// for TLS, and omit redis_cls in "
    "REDIS_PARAMS, or pass a redis.Redis"
)
_NODES = (
    "allow CLUSTER SLOTS and COMMAND, which find the nodes of the cluster, to the user of the client (REDIS_URL or "
    "REDIS_PARAMS)"
)
_COMMAND = (
    "the server, or a proxy before it, does not execute this command: use another one; `scrapy bloom doctor` tries all "
    "commands of a crawl, among them Lua scripts by EVAL and EVALSHA"
)
_KEYS = (
    "the server refuses scripts that compute the names of keys, as those of a crawl do: allow it (Dragonfly: "
    "--default_lua_flags=allow-undeclared-keys, Alibaba Cloud: script_check_enable 0), or use another server"
)
_SLOTS = (
    "the server is a cluster: begin REDIS_URL with redis+cluster://, or rediss+cluster:// for TLS; behind a proxy, set "
    "SCHEDULER_DUPEFILTER_KEY = '{%(spider)s:requests}:dupefilter'"
)
_SIZE = "let the server take commands of 2 MB and more, or store less in the body, meta and cb_kwargs of requests"
_WRONG_TYPE = "a key holds data of another type: use other keys (SCHEDULER_DUPEFILTER_KEY, SCHEDULER_QUEUE_KEY)"
UNKNOWN = "see the error"

# Errors of proxies while their server is away: of Envoy, twemproxy, which passes on those of its system, Predixy and
# Codis; and Upstash's of too many clients. The tests have the sources.
_AWAY = (
    "(?i)no upstream host|upstream failure|Connection (?:refused|timed out|reset by peer)|Broken pipe|No route to host|"
    "no server (?:connection )?avaliable|server connection close|deliver request fail|backend conn reset|"
    "max concurrent connections exceeded"
)

# User and password of a URL, up to its last @: a password may contain an unquoted @.
_CREDENTIALS = re.compile(r"(?<=://)\S*@")

# The sign of an error: its classes, or a pattern of its text, as `describe` returns that.
Sign = tuple[type[Exception], ...] | str


def _code(codes: str) -> Sign:
    """Return the sign of an error that is or cites one of these codes, after a colon and an optional hyphen."""
    return f": -?(?:{codes}) "


# The advice on an error is that of the first sign that it has; None: the error is transient. Authentication errors come
# first because they are ConnectionErrors. A command denied inside a script has no code of its own, only a text.
_CASES: tuple[tuple[Sign, str | None], ...] = (
    ((exceptions.AuthenticationError, exceptions.AuthorizationError), _LOGIN),
    ("NoPermissionError: .*run the '(?:cluster|command)[|']", _NODES),  # or a subcommand, such as `cluster|slots`
    ((exceptions.NoPermissionError,), _PERMISSION),
    ((exceptions.OutOfMemoryError,), _MEMORY),
    (_code("OOM"), _MEMORY),
    (_TRANSIENT_ERRORS, None),
    # UNBLOCKED ends a waiting command, which may have been executed in part.
    (_code(f"{_NOT_NOW}|UNBLOCKED"), None),
    # A script has deleted its key in a slot that is being moved: it was executed in part.
    ("access a non local key", None),
    (_TOO_MANY_CLIENTS, None),
    ("unknown command.*HELLO", _OLD_SERVER),
    ("ACL failure|can't run this command", _PERMISSION),
    ("WRONGTYPE", _WRONG_TYPE),
    ((exceptions.AskError,), _CLUSTER),
    ("SELECT is not allowed in cluster mode", _CLUSTER),
    ("cluster support disabled", _SINGLE),
    (_AWAY, None),
    ("(?i)undeclared key|bad lua script for redis cluster", _KEYS),
    ("(?i)same slot", _SLOTS),
    ("max request size exceeded", _SIZE),
    ("(?i)out of memory|capacity quota exceeded", _MEMORY),
    ("(?i)un(?:known|supported)(?: redis)? command|is not allowed|not support", _COMMAND),
)
_REFUSED_BEFOREHAND: tuple[Sign, ...] = (_NOT_EXECUTED_ERRORS, _code(f"{_NOT_NOW}|OOM"), _TOO_MANY_CLIENTS)
_FROM_REPLICA: tuple[Sign, ...] = (
    (exceptions.ReadOnlyError, exceptions.MasterDownError, exceptions.BusyLoadingError),
    _code("READONLY|MASTERDOWN|LOADING"),
)


def caught_error(text: str) -> Exception:
    """Return the error of a command whose text a script has caught and returned."""
    return exceptions.ResponseError(text)


def advice_for(error: Exception) -> str | None:
    """Return advice on an error that retrying cannot mend, or None for a transient error."""
    return next((advice for sign, advice in _CASES if _has(error, sign)), UNKNOWN)


def decisive(errors: Sequence[Exception]) -> Exception:
    """Return the error to act on of the nodes of a cluster that all fail: a refusal only if most of them refuse.

    One node may have lost its password or its cluster while the others are briefly unreachable.
    """
    refusals = [error for error in errors if advice_for(error) is not None]
    if 2 * len(refusals) > len(errors):
        return refusals[0]
    return next(error for error in errors if error not in refusals)


def was_not_executed(error: Exception) -> bool:
    """Return whether an error guarantees that the server executed nothing of a command."""
    return any(_has(error, sign) for sign in _REFUSED_BEFOREHAND)


def is_from_replica(error: Exception) -> bool:
    """Return whether an error comes from a replica, or from a server that may become one after loading."""
    return any(_has(error, sign) for sign in _FROM_REPLICA)


def hide_credentials(text: str) -> str:
    """Return a text without the credentials of the URLs in it."""
    return _CREDENTIALS.sub("…@", text)


def _has(error: Exception, sign: Sign) -> bool:
    """Return whether an error has a sign."""
    return bool(re.search(sign, describe(error))) if isinstance(sign, str) else isinstance(_reason(error), sign)


def _reason(error: Exception) -> Exception:
    """Return the error of a node, which redis-py wraps if it can use no node of a cluster, or the error itself."""
    node_error = error.__cause__ if isinstance(error, exceptions.RedisClusterException) else None
    if isinstance(node_error, exceptions.RedisClusterException):
        # "Cluster mode is not enabled", raised for any error that the node replies.
        return node_error.__context__ if isinstance(node_error.__context__, FAULTS) else node_error
    return node_error if isinstance(node_error, FAULTS) else error


def cause_of(error: Exception) -> str:
    """Return the cause of an UnavailableError, and the text of `describe` for any other error."""
    return error.cause if isinstance(error, UnavailableError) else describe(error)


def describe(error: Exception) -> str:
    """Return the type and the text of an error without secrets; for a BloomError, its text unchanged.

    redis-py puts the command before the text of a pipeline's error, and a server puts an unknown command after it. If
    no Sentinel knows a master, redis-py 7 lists the Sentinels' clients with all their options. All of these are cut.
    URLs lose their credentials. If redis-py can use no node of a cluster, the error is that of a node. The notes of an
    error, which say where it happened, come first.
    """
    if isinstance(error, BloomError):
        return str(error)
    where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    error = _reason(error)
    text = str(error).rpartition("caused error: ")[2].partition(", with args beginning with")[0].partition(" : <")[0]
    return f"{where}{type(error).__name__}: {hide_credentials(text)}"
