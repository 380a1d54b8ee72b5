"""Retry with backoff and a circuit breaker while a server is unreachable.

redis-py silently sends a command again if its reply was lost, and the second reply then says "seen". So redis-py's
retries are turned off. The calls that are retried here are numbered or name the state that they expect: the server
executes each once.

Scrapy's handlers of SIGINT and SIGTERM only schedule a call in the reactor, which a retry blocks. After the second
signal both are ignored (SIG_IGN): this is how a blocking retry notices that it must stop. Without Scrapy's handlers
Ctrl-C is a KeyboardInterrupt.
"""

import signal
from collections.abc import Callable
from typing import Any, TypeVar

from redis import BlockingConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom.errors import RefusedError, StoppedError, UnavailableError
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.text import get_logger
from scrapy_bloom.transport.failures import FAULTS, advice_for, describe


def _are_ignored() -> bool:
    return all(signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGINT, signal.SIGTERM))


# A process may have been started with both ignored, as by nohup.
_WERE_IGNORED_AT_START = _are_ignored()


def _require_not_stopped(timeout: float, cause: str) -> None:
    """Raise StoppedError if the process has received a second SIGINT or SIGTERM."""
    if _are_ignored() and not _WERE_IGNORED_AT_START:
        raise StoppedError(timeout, cause) from None


logger = get_logger(__name__)

# Seconds before the next attempt. The longest bounds the time for which a caller waits beside a promoted replica.
_INITIAL_BACKOFF = 0.05
_MAX_BACKOFF = 0.4
# Seconds between two lines of the log about a blocking retry.
_TOLD_SECONDS = 5.0
# The end of a crawl waits for Redis at most so long.
LAST_TRY_SECONDS = 3.0

T = TypeVar("T")


class RedisUnreachableError(Exception):
    """Raised by an open `CircuitBreaker`. The call was not made, or its outcome is unknown."""


def disable_client_retries(client: Any) -> Any:
    """Turn off redis-py's own retries, and return the client."""
    pool, never = getattr(client, "connection_pool", None), Retry(NoBackoff(), 0)
    if isinstance(pool, BlockingConnectionPool):
        # Its inherited set_retry looks for connections in lists that it does not have (redis-py 6 to 8).
        pool.connection_kwargs["retry"] = never
        for connection in pool._connections:
            connection.retry = never
    else:
        client.set_retry(never)
    return client


def retry_until(attempt: Callable[[], T], timeout: float, runtime: Runtime = RUNTIME) -> T:
    """Call `attempt` until it succeeds, with exponential backoff, for at most `timeout` seconds. Blocks.

    Returns:
        The result of `attempt`.

    Raises:
        UnavailableError: Redis was unreachable for the whole `timeout`.
        StoppedError: Redis was unreachable, and the process received a second signal to stop.
        RefusedError: Redis replied with an error that retrying cannot mend.
    """
    begin, backoff, told = runtime.monotonic(), _INITIAL_BACKOFF, 0.0
    while True:
        try:
            result = attempt()
        except FAULTS as error:
            if (advice := advice_for(error)) is not None:
                raise RefusedError(f"Redis refused a command ({describe(error)}): {advice}") from None
            waited = runtime.monotonic() - begin
            if waited >= timeout:
                raise UnavailableError(timeout, describe(error)) from None
            if waited >= told:
                left = round(timeout - waited, 1)
                logger.warning("Redis is unreachable (%s); retrying for up to %g s", describe(error), left)
                told += _TOLD_SECONDS
            runtime.sleep(min(_jittered(backoff, runtime), timeout - waited))
            _require_not_stopped(timeout, f"Redis is unreachable ({describe(error)})")
            backoff = min(2 * backoff, _MAX_BACKOFF)
        else:
            if told:
                logger.warning("Redis is back after %.1f s", runtime.monotonic() - begin)
            return result


class CircuitBreaker:
    """Stops calls to an unreachable server: after a failure the breaker is open, and calls fail at once.

    About twice a second it lets one call through as a probe (half-open). A successful probe closes the breaker.

    Args:
        runtime: the clock.
        caller: who pauses while the breaker is open, for the log.
    """

    def __init__(self, runtime: Runtime = RUNTIME, caller: str = "the crawl") -> None:
        self._runtime = runtime
        self._caller = caller
        self._open_since: float | None = None
        self._next_probe = 0.0

    @property
    def is_open(self) -> bool:
        """True if a call would fail without being made."""
        return self._runtime.monotonic() < self._next_probe

    def call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`.

        Raises:
            RedisUnreachableError: the breaker is open, or opens now.
            RefusedError: Redis replied with an error that retrying cannot mend.
        """
        if self.is_open:
            raise RedisUnreachableError
        now = self._runtime.monotonic()
        try:
            result = retry_until(work, 0, runtime=self._runtime)
        except UnavailableError as error:
            if self._open_since is None:
                self._open_since = now
                logger.warning("Redis is unreachable (%s); %s pauses until it answers", error.cause, self._caller)
            self._next_probe = self._runtime.monotonic() + _jittered(_MAX_BACKOFF, self._runtime)
            raise RedisUnreachableError from None
        if self._open_since is not None:
            logger.warning("Redis is back after %.1f s; %s resumes", now - self._open_since, self._caller)
            self._open_since = None
        return result


def _jittered(seconds: float, runtime: Runtime) -> float:
    """Return up to 1.5 times the seconds, so that workers do not retry in step."""
    return seconds * runtime.uniform(1, 1.5)
