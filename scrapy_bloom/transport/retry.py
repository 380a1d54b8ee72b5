"""Retry with backoff and a circuit breaker while a server is unreachable.

Scrapy's handlers of SIGINT and SIGTERM only leave a note for its loop. With the second signal they have both ignored,
which is all that can be seen of them from elsewhere. Without such handlers Ctrl-C is a KeyboardInterrupt.

redis-py sends a command again when its reply was lost, in silence, and the second reply then says "seen". So its own
retries are turned off, and what is retried here is marked as such: only the filter knows what that means.
"""

import logging
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from redis import BlockingConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom._names import SETTINGS, Names
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom.errors import RefusedError, StoppedError, UnavailableError
from scrapy_bloom.transport.failures import FAULTS, advice_for, describe

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _are_ignored() -> bool:
    return all(signal.getsignal(number) is signal.SIG_IGN for number in _SIGNALS)


# One that was started to ignore them is not asked.
_IGNORED_FROM_THE_BEGINNING = _are_ignored()


def require_not_stopped(timeout: float, cause: str) -> None:
    """Raise a StoppedError if the process was asked twice to stop.

    It waits for up to `timeout` seconds, since there is this `cause`.
    """
    if _are_ignored() and not _IGNORED_FROM_THE_BEGINNING:
        raise StoppedError(timeout, cause) from None


logger = logging.getLogger(__name__)

# Seconds.
_INITIAL_BACKOFF = 0.05
_MAX_BACKOFF = 2.0
_PROBE_INTERVAL = 0.4

T = TypeVar("T")


class RedisAwayError(Exception):
    """Raised by a `CircuitBreaker` that is open; nothing was sent, or nobody knows whether it arrived."""


def disable_client_retries(client: Any) -> Any:
    """Return the client, with redis-py's own retries turned off; a client of another kind is left as it is."""
    pool, never = getattr(client, "connection_pool", None), Retry(NoBackoff(), 0)
    if isinstance(pool, BlockingConnectionPool):
        # It inherits a set_retry that looks for its connections where it has none (redis-py 6 to 8).
        pool.connection_kwargs["retry"] = never
        for connection in pool._connections:
            connection.retry = never
    elif hasattr(client, "set_retry"):
        client.set_retry(never)
    return client


def retry_until(attempt: Callable[[], T], timeout: float, names: Names = SETTINGS, runtime: Runtime = RUNTIME) -> T:
    """Call `attempt` until it succeeds, with exponential backoff, for at most `timeout` seconds. Blocks.

    Errors use the user's `names`.

    Returns:
        The result of `attempt`.

    Raises:
        UnavailableError: Redis was away for the whole `timeout`.
        StoppedError: Redis was away, and the process was asked twice to stop.
        RefusedError: Redis answered with an error that retrying cannot mend.
    """
    begin, backoff = runtime.monotonic(), _INITIAL_BACKOFF
    while True:
        try:
            result = attempt()
        except FAULTS as error:
            advice = advice_for(error, names)
            if advice is not None:
                raise RefusedError(f"Redis refused a command ({describe(error)}): {advice}") from None
            waited = runtime.monotonic() - begin
            if waited >= timeout:
                option = names.option("retry_timeout")
                raise UnavailableError(timeout, describe(error), option, names.address) from None
            if backoff == _INITIAL_BACKOFF:
                logger.warning("Redis is away (%s): waiting for up to %g s", describe(error), timeout)
            runtime.sleep(min(_jittered(backoff, runtime), timeout - waited))
            require_not_stopped(timeout, f"Redis is away ({describe(error)})")
            backoff = min(2 * backoff, _MAX_BACKOFF)
        else:
            if backoff != _INITIAL_BACKOFF:
                logger.warning("Redis is back after %.1f s", runtime.monotonic() - begin)
            return result


class CircuitBreaker:
    """Keeps calls from an absent server. After a failure it is open: calls fail at once, without the network.

    About twice a second one call is let through as a probe (half-open). When it succeeds, the breaker closes.
    """

    def __init__(self, runtime: Runtime = RUNTIME) -> None:
        self._runtime = runtime
        self._open_since: float | None = None
        self._next_probe = 0.0

    @property
    def is_open(self) -> bool:
        """True if a call would fail at once."""
        return self._runtime.monotonic() < self._next_probe

    def call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`.

        Raises:
            RedisAwayError: the breaker is open, or opens now.
            RefusedError: Redis answered with an error that retrying cannot mend.
        """
        if self.is_open:
            raise RedisAwayError
        now = self._runtime.monotonic()
        try:
            result = retry_until(work, 0, runtime=self._runtime)
        except UnavailableError as error:
            if self._open_since is None:
                self._open_since = now
                logger.warning("Redis is away (%s): the crawl pauses until it is back", error.cause)
            self._next_probe = self._runtime.monotonic() + _jittered(_PROBE_INTERVAL, self._runtime)
            raise RedisAwayError from None
        if self._open_since is not None:
            logger.warning("Redis is back after %.1f s: the crawl goes on", now - self._open_since)
            self._open_since = None
        return result


def _jittered(seconds: float, runtime: Runtime) -> float:
    """Return these seconds and up to half as many: workers that noticed an outage together do not retry together."""
    return seconds * runtime.uniform(1, 1.5)
