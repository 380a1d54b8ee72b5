"""The ways in which an action ends: its exit code, and the line that says why."""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

import redis
from scrapy.exceptions import UsageError

from scrapy_bloom.cli._console import note
from scrapy_bloom.errors import BloomError, UnavailableError
from scrapy_bloom.transport.failures import advice_for, describe, hide_credentials, is_from_replica

_REPLICA = "it is a replica, or still loads its data: give the master's address"


class ExitCode(IntEnum):
    """The exit codes, as the help names them."""

    DONE = 0
    NO = 1
    REFUSED = 2
    AWAY = 3
    INTERRUPTED = 130  # as shells have it for Ctrl-C
    UNHEARD = 141  # as shells have it for SIGPIPE


def exit_code(action: Callable[[], int]) -> int:
    """Return the exit code of an action; a refusal is one line on stderr.

    An action whose reader goes away before it returns has the code of SIGPIPE: nobody knows how far it came.
    """
    code: int = ExitCode.UNHEARD
    try:
        with _shown_warnings():
            code = action()
            # Buffered output may meet its reader only now; there is no stdout where it was closed before.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        pass
    except (Exception, KeyboardInterrupt) as error:
        code, text = _meaning(error)
        note(hide_credentials(text))
    finally:
        _drop_unwritten_output()
    return code


def _drop_unwritten_output() -> None:
    """Drop output that a stream does not take: Python would write it again as it exits, and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def stopped(advice: str) -> Iterator[None]:
    """Have a Ctrl-C in the block told with what to do then."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped: {advice}") from None


def _meaning(error: BaseException) -> tuple[ExitCode, str]:
    code, text = ExitCode.REFUSED, f"{type(error).__name__} at {_place_of(error)}: {error}"
    match error:
        case KeyboardInterrupt():
            code, text = ExitCode.INTERRUPTED, str(error) or "stopped"
        case UnavailableError(cause=cause, __context__=redis.RedisError() as error) if is_from_replica(error):
            text = f"Redis refused a command: {cause}; {_REPLICA}"
        case UnavailableError(cause=cause):
            code, text = ExitCode.AWAY, _away(cause)
        case OSError(strerror=str(reason)):
            text = f"{error.filename or type(error).__name__}: {reason}"
        case BloomError() | UsageError():
            text = str(error)
        case redis.RedisError() if advice_for(error) is None and not is_from_replica(error):
            code, text = ExitCode.AWAY, _away(describe(error))
        case redis.RedisError():
            text = f"Redis refused a command: {describe(error)}; {advice_for(error) or _REPLICA}"
    return code, text


def _place_of(error: BaseException) -> str:
    """Return the line where an error that nobody foresaw was raised: that of a spider or an add-on, perhaps."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _away(cause: str) -> str:
    return f"Redis is away ({cause}): check REDIS_URL, or --redis-url, and that it runs"


@contextmanager
def _shown_warnings() -> Iterator[None]:
    """Show what this package warns of, and nothing of Scrapy's log."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("scrapy bloom: %(message)s"))
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("scrapy_bloom")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
