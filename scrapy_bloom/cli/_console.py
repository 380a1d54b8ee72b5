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

import redis
from redis.exceptions import RedisClusterException
from tqdm import tqdm

from scrapy_bloom.errors import BloomError, UnavailableError
from scrapy_bloom.transport.failures import FAULTS, advice_for, cause_of, hide_credentials, is_from_replica

_BAR_WIDTH = 20
# Without a terminal, progress is a line every so many seconds.
_LINE_SECONDS = 10.0
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


def note(text: str) -> None:
    """Print a line to stderr. A closed, full or unread stderr stops no action."""
    _write(f"scrapy bloom: {text}\n")


def _write(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, end="", file=sys.stderr, flush=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns, the first to the left and the others to the right; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *values in rows:
        cells = [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Align names and their values in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def bar(share: float) -> str:
    """Draw a share from 0 to 1 as a bar."""
    full = round(_BAR_WIDTH * min(max(share, 0.0), 1.0))
    return "[" + "#" * full + "." * (_BAR_WIDTH - full) + "]"


def duration(seconds: float) -> str:
    """Return a duration in days, hours, minutes or seconds."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 2 else f"{seconds:.1f} s"  # noqa: PLR2004  # decimals matter below


class _Terminal:
    """A terminal on stderr, which may be closed."""

    write = staticmethod(_write)


class _Lines:
    """A file or a pipe on stderr: each state of the progress is a line."""

    @staticmethod
    def write(text: str) -> None:
        if state := text.strip():
            note(state)


@contextlib.contextmanager
def progress(task: str, total: int, unit: str = "B") -> Iterator[Callable[[int], object]]:
    """Show progress, rate and remaining time on stderr; an unwritable stderr never stops the work.

    Args:
        task: the name of the task.
        total: bytes, or other units.
        unit: the unit's name.

    Returns:
        The function that counts further units as done.
    """
    output: dict[str, Any] = {"file": _Lines, "mininterval": _LINE_SECONDS, "delay": _LINE_SECONDS}
    if sys.stderr is not None and sys.stderr.isatty():
        output = {"file": _Terminal, "mininterval": 0.1}
    with tqdm(total=total, desc=task, unit=unit, unit_scale=unit == "B", **output) as shown:
        yield shown.update


def exit_code(action: Callable[[], int]) -> int:
    """Run an action and return its exit code; an error is one line on stderr, and so is a warning of this package.

    If the reader of stdout is gone before the action returns, the code is that of SIGPIPE, since the progress of the
    action is unknown.
    """
    code: int = ExitCode.BROKEN_PIPE
    warnings = logging.StreamHandler()
    warnings.setFormatter(logging.Formatter("scrapy bloom: %(message)s"))
    warnings.setLevel(logging.WARNING)
    logger = logging.getLogger("scrapy_bloom")
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
    # An unexpected error may be one of a spider or an add-on: name its line.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    code, text = ExitCode.REFUSED, f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {error}"
    match error:
        case KeyboardInterrupt():
            code, text = ExitCode.INTERRUPTED, str(error) or "stopped"
        case UnavailableError() | redis.RedisError() | RedisClusterException():
            # Behind "unreachable" is the error of the last attempt.
            reply = error.__context__ if isinstance(error, UnavailableError) else error
            advice = isinstance(reply, FAULTS) and (_REPLICA if is_from_replica(reply) else advice_for(reply))
            text = f"Redis refused a command: {cause_of(error)}; {advice}"
            if not advice:
                code, text = ExitCode.UNREACHABLE, f"Redis is unreachable ({cause_of(error)}): {_ADDRESS}"
        case OSError(strerror=str(reason)):
            text = f"{error.filename or type(error).__name__}: {reason}"
        case BloomError():
            text = str(error)
    return code, text
