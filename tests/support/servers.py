"""Servers for tests: one that wants a kind that is not installed is skipped, and fails where CI=true."""

import contextlib
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from devtools import servers
from devtools.servers import BINARIES, KINDS, NoServerError, free_port

__all__ = ["BINARIES", "KINDS", "Server", "free_port", "running"]


class Server(servers.Server):
    """A server of the tests."""

    def __init__(self, kind: str, *options: str) -> None:
        try:
            super().__init__(kind, *options)
        except NoServerError as error:
            _skip(str(error))


@contextlib.contextmanager
def running(kind: str, *options: str) -> Iterator[Server]:
    """A server for as long as the block lasts."""
    server = Server(kind, *options)
    try:
        yield server
    finally:
        server.stop()


def _skip(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
