"""Unwritable output streams: without a reader, on a full disk, or closed."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import pytest

BROKEN, FULL, CLOSED = "broken", "full", "closed"
# Python writes a line at a time where PYTHONUNBUFFERED is set.
_EACH_LINE = 1


@contextmanager
def stream(kind: str) -> Iterator[TextIO | None]:
    """Open an unwritable stream; a closed one is None, as in `sys`."""
    if kind == CLOSED:
        yield None
    elif kind == FULL:
        with Path("/dev/full").open("w", _EACH_LINE) as file:
            yield file
    else:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w", _EACH_LINE) as file:
            yield file


@contextmanager
def written_to(**kinds: str) -> Iterator[None]:
    """Make `sys.stdout`, `sys.stderr` or both unwritable, a line at a time."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for name, kind in kinds.items():
            patch.setattr(f"sys.{name}", stack.enter_context(stream(kind)))
        yield
