"""The console: reports as text or JSON, tables, notes, progress, and the exit code of an outcome."""

import argparse
import contextlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from tqdm import tqdm

from scrapy_bloom.errors import BloomError, UnavailableError
from scrapy_bloom.transport.failures import FAULTS, advice_for, cause_of, hide_credentials, is_from_replica

_ADDRESS = "check REDIS_URL or --redis-url, and that the server runs"
_REPLICA = "it is a replica or still loads its data: give the address of the master"


class ExitCode(IntEnum):
    """The exit codes, as the help lists them."""

    DONE = 0
    NO = 1
    REFUSED = 2
    UNREACHABLE = 3
    INTERRUPTED = 130  # the shell's code for Ctrl-C
    BROKEN_PIPE = 141  # the shell's code for SIGPIPE


def report(options: argparse.Namespace, found: Mapping[str, Any], text: str, *, answer: bool = True) -> int:
    """Print an action's report, as an object with --json and as text without; return the exit code of its answer."""
    print(json.dumps(found, indent=2) if options.json else text)
    return ExitCode.DONE if answer else ExitCode.NO


class _Errors:
    """Standard error, which may be closed, full or unread: no action stops for that."""

    @staticmethod
    def write(text: str) -> None:
        with contextlib.suppress(OSError, AttributeError):  # a stderr that was closed from the start is None
            sys.stderr.write(text)
            sys.stderr.flush()


def note(text: str) -> None:
    """Print a line to stderr."""
    _Errors.write(f"scrapy bloom: {text}\n")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns, the first to the left and the others to the right; the first row is the head."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    line = "  ".join([f"{{:<{first}}}", *(f"{{:>{width}}}" for width in others)])
    return "\n".join(line.format(*row).rstrip() for row in rows)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Align names and their values in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def duration(seconds: float) -> str:
    """Return a duration in days, hours, minutes or seconds."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 2 else f"{seconds:.1f} s"  # noqa: PLR2004  # decimals matter below


@contextlib.contextmanager
def progress(task: str, total: int | None, unit: str = "B") -> Iterator[Callable[[int], object]]:
    """Show progress, rate and remaining time on a terminal; one that is closed never stops the work.

    Args:
        task: the name of the task.
        total: bytes, or other units; None: unknown.
        unit: the unit's name.

    Returns:
        The function that counts further units as done.
    """
    is_hidden = sys.stderr is None or not sys.stderr.isatty()
    options: dict[str, Any] = {"unit": unit, "unit_scale": unit == "B", "file": _Errors, "disable": is_hidden}
    with tqdm(total=total, desc=task, **options) as shown:
        yield shown.update


def exit_code(action: Callable[[], int]) -> int:
    """Run an action and return its exit code; an error is one line on stderr, and so is a warning of this package.

    If the reader of stdout is gone before the action returns, the code is that of SIGPIPE, since the progress of the
    action is unknown.
    """
    code: int = ExitCode.BROKEN_PIPE
    warnings, logger = logging.StreamHandler(_Errors), logging.getLogger("scrapy_bloom")
    warnings.setLevel(logging.WARNING)
    warnings.setFormatter(logging.Formatter("scrapy bloom: %(message)s"))
    logger.addHandler(warnings)
    try:
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
        logger.removeHandler(warnings)
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except OSError:
                # Python would write the buffered output again at exit, and exit with 120.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


@contextlib.contextmanager
def advise_on_ctrl_c(advice: str) -> Iterator[None]:
    """Add advice to the line that a Ctrl-C in this block prints."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped: {advice}") from None


def _explain(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code and the text of an error."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED, str(error) or "stopped"
    if isinstance(error, (UnavailableError, *FAULTS)):
        # Behind "unreachable" is the error of the last attempt.
        reply = error.__context__ if isinstance(error, UnavailableError) else error
        if advice := isinstance(reply, FAULTS) and (_REPLICA if is_from_replica(reply) else advice_for(reply)):
            return ExitCode.REFUSED, f"Redis refused a command: {cause_of(error)}; {advice}"
        return ExitCode.UNREACHABLE, f"Redis is unreachable ({cause_of(error)}): {_ADDRESS}"
    if isinstance(error, BloomError):
        return ExitCode.REFUSED, str(error)
    if isinstance(error, OSError) and error.strerror:
        return ExitCode.REFUSED, f"{error.filename or type(error).__name__}: {error.strerror}"
    # An unexpected error may be one of a spider or an add-on: name its line.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return ExitCode.REFUSED, f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {error}"
