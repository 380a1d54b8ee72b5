"""The sockets that this process has open, and the connections of redis-py."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

from redis.connection import AbstractConnection

# A descriptor, and the number that tells its socket from a later one.
Socket = tuple[int, int]

_lasting: set[Socket] = set()

# Of the current test. A dropped one is kept, too: otherwise the garbage collector would close it at some time, or warn
# of its socket in a later test.
connections: list[Any] = []
_make_connection = AbstractConnection.__init__


@wraps(_make_connection)
def _make_noted_connection(connection: Any, *args: Any, **kwargs: Any) -> None:
    _make_connection(connection, *args, **kwargs)
    connections.append(connection)


AbstractConnection.__init__ = _make_noted_connection  # type: ignore[assignment, method-assign]


def disconnect_all() -> None:
    """Close all connections of the current test."""
    for connection in connections:
        connection.disconnect()


def open_sockets() -> set[Socket]:
    """Return the open sockets, without the lasting ones."""
    return _all() - _lasting


@contextmanager
def lasting() -> Iterator[None]:
    """Sockets that the block opens stay open until this process ends."""
    before = _all()
    yield
    _lasting.update(_all() - before)


def describe(descriptor: int) -> str:
    """Return the kind and the addresses of a socket."""
    with socket.socket(fileno=os.dup(descriptor)) as found:
        peer = ""
        with suppress(OSError):  # it may have none
            peer = f" to {found.getpeername()}"
        return f"{found.family.name} at {found.getsockname()}{peer}"


def _all() -> set[Socket]:
    found = set()
    for path in Path("/dev/fd").iterdir():
        descriptor = int(path.name)
        with suppress(OSError):  # the descriptor of the directory itself is closed by now
            state = os.fstat(descriptor)
            if stat.S_ISSOCK(state.st_mode):
                found.add((descriptor, state.st_ino))
    return found
