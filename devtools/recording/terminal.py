"""Run a command in a terminal of its own, and take its screens. Knows no pictures."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyte

COLUMNS, ROWS = 104, 20
_READ_BYTES = 1 << 16
_SETTLE_SECONDS = 0.1
"""A screen is taken once the command has printed nothing for this long, so that no half of one is."""


@dataclass(frozen=True)
class Screen:
    """The lines of a terminal, and the seconds since the command's start at which they appeared."""

    seconds: float
    lines: tuple[str, ...]


def screens(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    has_ended: Callable[[], bool] = lambda: False,
) -> Iterator[Screen]:
    """Yield each different screen of a command, until the command or `has_ended` ends it."""
    terminal = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(terminal)
    start = time.monotonic()
    last: tuple[str, ...] = ()
    with _started(command, directory, environment) as descriptor:
        is_open = True
        while is_open and not has_ended():
            if select.select([descriptor], [], [], _SETTLE_SECONDS)[0]:
                output = _read(descriptor)
                stream.feed(output)
                is_open = bool(output)
                if is_open:
                    continue
            lines = tuple(line.rstrip() for line in terminal.display)
            if lines != last:
                last = lines
                yield Screen(time.monotonic() - start, lines)


@contextmanager
def _started(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Start a command; yield the descriptor of its terminal's other end, and end the command."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        command, cwd=directory, env={**os.environ, **environment, "TERM": "linux"}, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    try:
        yield ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(descriptor: int) -> bytes:
    """Return the next output, or nothing if the command has closed its terminal."""
    with suppress(OSError):  # EIO at its end
        return os.read(descriptor, _READ_BYTES)
    return b""
