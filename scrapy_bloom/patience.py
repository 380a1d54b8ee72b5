"""What is done when a server fails: which faults are waited for, how long, and which are errors at once.

redis-py sends a command again when its reply was lost, silently, and the second reply then says "seen". So its own
resending is turned off, and what is sent again is marked as such: only the protocol knows what that means.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom.errors import RefusedError, UnavailableError
from scrapy_bloom.ops import Op
from scrapy_bloom.store import Said, Store

logger = logging.getLogger(__name__)

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
_REFUSALS: dict[type[Exception], str] = {
    exceptions.AuthenticationError: "check the user name and the password in REDIS_URL or REDIS_PARAMS",
    exceptions.AuthorizationError: "check the user name and the password in REDIS_URL or REDIS_PARAMS",
    exceptions.NoPermissionError: "allow BITFIELD, BITCOUNT, EVAL, HSETNX, HDEL and UNLINK on the filter's keys",
    exceptions.OutOfMemoryError: "raise the server's maxmemory, or set a smaller BLOOMFILTER_CAPACITY",
}
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


def without_resending(client: Any) -> Any:
    """The client, with redis-py's own resending turned off; a client of another kind is left as it is."""
    if hasattr(client, "set_retry"):
        client.set_retry(Retry(NoBackoff(), 0))
    return client


class PatientStore:
    """A store that waits for a server that is away, for up to `timeout` seconds, and blocks meanwhile.

    Raises UnavailableError after that, and RefusedError where waiting is of no use.
    """

    def __init__(self, store: Store, timeout: float) -> None:
        self._store = store
        self._timeout = timeout

    def execute(self, ops: Sequence[Op]) -> Said:
        """Carry out operations, again if need be; then what they say is `repeated`."""
        try:
            return self._attempt(ops)
        except _AWAY as error:
            return self._wait(ops, error)

    def _wait(self, ops: Sequence[Op], error: Exception) -> Said:
        begin, pause = time.monotonic(), _FIRST_PAUSE
        repeated = _may_be_done(ops, error)
        logger.warning("Redis is away (%s): waiting for up to %g s", _in_words(error), self._timeout)
        while (waited := time.monotonic() - begin) < self._timeout:
            time.sleep(min(pause, self._timeout - waited))
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                said = self._attempt(ops)
            except _AWAY as another:
                error = another
                repeated = repeated or _may_be_done(ops, error)
            else:
                logger.warning("Redis is back after %.1f s", time.monotonic() - begin)
                said.repeated = repeated
                return said
        raise UnavailableError(
            f"Redis has been away for {self._timeout:g} s ({_in_words(error)}): bring it back, or set a larger "
            f"BLOOMFILTER_RETRY_TIMEOUT (now {self._timeout:g})"
        ) from None

    def _attempt(self, ops: Sequence[Op]) -> Said:
        try:
            return self._store.execute(ops)
        except tuple(_REFUSALS) as error:
            advice = next(text for kind, text in _REFUSALS.items() if isinstance(error, kind))
            raise RefusedError(f"Redis refused a command ({_in_words(error)}): {advice}") from None


def _may_be_done(ops: Sequence[Op], error: Exception) -> bool:
    """Whether the server may have carried out some of the operations though it failed; of several, others may be."""
    return len(ops) > 1 or not isinstance(error, _NOT_DONE)


def _in_words(error: Exception) -> str:
    """The kind of an error and its text, without the command that redis-py puts before that of a pipeline."""
    return f"{type(error).__name__}: {str(error).rpartition('caused error: ')[2]}"
