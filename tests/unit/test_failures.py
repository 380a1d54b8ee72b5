"""The table of a server's errors, row by row: waits and advice."""

import pytest
from redis import exceptions
from redis.sentinel import MasterNotFoundError

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.transport import failures
from scrapy_bloom.transport.failures import advice_for, decisive, describe, is_from_replica, was_not_executed

LOGIN, PERMISSION, NODES = failures._LOGIN, failures._PERMISSION, failures._NODES
MEMORY, PROTOCOL, WRONG_TYPE = failures._MEMORY, failures._OLD_SERVER, failures._WRONG_TYPE
CLUSTER, SINGLE = failures._CLUSTER, failures._SINGLE
WAIT = None

# Servers' error texts as redis-py passes them on: without the code, where redis-py has a class for it. Redis up to 6
# prefixes an error inside a script with words of its own.
BUSY = "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
MISCONF = (
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that "
    "may modify the data set are disabled, because this instance is configured to report errors during writes if RDB "
    "snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB "
    "error."
)
READONLY = "READONLY You can't write against a read only replica."
IN_SCRIPT = "script: 9282fe9cd1ad17b421df71a1d74837df7d50241a, on @user_script:1."
OLD_SCRIPT = (
    "Error running script (call to f_9282fe9cd1ad17b421df71a1d74837df7d50241a): @user_script:1: @user_script: 1:"
)
DISCARDED = "Transaction discarded because of:"

# The rows in their order, each with the errors that it is the first to match.
ROWS: list[tuple[str | None, list[Exception]]] = [
    # Both are ConnectionErrors, which are waited for further down.
    (LOGIN, [exceptions.AuthenticationError("NOAUTH"), exceptions.AuthorizationError("x")]),
    (
        NODES,
        [
            exceptions.NoPermissionError("User crawl has no permissions to run the 'cluster|slots' command"),
            # Redis 6.2.
            exceptions.NoPermissionError("this user has no permissions to run the 'cluster' command or its subcommand"),
            exceptions.NoPermissionError("this user has no permissions to run the 'command' command"),
        ],
    ),
    (PERMISSION, [exceptions.NoPermissionError("NOPERM this user has no permissions to run the 'eval' command")]),
    (
        MEMORY,
        [
            exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
            exceptions.OutOfMemoryError(f"command not allowed when used memory > 'maxmemory'. {IN_SCRIPT}"),
        ],
    ),
    (
        MEMORY,
        [
            exceptions.ExecAbortError(f"{DISCARDED} OOM command not allowed when used memory > 'maxmemory'."),
            exceptions.ResponseError(f"{OLD_SCRIPT} -OOM command not allowed when used memory > 'maxmemory'."),
        ],
    ),
    (
        WAIT,
        [
            exceptions.ConnectionError("Connection refused"),
            # A server with too many clients says so to a new one, and hangs up.
            exceptions.ConnectionError("max number of clients reached"),
            # It is waited for with any text.
            exceptions.ConnectionError("unknown command 'HELLO'"),
            exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
            exceptions.TimeoutError("Timeout reading from socket"),
            exceptions.ReadOnlyError("You can't write against a read only replica."),
            exceptions.TryAgainError("x"),
            exceptions.ClusterDownError("CLUSTERDOWN"),
            exceptions.MasterDownError("Link with MASTER is down"),
            exceptions.RedisClusterException("Redis Cluster cannot be connected"),
        ],
    ),
    (
        WAIT,
        [
            exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
            exceptions.ResponseError(f"NOREPLICAS Not enough good replicas to write. {IN_SCRIPT}"),
            exceptions.ResponseError(BUSY),
            exceptions.ResponseError("BUSY Redis is busy running a module command."),
            exceptions.ResponseError(MISCONF),
            exceptions.ResponseError(f"{MISCONF} {IN_SCRIPT}"),
            exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
            exceptions.ResponseError(f"{OLD_SCRIPT} -MISCONF Errors writing to the AOF file: No space left on device"),
            exceptions.ResponseError(f"{OLD_SCRIPT} {READONLY}"),
            exceptions.ExecAbortError(f"{DISCARDED} {BUSY}"),
            exceptions.ExecAbortError(f"{DISCARDED} {READONLY}"),
            exceptions.ExecAbortError(f"{DISCARDED} LOADING Redis is loading the dataset in memory"),
            exceptions.ExecAbortError(f"{DISCARDED} MASTERDOWN Link with MASTER is down"),
            exceptions.ExecAbortError(f"{DISCARDED} CLUSTERDOWN The cluster is down"),
            exceptions.ExecAbortError(f"{DISCARDED} TRYAGAIN Multiple keys request during rehashing of slot"),
            exceptions.ResponseError("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
        ],
    ),
    (
        WAIT,
        [
            exceptions.ResponseError(f"Attempted to access a non local key in a cluster node {IN_SCRIPT}"),
            exceptions.ResponseError(f"Script attempted to access a non local key in a cluster node {IN_SCRIPT}"),
            exceptions.ResponseError(f"{OLD_SCRIPT} Script attempted to access a non local key in a cluster node"),
        ],
    ),
    (WAIT, [exceptions.ResponseError("max number of clients + cluster connections reached")]),
    (PROTOCOL, [exceptions.ResponseError("unknown command 'HELLO', with args beginning with: '3'")]),
    (
        PERMISSION,
        [exceptions.ResponseError("ACL failure in script: no permissions to run the 'hget' command")],
    ),
    (PERMISSION, [exceptions.ResponseError("The user executing the script can't run this command or subcommand")]),
    (WRONG_TYPE, [exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")]),
    (CLUSTER, [exceptions.MovedError("866 127.0.0.1:7001"), exceptions.AskError("866 127.0.0.1:7001")]),
    (CLUSTER, [exceptions.ResponseError("SELECT is not allowed in cluster mode")]),
    (SINGLE, [exceptions.ResponseError("This instance has cluster support disabled")]),
]
UNKNOWN: list[Exception] = [
    exceptions.ResponseError("ERR value is not an integer or out of range"),
    # Only HELLO means the protocol, and only as an unknown command.
    exceptions.ResponseError("unknown command 'EVAL'"),
    exceptions.ResponseError("HELLO"),
    # Codes that others begin with.
    exceptions.ResponseError("BUSYKEY Target key name already exists."),
    exceptions.ResponseError("BUSYGROUP Consumer Group name already exists"),
    exceptions.ResponseError("the word BUSY in a text"),
    exceptions.DataError("x"),
]


def test_every_row_has_errors() -> None:
    """The table here has the rows of the code, in the same order."""
    assert [advice for advice, _ in ROWS] == [advice for _, advice in failures._CASES]


def wrapped(error: Exception) -> Exception:
    """Return the error of redis-py if a node of a cluster raises this one, and no other node can be used."""
    if isinstance(error, exceptions.ResponseError):
        reply, error = error, exceptions.RedisClusterException("Cluster mode is not enabled on this node")
        error.__context__ = reply
    outer = exceptions.RedisClusterException(f"Redis Cluster cannot be connected: {error}")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("row", "error"),
    [
        pytest.param(row, error, id=f"{row}-{describe(error)}")
        for row, (_, errors) in enumerate(ROWS)
        for error in errors
    ],
)
def test_row(row: int, error: Exception) -> None:
    """The first row that matches an error is its own."""
    matching = [number for number, (matches, _) in enumerate(failures._CASES) if matches(error, describe(error))]
    assert matching[0] == row
    assert advice_for(error) == ROWS[row][0]
    # So is that of the error which redis-py raises for the error of a node.
    outer = wrapped(error)
    assert str(outer).startswith("Redis Cluster cannot be connected")
    assert (advice_for(outer), describe(outer)) == (ROWS[row][0], describe(error))


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


# Errors, whether they exclude that the command was executed, and whether a replica raised them.
EXECUTION: list[tuple[Exception, bool, bool]] = [
    (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), True, True),
    (exceptions.ReadOnlyError("You can't write against a read only replica."), True, True),
    (exceptions.MasterDownError("Link with MASTER is down"), True, True),
    (exceptions.ResponseError(f"{OLD_SCRIPT} {READONLY}"), True, True),
    (exceptions.ExecAbortError(f"{DISCARDED} {READONLY}"), True, True),
    (exceptions.ExecAbortError(f"{DISCARDED} MASTERDOWN Link with MASTER is down"), True, True),
    (exceptions.TryAgainError("Multiple keys request during rehashing of slot"), True, False),
    (exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"), True, False),
    (exceptions.ConnectionError("max number of clients reached"), True, False),
    (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), True, False),
    (exceptions.ResponseError(BUSY), True, False),
    (exceptions.ResponseError(MISCONF), True, False),
    (exceptions.ResponseError(f"{MISCONF} {IN_SCRIPT}"), True, False),
    (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), True, False),
    (exceptions.ResponseError(f"{OLD_SCRIPT} -OOM command not allowed when used memory > 'maxmemory'."), True, False),
    (exceptions.ConnectionError("Connection closed by server."), False, False),
    (exceptions.TimeoutError("Timeout reading from socket"), False, False),
    (exceptions.RedisClusterException("Redis Cluster cannot be connected"), False, False),
    (exceptions.ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"), False, False),
]


@pytest.mark.parametrize(("error", "is_excluded", "of_replica"), EXECUTION, ids=lambda each: f"{each}"[:60])
def test_execution(error: Exception, is_excluded: bool, of_replica: bool) -> None:
    """Only some errors exclude that the command was executed; the others leave it in doubt. `ROWS` has the advice."""
    assert (was_not_executed(error), is_from_replica(error)) == (is_excluded, of_replica)


def test_a_password_in_a_command_is_not_told() -> None:
    """Neither the command in a pipeline's error is shown, nor the arguments of an unknown command."""
    piped = exceptions.ResponseError("Command # 1 (AUTH secret) of pipeline caused error: ERR no such user")
    assert describe(piped) == "ResponseError: ERR no such user"
    unknown = exceptions.ResponseError("unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'secret'")
    assert describe(unknown) == "ResponseError: unknown command 'HELLO'"
    text = (
        "No master found for 'crawl' : <redis.client.Redis(<…(host=sentinel-1,password=secret)>)> - ConnectionError()"
    )
    assert describe(MasterNotFoundError(text)) == "MasterNotFoundError: No master found for 'crawl'"


def test_a_url_in_an_error_is_told_without_its_password() -> None:
    """A URL quoted by a client or a server is shown from its host on."""
    error = exceptions.ConnectionError("cannot reach redis://user:s3cr/e@t@shop.test:6379/0 now")
    assert describe(error) == "ConnectionError: cannot reach redis://…@shop.test:6379/0 now"


def test_errors_of_ours_are_described_by_their_text() -> None:
    """They already contain advice, and hide secrets."""
    assert describe(ConfigError("capacity = 0: must be more")) == "capacity = 0: must be more"
