"""What is done when a server fails: which faults are waited for, how long, and which are errors at once.

redis-py sends a command again when its reply was lost, silently, and the second reply then says "seen". So its own
resending is turned off, and what is sent again is marked as such: only the protocol knows what that means.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis import BlockingConnectionPool, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom.errors import RefusedError, UnavailableError
from scrapy_bloom.ops import Op
from scrapy_bloom.store import Said, Store

logger = logging.getLogger(__name__)

# Everything that redis-py raises of a server; RedisClusterException is no RedisError.
FAULTS = (exceptions.RedisError, exceptions.RedisClusterException)
# LOADING is a ConnectionError too; MASTERDOWN and CLUSTERDOWN are ClusterErrors.
_AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
)
# Of those, the ones by which a server says that it did not carry a command out.
_NOT_DONE = (
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
)
# Answers that no waiting changes. The first two are ConnectionErrors, and so are looked for first.
_LOGIN = "check the user name and the password in REDIS_URL or REDIS_PARAMS"
_PERMISSION = "allow BITFIELD, BITCOUNT, EVAL, HSETNX, HDEL and UNLINK on the filter's keys"
# What Valkey and Redis say of a command that a script may not run; for them it is an error like any other.
_FORBIDDEN_IN_A_SCRIPT = ("ACL failure", "can't run this command")
_REFUSALS: dict[type[Exception], str] = {
    exceptions.AuthenticationError: _LOGIN,
    exceptions.AuthorizationError: _LOGIN,
    exceptions.NoPermissionError: _PERMISSION,
    exceptions.OutOfMemoryError: "raise the server's maxmemory, or set a smaller BLOOMFILTER_CAPACITY",
}
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_OUTAGE_PAUSE = 0.5

T = TypeVar("T")


def without_resending(client: Any) -> Any:
    """The client, with redis-py's own resending turned off; a client of another kind is left as it is."""
    pool, never = getattr(client, "connection_pool", None), Retry(NoBackoff(), 0)
    if isinstance(pool, BlockingConnectionPool):
        # It inherits a set_retry that looks for its connections where it has none (redis-py 6 to 8).
        pool.connection_kwargs["retry"] = never
        for connection in pool._connections:
            connection.retry = never
    elif hasattr(client, "set_retry"):
        client.set_retry(never)
    return client


def patiently(attempt: Callable[[], T], timeout: float) -> T:
    """What an attempt gives, once Redis answers; blocks for up to `timeout` seconds while it is away.

    Raises UnavailableError after that, and RefusedError where waiting is of no use.
    """
    begin, pause = time.monotonic(), _FIRST_PAUSE
    while True:
        try:
            result = attempt()
        except FAULTS as error:
            advice = _advice(error)
            if advice is not None:
                raise RefusedError(f"Redis refused a command ({_in_words(error)}): {advice}") from None
            waited = time.monotonic() - begin
            if waited >= timeout:
                raise UnavailableError(timeout, _in_words(error)) from None
            if pause == _FIRST_PAUSE:
                logger.warning("Redis is away (%s): waiting for up to %g s", _in_words(error), timeout)
            time.sleep(min(pause, timeout - waited))
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            if pause != _FIRST_PAUSE:
                logger.warning("Redis is back after %.1f s", time.monotonic() - begin)
            return result


class PatientStore:
    """A store that waits for a server that is away, for up to `timeout` seconds, which may be set anew."""

    def __init__(self, store: Store, timeout: float) -> None:
        self.timeout = timeout
        self._store = store

    def execute(self, ops: Sequence[Op]) -> Said:
        """Carry out operations, again if need be; then what they say is `repeated`."""
        repeated = False

        def attempt() -> Said:
            nonlocal repeated
            try:
                said = self._store.execute(ops)
            except FAULTS as error:
                # A server that says so has not carried the operation out; of several, others may be.
                repeated = repeated or len(ops) > 1 or not isinstance(error, _NOT_DONE)
                raise
            said.repeated = repeated
            return said

        return patiently(attempt, self.timeout)


class Outage:
    """Attempts that do not wait: while Redis is away they are made from time to time, and give None in between."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._next = 0.0

    def attempt(self, work: Callable[[], T], first: Callable[[], object]) -> T | None:
        """What some work gives, or None where Redis is away; raises RefusedError as `patiently` does.

        After an outage something else is done `first`.
        """
        now = time.monotonic()
        if now < self._next:
            return None
        try:
            if self._since is not None:
                patiently(first, 0)
            result = patiently(work, 0)
        except UnavailableError as error:
            if self._since is None:
                self._since = now
                logger.warning("Redis is away (%s): the crawl pauses until it is back", error.fault)
            self._next = time.monotonic() + _OUTAGE_PAUSE
            return None
        if self._since is not None:
            logger.warning("Redis is back after %.1f s: the crawl goes on", now - self._since)
            self._since = None
        return result


def _advice(error: Exception) -> str | None:
    """What to do about an error that waiting does not change; None: the server is away, and worth waiting for."""
    for kind, advice in _REFUSALS.items():
        if isinstance(error, kind):
            return advice
    words = _in_words(error)
    if isinstance(error, _AWAY) or "NOREPLICAS" in words:
        return None
    if "unknown command" in words and "HELLO" in words:
        return "it is older than RESP3: set REDIS_PARAMS = {'protocol': 2}"
    is_forbidden = any(part in words for part in _FORBIDDEN_IN_A_SCRIPT)
    return _PERMISSION if is_forbidden else "see what it says"


def _in_words(error: Exception) -> str:
    """The kind of an error and its text, without the command, in which there may be a password.

    redis-py puts it before the text of a pipeline's error; a server, behind that of a command that it does not know.
    """
    words = str(error).rpartition("caused error: ")[2].partition(", with args beginning with")[0]
    return f"{type(error).__name__}: {words}"
