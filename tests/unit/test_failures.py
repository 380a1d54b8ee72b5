"""The table of a server's errors: which are waited for, and what is advised about the others, row by row."""

import pytest
from redis import exceptions

from scrapy_bloom.transport import failures
from scrapy_bloom.transport.failures import advice_for, describe

LOGIN = "check the user name and the password in REDIS_URL or REDIS_PARAMS"
PERMISSION = (
    "allow BITFIELD, BITCOUNT, EVAL, HSETNX, HDEL and UNLINK on the filter's keys, and with BloomScheduler ZADD, ZREM, "
    "ZRANGE, ZCARD, SADD, SREM, SET, EXISTS, EXPIRE, EVAL, UNLINK, MULTI and EXEC on the queue's"
)
MEMORY = "raise the server's maxmemory, or set a smaller BLOOMFILTER_CAPACITY"
PROTOCOL = "it is older than RESP3: set REDIS_PARAMS = {'protocol': 2}"
WRONG_TYPE = "a key that is needed holds something else: use other keys (SCHEDULER_DUPEFILTER_KEY, SCHEDULER_QUEUE_KEY)"
WAIT = None

# The rows in their order, each with the errors of which it is the first that matches.
ROWS: list[tuple[str | None, list[Exception]]] = [
    # Both are ConnectionErrors, which are waited for further down.
    (LOGIN, [exceptions.AuthenticationError("NOAUTH"), exceptions.AuthorizationError("x")]),
    (PERMISSION, [exceptions.NoPermissionError("NOPERM this user has no permissions to run the 'eval' command")]),
    (MEMORY, [exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")]),
    (
        WAIT,
        [
            exceptions.ConnectionError("Connection refused"),
            # Whatever the text of one says, it is waited for.
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
    (WAIT, [exceptions.ResponseError("NOREPLICAS Not enough good replicas to write.")]),
    (PROTOCOL, [exceptions.ResponseError("unknown command 'HELLO', with args beginning with: '3'")]),
    (
        PERMISSION,
        [exceptions.ResponseError("ACL failure in script: no permissions to run the 'hget' command")],
    ),
    (PERMISSION, [exceptions.ResponseError("The user executing the script can't run this command or subcommand")]),
    (WRONG_TYPE, [exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")]),
]
UNKNOWN: list[Exception] = [
    exceptions.ResponseError("ERR value is not an integer or out of range"),
    # Only HELLO tells of the protocol, and only what is unknown.
    exceptions.ResponseError("unknown command 'EVAL'"),
    exceptions.ResponseError("HELLO"),
    exceptions.DataError("x"),
]


def test_every_row_has_errors() -> None:
    """The table here has the rows of the code, in the same order."""
    assert [advice for advice, _ in ROWS] == [advice for _, advice in failures._CASES]


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


@pytest.mark.parametrize("error", UNKNOWN, ids=describe)
def test_what_no_row_matches(error: Exception) -> None:
    """An error that nobody knows ends the wait, and its own text is the advice."""
    assert advice_for(error) == "see what it says"


def test_order_matters() -> None:
    """A wrong password is also an error of the connection: it is refused, since its row stands first."""
    error = exceptions.AuthenticationError("invalid username-password pair")
    assert isinstance(error, failures.TRANSIENT_ERRORS)
    assert advice_for(error) is not None


def test_errors_that_were_not_executed_are_waited_for() -> None:
    """Each error by which a server says that it did not execute a command is transient."""
    assert all(advice_for(kind("x")) is None for kind in failures.NOT_EXECUTED_ERRORS)


def test_a_password_in_a_command_is_not_told() -> None:
    """Neither the command before a pipeline's error is told, nor the arguments behind one that is unknown."""
    piped = exceptions.ResponseError("Command # 1 (AUTH secret) of pipeline caused error: ERR no such user")
    assert describe(piped) == "ResponseError: ERR no such user"
    unknown = exceptions.ResponseError("unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'secret'")
    assert describe(unknown) == "ResponseError: unknown command 'HELLO'"
