"""Turn the outcome of an action into an exit code, and an error into one line on stderr."""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

import redis
from redis.exceptions import RedisClusterException
from scrapy.exceptions import UsageError

from scrapy_bloom.cli._console import note
from scrapy_bloom.errors import BloomError, UnavailableError
from scrapy_bloom.transport.failures import advice_for, describe, hide_credentials, is_from_replica

_REPLICA = "it is a replica or still loads its data: give the address of the master"


class ExitCode(IntEnum):
    """The exit codes, as the help lists them."""

    DONE = 0
    NO = 1
    REFUSED = 2
    UNREACHABLE = 3
    INTERRUPTED = 130  # the shell's code for Ctrl-C
    BROKEN_PIPE = 141  # the shell's code for SIGPIPE


def exit_code(action: Callable[[], int]) -> int:
    """Run an action and return its exit code; an error is one line on stderr.

    If the reader of stdout is gone before the action returns, the code is that of SIGPIPE, since the progress of the
    action is unknown.
    """
    code: int = ExitCode.BROKEN_PIPE
    try:
        with _warnings_on_stderr():
            code = action()
            # Buffered output may fail only here. A stdout that was closed from the start is None.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        pass
    except (Exception, KeyboardInterrupt) as error:
        code, text = _explain(error)
        note(hide_credentials(text))
    finally:
        _drop_unwritten_output()
    return code


@contextmanager
def advise_on_ctrl_c(advice: str) -> Iterator[None]:
    """Add advice to the line that a Ctrl-C in this block prints."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped: {advice}") from None


def _drop_unwritten_output() -> None:
    """Drop buffered output that a stream refuses: Python would write it again at exit, and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _explain(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code and the text of an error."""
    # An unexpected error may be one of a spider or an add-on: name its line.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    code, text = ExitCode.REFUSED, f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {error}"
    match error:
        case KeyboardInterrupt():
            code, text = ExitCode.INTERRUPTED, str(error) or "stopped"
        case UnavailableError(cause=cause, __context__=redis.RedisError() as reply) if is_from_replica(reply):
            text = f"Redis refused a command: {cause}; {_REPLICA}"
        case UnavailableError(cause=cause):
            code, text = ExitCode.UNREACHABLE, _unreachable(cause)
        case OSError(strerror=str(reason)):
            text = f"{error.filename or type(error).__name__}: {reason}"
        case BloomError() | UsageError():
            text = str(error)
        case redis.RedisError() | RedisClusterException():
            if (advice := advice_for(error)) is None and not is_from_replica(error):
                code, text = ExitCode.UNREACHABLE, _unreachable(describe(error))
            else:
                text = f"Redis refused a command: {describe(error)}; {advice or _REPLICA}"
    return code, text


def _unreachable(cause: str) -> str:
    return f"Redis is unreachable ({cause}): check REDIS_URL or --redis-url, and that the server runs"


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Print the warnings of this package, and nothing of Scrapy's log."""
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
