"""The table of a server's errors, row by row: waits and advice."""

import pickle

import pytest
from redis import exceptions
from redis.sentinel import MasterNotFoundError

from scrapy_bloom import UnavailableError
from scrapy_bloom.errors import ConfigError, StoppedError
from scrapy_bloom.transport import failures
from scrapy_bloom.transport.failures import advice_for, decisive, describe, is_from_replica, was_not_executed

LOGIN, PERMISSION, NODES = failures._LOGIN, failures._PERMISSION, failures._NODES
MEMORY, PROTOCOL, WRONG_TYPE = failures._MEMORY, failures._OLD_SERVER, failures._WRONG_TYPE
CLUSTER, SINGLE = failures._CLUSTER, failures._SINGLE
COMMAND, KEYS, SLOTS, SIZE = failures._COMMAND, failures._KEYS, failures._SLOTS, failures._SIZE
WAIT = None
# Whether an error excludes that the command was executed, and whether a replica raised it.
DOUBT, REFUSED, REPLICA = (False, False), (True, False), (True, True)

# Servers' error texts as redis-py passes them on: without the code, where redis-py has a class for it. Redis up to 6
# prefixes an error inside a script with words of its own.
OOM = "command not allowed when used memory > 'maxmemory'."
BUSY = "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
MISCONF = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."
AOF = "MISCONF Errors writing to the AOF file: No space left on device"
READONLY = "READONLY You can't write against a read only replica."
REPLICAS = "NOREPLICAS Not enough good replicas to write."
NON_LOCAL = "to access a non local key in a cluster node"
IN_SCRIPT = "script: 9282fe9cd1ad17b421df71a1d74837df7d50241a, on @user_script:1."
OLD_SCRIPT = (
    "Error running script (call to f_9282fe9cd1ad17b421df71a1d74837df7d50241a): @user_script:1: @user_script: 1:"
)
SHOULD = "should be passed using the KEYS array"
DISCARDED = "Transaction discarded because of:"

# Those of other servers, of proxies and of managed services, each behind its source.
OF_OTHERS: list[tuple[str | None, Exception]] = [
    # Envoy, source/extensions/filters/network/redis_proxy/command_splitter_impl.cc and .h.
    (WAIT, exceptions.ResponseError("no upstream host")),
    (WAIT, exceptions.ResponseError("upstream failure")),
    (COMMAND, exceptions.ResponseError("unsupported command 'EVALSHA'")),
    # twemproxy, src/nc_message.c: "-ERR" and strerror(); it closes the connection at unknown commands.
    (WAIT, exceptions.ResponseError("Connection refused")),
    (WAIT, exceptions.ResponseError("Connection timed out")),
    (WAIT, exceptions.ResponseError("No route to host")),
    # Predixy, src/Response.cpp, with its spelling.
    (WAIT, exceptions.ResponseError("no server avaliable")),
    (WAIT, exceptions.ResponseError("no server connection avaliable")),
    (WAIT, exceptions.ResponseError("server connection close")),
    (WAIT, exceptions.ResponseError("deliver request fail")),
    (COMMAND, exceptions.ResponseError("unknown command")),
    # Codis, pkg/proxy/backend.go and session.go.
    (WAIT, exceptions.ResponseError("handle response, backend conn reset")),
    (COMMAND, exceptions.ResponseError("command 'EVALSHA' is not allowed")),
    # Redis with rename-command, Azure and Memorystore, which block commands in this way; and within a script.
    (COMMAND, exceptions.ResponseError("unknown command 'EVAL', with args beginning with: 'return 0'")),
    (COMMAND, exceptions.ResponseError(f"Unknown Redis command called from script {IN_SCRIPT}")),
    (COMMAND, exceptions.ResponseError(f"This Redis command is not allowed from script {IN_SCRIPT}")),
    # Dragonfly, src/facade/error.h; the key: https://github.com/dragonflydb/dragonfly/issues/3962.
    (KEYS, exceptions.ResponseError(f"{OLD_SCRIPT} script tried accessing undeclared key, key: {{news}}:leases:1")),
    (MEMORY, exceptions.ResponseError("Out of memory")),
    # Alibaba Cloud, https://help.aliyun.com/document_detail/92942.html.
    (KEYS, exceptions.ResponseError(f"bad lua script for redis cluster, all the keys that the script uses {SHOULD}")),
    (SLOTS, exceptions.ResponseError("eval/evalsha command keys must be in same slot")),
    (COMMAND, exceptions.ResponseError("command eval not support for normal user")),
    # Clusters that are used as a server, and Redis Software.
    (SLOTS, exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot")),
    # ElastiCache Serverless, https://github.com/redisson/redisson/issues/6463.
    (SLOTS, exceptions.ResponseError(f"Script attempted to access keys that do not hash to the same slot {IN_SCRIPT}")),
    # Upstash, https://upstash.com/docs/redis/troubleshooting.
    (SIZE, exceptions.ResponseError("max request size exceeded")),
    (MEMORY, exceptions.ResponseError("DB capacity quota exceeded")),
    (WAIT, exceptions.ResponseError("max concurrent connections exceeded")),
]

CASES: list[tuple[str | None, tuple[bool, bool], Exception]] = [
    # Both are ConnectionErrors, which are waited for further down.
    (LOGIN, DOUBT, exceptions.AuthenticationError("NOAUTH")),
    (LOGIN, DOUBT, exceptions.AuthorizationError("x")),
    (NODES, DOUBT, exceptions.NoPermissionError("User x has no permissions to run the 'cluster|slots' command")),
    # Redis 6.2.
    (NODES, DOUBT, exceptions.NoPermissionError("this user has no permissions to run the 'cluster' command or its")),
    (NODES, DOUBT, exceptions.NoPermissionError("this user has no permissions to run the 'command' command")),
    (PERMISSION, DOUBT, exceptions.NoPermissionError("this user has no permissions to run the 'eval' command")),
    (MEMORY, REFUSED, exceptions.OutOfMemoryError(OOM)),
    (MEMORY, REFUSED, exceptions.OutOfMemoryError(f"{OOM} {IN_SCRIPT}")),
    (MEMORY, REFUSED, exceptions.ExecAbortError(f"{DISCARDED} OOM {OOM}")),
    (MEMORY, REFUSED, exceptions.ResponseError(f"{OLD_SCRIPT} -OOM {OOM}")),
    (WAIT, DOUBT, exceptions.ConnectionError("Connection refused")),
    # A server with too many clients says so to a new one, and hangs up.
    (WAIT, REFUSED, exceptions.ConnectionError("max number of clients reached")),
    # It is waited for with any text.
    (WAIT, DOUBT, exceptions.ConnectionError("unknown command 'HELLO'")),
    (WAIT, REPLICA, exceptions.BusyLoadingError("Redis is loading the dataset in memory")),
    (WAIT, DOUBT, exceptions.TimeoutError("Timeout reading from socket")),
    (WAIT, REPLICA, exceptions.ReadOnlyError("You can't write against a read only replica.")),
    (WAIT, REFUSED, exceptions.TryAgainError("Multiple keys request during rehashing of slot")),
    (WAIT, REFUSED, exceptions.ClusterDownError("CLUSTERDOWN The cluster is down")),
    (WAIT, REPLICA, exceptions.MasterDownError("Link with MASTER is down")),
    (WAIT, DOUBT, exceptions.RedisClusterException("Redis Cluster cannot be connected")),
    (WAIT, REFUSED, exceptions.ResponseError(REPLICAS)),
    (WAIT, REFUSED, exceptions.ResponseError(f"{REPLICAS} {IN_SCRIPT}")),
    (WAIT, REFUSED, exceptions.ResponseError(BUSY)),
    (WAIT, REFUSED, exceptions.ResponseError("BUSY Redis is busy running a module command.")),
    (WAIT, REFUSED, exceptions.ResponseError(MISCONF)),
    (WAIT, REFUSED, exceptions.ResponseError(f"{MISCONF} {IN_SCRIPT}")),
    (WAIT, REFUSED, exceptions.ResponseError(AOF)),
    (WAIT, REFUSED, exceptions.ResponseError(f"{OLD_SCRIPT} -{AOF}")),
    (WAIT, REPLICA, exceptions.ResponseError(f"{OLD_SCRIPT} {READONLY}")),
    (WAIT, REFUSED, exceptions.ExecAbortError(f"{DISCARDED} {BUSY}")),
    (WAIT, REPLICA, exceptions.ExecAbortError(f"{DISCARDED} {READONLY}")),
    (WAIT, REPLICA, exceptions.ExecAbortError(f"{DISCARDED} LOADING Redis is loading the dataset in memory")),
    (WAIT, REPLICA, exceptions.ExecAbortError(f"{DISCARDED} MASTERDOWN Link with MASTER is down")),
    (WAIT, REFUSED, exceptions.ExecAbortError(f"{DISCARDED} CLUSTERDOWN The cluster is down")),
    (WAIT, REFUSED, exceptions.ExecAbortError(f"{DISCARDED} TRYAGAIN Multiple keys request during rehashing of slot")),
    (WAIT, DOUBT, exceptions.ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed")),
    (WAIT, DOUBT, exceptions.ResponseError(f"Attempted {NON_LOCAL} {IN_SCRIPT}")),
    (WAIT, DOUBT, exceptions.ResponseError(f"Script attempted {NON_LOCAL} {IN_SCRIPT}")),
    (WAIT, DOUBT, exceptions.ResponseError(f"{OLD_SCRIPT} Script attempted {NON_LOCAL}")),
    (WAIT, REFUSED, exceptions.ResponseError("max number of clients + cluster connections reached")),
    (PROTOCOL, DOUBT, exceptions.ResponseError("unknown command 'HELLO', with args beginning with: '3'")),
    (PERMISSION, DOUBT, exceptions.ResponseError("ACL failure in script: no permissions to run the 'hget' command")),
    (PERMISSION, DOUBT, exceptions.ResponseError("The user executing the script can't run this command or subcommand")),
    (WRONG_TYPE, DOUBT, exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")),
    (CLUSTER, DOUBT, exceptions.MovedError("866 127.0.0.1:7001")),
    (CLUSTER, DOUBT, exceptions.AskError("866 127.0.0.1:7001")),
    (CLUSTER, DOUBT, exceptions.ResponseError("SELECT is not allowed in cluster mode")),
    (SINGLE, DOUBT, exceptions.ResponseError("This instance has cluster support disabled")),
    *((advice, DOUBT, error) for advice, error in OF_OTHERS),
]
UNKNOWN: list[Exception] = [
    exceptions.ResponseError("ERR value is not an integer or out of range"),
    # Only as an unknown command it means the protocol.
    exceptions.ResponseError("HELLO"),
    # Codes that others begin with.
    exceptions.ResponseError("BUSYKEY Target key name already exists."),
    exceptions.ResponseError("BUSYGROUP Consumer Group name already exists"),
    exceptions.ResponseError("the word BUSY in a text"),
    exceptions.DataError("x"),
]


def wrapped(error: Exception) -> Exception:
    """Return the error of redis-py if a node of a cluster raises this one, and no other node can be used."""
    if isinstance(error, exceptions.ResponseError):
        reply, error = error, exceptions.RedisClusterException("Cluster mode is not enabled on this node")
        error.__context__ = reply
    outer = exceptions.RedisClusterException(f"Redis Cluster cannot be connected: {error}")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(("advice", "fate", "error"), CASES, ids=lambda each: f"{each}"[:60])
def test_case(advice: str | None, fate: tuple[bool, bool], error: Exception) -> None:
    """Some errors are waited for, the others have advice; only some exclude that the command was executed."""
    assert advice_for(error) == advice
    assert (was_not_executed(error), is_from_replica(error)) == fate
    # So is the error which redis-py raises for the error of a node.
    outer = wrapped(error)
    assert str(outer).startswith("Redis Cluster cannot be connected")
    assert (advice_for(outer), describe(outer)) == (advice, describe(error))
    assert (was_not_executed(outer), is_from_replica(outer)) == fate


@pytest.mark.parametrize("error", UNKNOWN, ids=describe)
def test_what_no_row_matches(error: Exception) -> None:
    """An unknown error ends the wait, and its own text is the advice."""
    assert advice_for(error) == "see the error"


def test_a_wrapped_error_of_another_kind() -> None:
    """A report that was raised while another error was handled is not that error."""
    outer = exceptions.RedisClusterException("All slots are not covered")
    outer.__context__ = exceptions.MovedError("866 127.0.0.1:7001")
    assert advice_for(outer) is None
    assert describe(outer) == "RedisClusterException: All slots are not covered"


REFUSES = exceptions.AuthenticationError("invalid username-password pair")
IS_AWAY = exceptions.ConnectionError("Connection refused")


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([REFUSES], REFUSES),
        ([IS_AWAY], IS_AWAY),
        ([REFUSES, IS_AWAY], IS_AWAY),
        ([IS_AWAY, REFUSES, REFUSES], REFUSES),
        ([REFUSES, IS_AWAY, IS_AWAY], IS_AWAY),
        ([REFUSES, IS_AWAY, REFUSES, IS_AWAY], IS_AWAY),
    ],
)
def test_most_nodes_decide(errors: list[Exception], expected: Exception) -> None:
    """A single node that refuses may be misconfigured: the crawl waits for the others."""
    assert decisive(errors) is expected


# What is shown of an error that quotes a password.
SHOWN: list[tuple[str, Exception]] = [
    (
        "ResponseError: ERR no such user",
        exceptions.ResponseError("Command # 1 (AUTH secret) of pipeline caused error: ERR no such user"),
    ),
    (
        "ResponseError: unknown command 'HELLO'",
        exceptions.ResponseError("unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'secret'"),
    ),
    (
        "MasterNotFoundError: No master found for 'crawl'",
        MasterNotFoundError("No master found for 'crawl' : <redis.client.Redis(<…(host=a,password=secret)>)> - x()"),
    ),
    (
        "ConnectionError: cannot reach redis://…@shop.test:6379/0 now",
        exceptions.ConnectionError("cannot reach redis://user:s3cr/e@t@shop.test:6379/0 now"),
    ),
    # One of ours hides it already, and has advice.
    ("capacity = 0: must be more", ConfigError("capacity = 0: must be more")),
]


@pytest.mark.parametrize(("shown", "error"), SHOWN, ids=[shown for shown, _ in SHOWN])
def test_a_password_in_an_error_is_not_told(shown: str, error: Exception) -> None:
    """Neither a command in a pipeline, nor the arguments of an unknown one, nor the password of a URL is shown."""
    assert describe(error) == shown


@pytest.mark.parametrize("kind", [UnavailableError, StoppedError])
def test_unavailable_error_is_pickled(kind: type[UnavailableError]) -> None:
    """An error comes back with its text and its cause."""
    error = kind(3.0, "ConnectionError: refused")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert (str(again), again.cause, again.timeout) == (str(error), error.cause, 3.0)
